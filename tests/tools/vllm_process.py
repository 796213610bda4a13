"""vLLM on a CPU, by an interpreter that has it. It ends with the process that started it, killed or not."""

from __future__ import annotations

import contextlib
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from composer_replication.recipes.program import RunningProgram

START_S = 600.0
"""The most that a start may take: a guard against one that never ends."""
PATIENCE_S = 5.0
"""Between being asked to end and being killed."""
LOADING = {"VLLM_SERVER_DEV_MODE": "1", "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True"}
WHOLE_PROMPTS = ("--no-enable-chunked-prefill", "--max-num-batched-tokens", "32768")
"""vLLM 0.32 dies on a CPU when the prompt of a request with a seed is read in parts."""
OPTIONS = ("--logprobs-mode", "processed_logprobs", "--enable-lora", "--max-lora-rank", "8")


@dataclass(frozen=True)
class Vllm:
    url: str
    program: RunningProgram

    def metric(self, name: str) -> float:
        """The value of one of its metrics, all its labels together."""
        with urllib.request.urlopen(f"{self.url}/metrics") as reply:
            lines = reply.read().decode().splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name + "{"))


@contextlib.contextmanager
def vllm(
    python: str, folder: Path, home: Path, *options: str, environment: Mapping[str, str] = LOADING, threads: int = 1
) -> Iterator[Vllm]:
    """Serve a folder as `policy` while the body runs."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    home.mkdir(parents=True, exist_ok=True)
    settings = {
        "HF_HUB_OFFLINE": "1",
        "HF_HOME": str(home),
        "OMP_NUM_THREADS": str(threads),
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_NO_USAGE_STATS": "1",
    }
    # its console script looks for a distribution of another name
    command = [python, "-m", "vllm.entrypoints.openai.api_server", "--model", str(folder), "--served-model-name", "policy"]
    command += ["--enforce-eager", "--dtype", "float32", "--host", "127.0.0.1", "--port", str(port), *options]
    log = home / f"{port}.log"
    with RunningProgram(command, log=log, environment={**settings, **environment}, patience_s=PATIENCE_S) as program:
        _wait(f"http://127.0.0.1:{port}/health", program, log)
        yield Vllm(f"http://127.0.0.1:{port}", program)


def _wait(url: str, program: RunningProgram, log: Path) -> None:
    until = time.monotonic() + START_S
    while time.monotonic() < until and program.poll() is None:
        with contextlib.suppress(urllib.error.URLError, ConnectionError), urllib.request.urlopen(url, timeout=5):
            return
        time.sleep(0.5)
    raise RuntimeError(f"{url} does not answer:\n{log.read_text()[-3000:]}")
