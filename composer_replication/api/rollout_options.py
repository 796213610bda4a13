"""How a policy is let loose on tasks from Python, or by `composer rollout`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from composer_replication.envs.tools import Toolset
from composer_replication.sandbox import SandboxKind

EngineKind: TypeAlias = Literal["transformers", "vllm", "sglang"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutOptions:
    """How rollouts are made. None leaves a budget to the policy's default."""

    seed: int = 0
    """Determines every draw."""
    temperature: float = 1.0
    """Sampling temperature; 0 takes the likeliest token."""
    turn_tokens: int | None = None
    """Most tokens sampled in one turn."""
    trajectory_tokens: int | None = None
    """Most tokens sampled in one rollout."""
    context_tokens: int | None = None
    """Most tokens of a rollout, prompt and replies included."""
    max_turns: int | None = None
    """Most turns of a rollout."""
    env_workers: int = 2
    """Threads for tools, tests and grades."""
    python: Path | None = None
    """Interpreter for the tests; by default the one that the tasks were built with."""
    sandbox: SandboxKind = "auto"
    toolset: Toolset = "basic"
    """Tools offered to agents: `basic`, or `shell` for commands and patches of their own."""
    engine: EngineKind = "transformers"
    """Engine that samples a model: in this process, or on a server that holds it."""
    forgeable: bool = False
    """Take also tasks whose reward can be forged (`tasks.strength`)."""
    server_url: str | None = None
    """`http://HOST:PORT` of that server."""
    max_requests: int | None = None
    """Most turns asked of the server at a time; None for no limit."""
    teachers: Path | None = None
    """TOML file with the `[[teachers]]` tables that a policy `teacher:NAME` is one of. Such a policy needs the next three too."""
    model: str | None = None
    """Folder or Hugging Face id of the model that is to learn from a teacher: the teacher's turns are recorded as its chat
    template writes them, and budgets are counted in its tokens."""
    ledger: Path | None = None
    """File that keeps a teacher's answers and what they cost: none is asked or paid for twice."""
    max_usd: float | None = None
    """Cap on all that the ledger has paid or holds, in US dollars."""
    timeout_s: float | None = None
    """Most seconds of one rollout in its tools, tests and requests; None for no limit."""
