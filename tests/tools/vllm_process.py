"""vLLM on a CPU, in a process group of its own, by an interpreter that has it."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

START_S = 600.0
"""The most that a start may take: a guard against one that never ends."""
LOADING = {"VLLM_SERVER_DEV_MODE": "1", "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True"}
WHOLE_PROMPTS = ("--no-enable-chunked-prefill", "--max-num-batched-tokens", "32768")
"""vLLM 0.32 dies on a CPU when the prompt of a request with a seed is read in parts."""
OPTIONS = ("--logprobs-mode", "processed_logprobs", "--enable-lora", "--max-lora-rank", "8")


@dataclass(frozen=True)
class Vllm:
    url: str
    process: subprocess.Popen[bytes]

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
    with (home / f"{port}.log").open("w") as log:
        process = subprocess.Popen(
            command, env={**os.environ, **settings, **environment}, stdout=log, stderr=log, start_new_session=True
        )
        try:
            _wait(f"http://127.0.0.1:{port}/health", process, home / f"{port}.log")
            yield Vllm(f"http://127.0.0.1:{port}", process)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _wait(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    until = time.monotonic() + START_S
    while time.monotonic() < until and process.poll() is None:
        with contextlib.suppress(urllib.error.URLError, ConnectionError), urllib.request.urlopen(url, timeout=5):
            return
        time.sleep(0.5)
    raise RuntimeError(f"{url} does not answer:\n{log.read_text()[-3000:]}")
