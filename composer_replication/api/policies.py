"""Open a policy by its name: a script, random calls, a model in this process, or a model on a server."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from composer_replication.envs import noop_script, oracle_script
from composer_replication.envs.tools import TOOLSETS, Toolset
from composer_replication.rollouts import AsyncEngine, Budgets, Engine, RandomEngine, ScriptedEngine
from composer_replication.tasks.store import Task
from composer_replication.tokens import ChatRenderer, byte_level_tokenizer
from composer_replication.types import Message
from composer_replication.types.errors import ConfigError

EngineKind: TypeAlias = Literal["transformers", "vllm", "sglang"]
REQUIRED = {"oracle": 1.0, "noop": 0.0}
"""Policies that prove tasks sound, and the reward that each must get."""
SCRIPTED = (*REQUIRED, "random")
"""Policies without a model."""
_SCRIPTED_BUDGETS = Budgets(turn_tokens=1 << 22, trajectory_tokens=1 << 24, context_tokens=1 << 26, max_turns=1 << 10)
_RANDOM_BUDGETS = Budgets(turn_tokens=2000, trajectory_tokens=32_000, context_tokens=1 << 20, max_turns=16)


@dataclass(frozen=True, slots=True)
class Policy:
    """An engine, the renderer that speaks its tokens, and the budgets it gets by default."""

    engine: Engine | AsyncEngine
    renderer: ChatRenderer
    budgets: Budgets


def check_policy(policy: str, engine: EngineKind, server_url: str | None) -> None:
    """Refuse a misspelt name, which would be looked for on the Hugging Face hub, and an engine without its address.

    Raises:
        ConfigError: one of these.
    """
    close = difflib.get_close_matches(policy.lower(), SCRIPTED, n=1, cutoff=0.8)
    if close and policy != close[0] and not Path(policy).exists():
        raise ConfigError(f"there is no policy {policy!r}", fix=f"did you mean {close[0]}?")
    if engine != "transformers" and policy in SCRIPTED:
        raise ConfigError(f"the engine {engine} samples models, and {policy} is none", fix="leave the engine out")
    if (engine == "transformers") != (server_url is None):
        raise ConfigError(
            f"the engine {engine} {'needs a' if server_url is None else 'reads no'} server URL",
            fix="give the engine vllm or sglang together with http://HOST:PORT",
        )


def open_policy(policy: str, tasks: Sequence[Task], toolset: Toolset, engine: EngineKind, server_url: str | None) -> Policy:
    """Return the policy of that name. Raises ConfigError as `check_policy`, and ModelError when it cannot be loaded."""
    check_policy(policy, engine, server_url)
    if policy not in SCRIPTED:
        return _model(policy) if engine == "transformers" else _served(policy, engine, str(server_url))
    renderer = ChatRenderer(byte_level_tokenizer())
    if policy == "random":
        names = {name for t in tasks for d in t.spec.deleted for name in (d.path, d.qualname.rpartition(".")[2])}
        return Policy(RandomEngine(renderer, tools=TOOLSETS[toolset], words=sorted(names)), renderer, _RANDOM_BUDGETS)
    by_id = {task.spec.task_id: task for task in tasks}

    def script_for(session: str) -> Sequence[Message]:
        task_id = session.partition("/")[2].rpartition("/")[0]
        return oracle_script(by_id[task_id]) if policy == "oracle" else noop_script()

    return Policy(ScriptedEngine(renderer, script_for), renderer, _SCRIPTED_BUDGETS)


def _model(path: str) -> Policy:
    from composer_replication.loss.forward.models import load_to_sample
    from composer_replication.rollouts.transformers_engine import TransformersEngine

    model, tokenizer = load_to_sample(path)
    return Policy(TransformersEngine(model, tokenizer), ChatRenderer(tokenizer), Budgets())


def _served(path: str, kind: Literal["vllm", "sglang"], url: str) -> Policy:
    from composer_replication.loss.forward.models import load_tokenizer
    from composer_replication.trainer.engines.open_engine import open_server_engine

    tokenizer, generation = load_tokenizer(path)
    return Policy(open_server_engine(kind, url, tokenizer, generation), ChatRenderer(tokenizer), Budgets())
