"""How trajectories are collected, and by which engine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, Self, TypeAlias

from pydantic import Field, model_validator

from composer_replication.config.section import Positive, ReadBy, Section, refuse
from composer_replication.config.server_options import memory_share, why_not

_SERVED, _STARTED = ReadBy("engine", "vllm", "sglang"), ReadBy("engine", "vllm")
_Address: TypeAlias = Annotated[str, Field(pattern=r"^https?://[^@?#\s]+$")]
_Addresses: TypeAlias = Annotated[tuple[_Address, ...], Field(min_length=1)]


class RolloutConfig(Section):
    """How trajectories are collected."""

    engine: Literal["transformers", "vllm", "sglang"] = "transformers"
    """Sample with the trainer's own model in its own process (transformers), or with a server that receives the policy's weights
    after each step. A server's log-probs differ from the trainer's, so it needs `loss.rlvr.importance`."""
    server_url: Annotated[_Address | _Addresses | None, _SERVED] = None
    """Reach the server at this address, `http://HOST:PORT`. On a mesh, list one address for each of `substrate.generators`. Put
    the key, if the server wants one, in the environment variable COMPOSER_SERVER_KEY. Without an address `engine = "vllm"` starts
    a server on this machine, which ends with the run."""
    server_python: Annotated[Path | None, _STARTED] = None
    """Start the server with this Python interpreter, such as that of an environment which has vLLM. Defaults to the run's own."""
    server_gpus: Annotated[tuple[Annotated[int, Field(ge=0)], ...], _STARTED] = ()
    """Start the server on these GPUs, numbered as in `model.device`; several hold a part of each layer. By default it shares the
    policy's GPU: it samples while the policy waits, and sleeps, without memory, while the policy is updated."""
    server_options: Annotated[tuple[str, ...], _STARTED] = ()
    """Start the server with these further options of `vllm serve`, such as ["--gpu-memory-utilization", "0.6"]. The run itself
    chooses model, name, address, key and the mode of the log-probs."""
    server_weights: Annotated[Path | None, _SERVED] = None
    """Pass the weights through this folder, which must have the same path here and on the server's machine. Defaults to a folder
    of the run."""
    server_store: Annotated[str | None, _SERVED] = None
    """Send what has changed in the weights through this object store instead: a folder, `s3://`, `gs://` or `az://`. Run
    `composer weights follow STORE --run NAME --into FOLDER` on the server's machine, which writes them there. Set it when the
    machines share no folder, or when whole weights take long to write."""
    groups: Positive = 8
    """Roll out this many tasks per step."""
    group_size: Annotated[int, Field(ge=2)] = 8
    """Roll out each task this many times per step (its siblings). Larger groups give a less noisy baseline."""
    temperature: Annotated[float, Field(gt=0.0)] = 1.0
    """Sample at this temperature, in training and in evaluation."""
    turn_tokens: Positive = 1024
    """Sample at most this many tokens in one turn."""
    trajectory_tokens: Positive = 8192
    """Sample at most this many tokens in one trajectory."""
    context_tokens: Positive = 16384
    """End a trajectory at this many tokens, including prompt and replies; a smaller context window of the model takes
    precedence."""
    max_turns: Positive = 32
    """End a trajectory after this many turns."""
    cohorts: Positive = 2
    """Split the batch into this many parts that take turns using the model, so that one samples while another's tests run. Only
    for `engine = "transformers"`; with a server every rollout proceeds on its own."""
    max_rollouts: Positive | None = None
    """Keep at most this many rollouts open at once, in whole groups: with `engine = "transformers"` each holds its keys and
    values in the policy's memory until it ends. By default as many as a step has, in evaluations too; with a server there is no
    limit. Lower it when they do not fit; a step then takes longer."""
    refills: Annotated[int, Field(ge=0)] = 0
    """Replace groups whose siblings all got the same verdict with groups of other tasks, up to this many times per step (DAPO's
    dynamic sampling). Replaced groups stay out of the policy gradient, but their hints still teach."""
    stall_s: Annotated[float, Field(gt=0.0)] = 1800.0
    """Treat a rollout as stuck, and stop the run, after this many seconds without any model call, tool or test finishing. On a
    mesh the stalled actor is replaced instead, as is one that does not answer, load, send weights or step in this time."""
    env_workers: Positive = 2
    """Run tools, tests and grading on this many threads."""
    max_requests: Annotated[Positive | None, _SERVED] = None
    """Keep at most this many turns in flight on the server; of the waiting rollouts, the one with the fewest turns goes first. By
    default every turn is sent as soon as it is ready."""
    timeout_s: Annotated[float, Field(gt=0.0)] | None = None
    """Limit the seconds a rollout spends in its tools, tests, grading and requests to a server; no limit by default. Waiting for
    a free thread or under `max_requests`, and sampling in the trainer's own process, do not count. A rollout over the limit ends
    without a verdict and enters no baseline; the others continue."""

    @property
    def server_urls(self) -> tuple[str, ...]:
        """The servers' addresses; empty without a server."""
        given = self.server_url
        return () if given is None else (given,) if isinstance(given, str) else given

    @property
    def open_at_most(self) -> int | None:
        """The most rollouts that are open at once; None for no limit."""
        in_process = self.groups * self.group_size if self.engine == "transformers" else None
        return in_process if self.max_rollouts is None else self.max_rollouts

    @property
    def starts_server(self) -> bool:
        """True when the run starts a server of its own."""
        return self.engine == "vllm" and self.server_url is None

    @model_validator(mode="after")
    def _a_server_has_an_address_or_is_started(self) -> Self:
        if self.engine == "sglang" and not self.server_urls:
            refuse("server_url is missing with engine = sglang", 'add server_url = "http://HOST:PORT"')
        for name in ("server_python", "server_gpus", "server_options") if self.server_urls else ():
            if getattr(self, name) != type(self).model_fields[name].default:
                refuse(f"{name} is not read with server_url: that server is started already", f"remove {name} or server_url")
        if self.starts_server and self.server_store is not None:
            refuse("server_store is not read without server_url: a server on this machine reads a folder", "remove server_store")
        twice = next((gpu for gpu in self.server_gpus if self.server_gpus.count(gpu) > 1), None)
        if twice is not None:
            refuse(f"server_gpus names GPU {twice} twice", "name each GPU once")
        for word in self.server_options:
            if (reason := why_not(word)) is not None:
                refuse(f"server_options: {reason[0]}", reason[1])
        try:
            memory_share(self.server_options)
        except ValueError:
            refuse("server_options: --gpu-memory-utilization is no share of a memory", "give it a number above 0 and up to 1")
        if self.server_weights is not None and self.server_store is not None:
            refuse("server_weights and server_store are both given", "remove one: the weights take one way")
        return self
