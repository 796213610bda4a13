"""A vLLM server that is started on this machine, and that ends with the process that started it."""

from __future__ import annotations

import http.client
import json
import os
import re
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Literal

from composer_replication.config.server_options import memory_share
from composer_replication.rollouts.serving.http import KEY_VARIABLE
from composer_replication.sandbox.program import RunningProgram
from composer_replication.types.errors import ConfigError, MissingExtraError, ModelError
from composer_replication.types.secrets import quoted

_ENVIRONMENT = {"VLLM_SERVER_DEV_MODE": "1", "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True", "VLLM_NO_USAGE_STATS": "1"}
"""Endpoints that load weights and adapters, and put the server to sleep."""
_KEY = "VLLM_API_KEY"
"""Environment variable from which vLLM's server takes its key. That of another program must not reach it."""
_MODULE = "vllm.entrypoints.openai.api_server"
_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""Greatest ranks of adapters that vLLM can be started for."""
_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))
_VISIBLE = "CUDA_VISIBLE_DEVICES"
_BETWEEN_S, _ANSWER_S, _PATIENCE_S = 0.5, 5.0, 10.0
_LONGEST_ANSWER = 1 << 20
_ERROR = re.compile(r"(^|\s)([\w.]*(Error|Exception)|error): \S")
"""A line that says what went wrong, and not one of the code in a traceback."""
_ANOTHER = "Engine core initialization failed"
"""What vLLM's server says of an error in its engine."""
_OF_TORCHRUN = (
    *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_RANK", "ROLE_WORLD_SIZE"),
    *("ROLE_NAME", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_USE_AGENT_STORE"),
)
"""Variables that tell a process of its group, to which the server does not belong."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmOptions:
    """How vLLM is started."""

    model: str
    """Folder or Hugging Face id of a whole model."""
    dtype: Literal["float32", "bfloat16"]
    window: int
    """Tokens of the longest sequence."""
    python: Path = Path(sys.executable)
    """Interpreter of an environment that has vLLM."""
    lora_rank: int = 0
    """Rank of the adapters that it is to load; 0 for none."""
    gpus: Sequence[int] = ()
    """Numbers of its GPUs among those that this process sees; without any it takes what vLLM chooses."""
    sleeps: bool = False
    """Another process has its GPU at times, and it sleeps then."""
    says_experts: bool = False
    """It reports which experts of a mixture tokens went through."""
    more: Sequence[str] = ()
    """Options that come last, and so count."""

    def words(self, port: int, name: str) -> list[str]:
        """Return the command of a server that serves the model under a name."""
        command = [str(self.python), "-m", _MODULE, "--model", self.model, "--served-model-name", name]
        command += ["--host", "127.0.0.1", "--port", str(port), "--dtype", self.dtype, "--max-model-len", str(self.window)]
        command += ["--logprobs-mode", "processed_logprobs"]
        if self.lora_rank:
            command += ["--enable-lora", "--max-lora-rank", str(next((r for r in _RANKS if r >= self.lora_rank), _RANKS[-1]))]
        if len(self.gpus) > 1:
            command += ["--tensor-parallel-size", str(len(self.gpus))]
        if self.sleeps:
            command += ["--enable-sleep-mode", "--gpu-memory-utilization", str(memory_share(self.more))]
        if self.says_experts:
            command += ["--enable-return-routed-experts"]
        return [*command, *self.more]

    def environment(self) -> dict[str, str]:
        """Return the variables that it needs besides those of this process. Raises ConfigError as `visible_gpus`."""
        key = os.environ.get(KEY_VARIABLE)
        return _ENVIRONMENT | ({_KEY: key} if key else {}) | ({_VISIBLE: ",".join(visible_gpus(self.gpus))} if self.gpus else {})


def visible_gpus(gpus: Sequence[int]) -> list[str]:
    """Return the names of GPUs for a process that is to see these alone.

    Args:
        gpus: their numbers among those that this process sees.

    Raises:
        ConfigError: it does not see one of them.
    """
    given = os.environ.get(_VISIBLE)
    if given is None:
        return [str(number) for number in gpus]
    seen = list(takewhile(lambda name: name not in ("", "-1"), map(str.strip, given.split(","))))
    if max(gpus) >= len(seen):
        raise ConfigError(
            f"rollout.server_gpus names GPU {max(gpus)}, and {_VISIBLE}={given} shows {len(seen)}",
            fix=f"name others in rollout.server_gpus, counted from 0, or show more in {_VISIBLE}",
        )
    return [seen[number] for number in gpus]


class StartedVllm:
    """A vLLM server of this process. It serves the model as `name` at `url`, to this machine alone.

    No other server has that name. The key in COMPOSER_SERVER_KEY, if there is one, is also this server's.

    Args:
        log: file to which its output is appended.
        timeout_s: most seconds that the start may take.
        environment: further variables.

    Raises:
        ModelError: it ended before it served, or does not serve in time.
        ConfigError: as `visible_gpus`.
    """

    def __init__(
        self, options: VllmOptions, log: Path, *, timeout_s: float, environment: Mapping[str, str] | None = None
    ) -> None:
        log.parent.mkdir(parents=True, exist_ok=True)
        port, self.name = _free_port(), f"policy-{uuid.uuid4().hex}"
        self.url = f"http://127.0.0.1:{port}"
        self.log, self.sleeps = log, options.sleeps
        self._began = log.stat().st_size if log.exists() else 0
        self.program = RunningProgram(
            options.words(port, self.name),
            log=log,
            environment=options.environment() | dict(environment or {}),
            without=(*_OF_TORCHRUN, _KEY),
            patience_s=_PATIENCE_S,
        )
        with ExitStack() as started:
            started.callback(self.close)
            self._wait(timeout_s)
            started.pop_all()

    def close(self) -> None:
        """End the server, and return when it has ended."""
        self.program.end()

    def _wait(self, timeout_s: float) -> None:
        until = time.monotonic() + timeout_s
        while not self._serves():
            if (code := self.program.poll()) is not None:
                raise ModelError(
                    f"the vLLM server ended with exit code {code} before it served: {self.last_words()}", fix=f"see {self.log}"
                )
            if time.monotonic() > until:
                raise ModelError(
                    f"the vLLM server does not serve after {timeout_s:g} s",
                    fix=f"see {self.log}; raise rollout.stall_s if it was still loading",
                )
            time.sleep(_BETWEEN_S)

    def _serves(self) -> bool:
        """Return whether this server answers at the address; another program may have taken the port."""
        key = os.environ.get(KEY_VARIABLE, "")
        request = urllib.request.Request(f"{self.url}/v1/models", headers={"Authorization": f"Bearer {key}"})
        try:
            with _DIRECT.open(request, timeout=_ANSWER_S) as reply:
                return any(card["id"] == self.name for card in json.loads(reply.read(_LONGEST_ANSWER))["data"])
        except (urllib.error.URLError, http.client.HTTPException, ConnectionError, TimeoutError):
            return False
        except (ValueError, KeyError, TypeError):  # an answer of another kind
            return False

    def last_words(self) -> str:
        """Return the last line that it has written which names an error, and not only that of another process; else the last
        line."""
        with self.log.open("rb") as log:
            log.seek(self._began)
            said = log.read().decode("utf-8", errors="replace").splitlines()
        lines = [line.strip() for line in said if line.strip()]
        errors = [line for line in lines if _ERROR.search(line)]
        causes = [line for line in errors if _ANOTHER not in line]
        return quoted((causes or errors or lines or ["it said nothing"])[-1], os.environ.get(KEY_VARIABLE, ""), most=500)


def require_vllm(python: Path) -> None:
    """Raise MissingExtraError where an interpreter has no vLLM, or is none."""
    looks = "import importlib.util, sys; sys.exit(importlib.util.find_spec('vllm') is None)"
    try:
        found = subprocess.run([str(python), "-c", looks], capture_output=True, check=False).returncode == 0
    except OSError as error:
        raise MissingExtraError(f"{python} cannot be run: {error}", fix="correct rollout.server_python") from error
    if not found:
        raise MissingExtraError(
            f"{python} has no vLLM",
            fix="install vLLM in an environment of its own and set rollout.server_python to its interpreter, or "
            "rollout.server_url to a server that runs",
        )


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port
