"""vLLM on a CPU, by an interpreter that has it, started as a run starts it."""

from __future__ import annotations

import contextlib
import json
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from composer_replication.rollouts.serving import StartedVllm, VllmOptions
from composer_replication.sandbox.program import RunningProgram

START_S = 600.0
"""The most that a start may take: a guard against one that never ends."""
WHOLE_PROMPTS = ("--no-enable-chunked-prefill", "--max-num-batched-tokens", "32768")
"""vLLM 0.32 dies on a CPU when the prompt of a request with a seed is read in parts."""
LACKING = {"VLLM_SERVER_DEV_MODE": "0", "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "False"}
"""Without the endpoints that a run needs."""
RAW = ("--logprobs-mode", "raw_logprobs")
"""With log-probs that do not depend on the temperature."""


@dataclass(frozen=True)
class Vllm:
    url: str
    program: RunningProgram

    def metric(self, name: str) -> float:
        """The value of one of its metrics, all its labels together."""
        with urllib.request.urlopen(f"{self.url}/metrics") as reply:
            lines = reply.read().decode().splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name + "{"))


def small(home: Path, threads: int = 1) -> dict[str, str]:
    """Variables for a server of a tiny model on a CPU that others use too."""
    home.mkdir(parents=True, exist_ok=True)
    return {
        "HF_HUB_OFFLINE": "1",
        "HF_HOME": str(home),
        "OMP_NUM_THREADS": str(threads),
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    }


@contextlib.contextmanager
def vllm(
    python: str,
    folder: Path,
    home: Path,
    *more: str,
    lora_rank: int = 8,
    environment: Mapping[str, str] | None = None,
    threads: int = 1,
) -> Iterator[Vllm]:
    """Serve a folder as `policy` while the body runs."""
    options = VllmOptions(
        model=str(folder),
        dtype="float32",
        window=json.loads((folder / "config.json").read_text())["max_position_embeddings"],
        python=Path(python),
        lora_rank=lora_rank,
        more=("--enforce-eager", *more),
    )
    variables = small(home, threads) | dict(environment or {})
    started = StartedVllm(options, home / "vllm.log", timeout_s=START_S, environment=variables)
    with contextlib.closing(started):
        yield Vllm(started.url, started.program)
