"""Open a policy by its name: a script, random calls, a teacher, a model in this process, or a model on a server."""

from __future__ import annotations

import difflib
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from composer_replication.api.rollout_options import RolloutOptions
from composer_replication.config import TEACHER, load_teachers
from composer_replication.envs import noop_script, oracle_script
from composer_replication.envs.tools import TOOLSETS, Toolset
from composer_replication.rollouts import AsyncEngine, Budgets, Engine, RandomEngine, ScriptedEngine
from composer_replication.tasks.store import Task
from composer_replication.tokens import ChatRenderer, byte_level_tokenizer
from composer_replication.types import Message
from composer_replication.types.errors import ConfigError

if TYPE_CHECKING:
    from composer_replication.teachers import Teacher

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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """A teacher, and what rollouts of it need (`RolloutOptions`)."""

    teacher: Teacher
    model: str
    ledger: Path
    max_usd: float


def check_policy(policy: str, options: RolloutOptions) -> None:
    """Refuse a misspelt name, which would be looked for on the Hugging Face hub, an engine without its address, and a teacher
    that cannot be asked or paid.

    Raises:
        ConfigError: one of these.
    """
    engine, server_url = options.engine, options.server_url
    close = difflib.get_close_matches(policy.lower(), SCRIPTED, n=1, cutoff=0.8)
    if close and policy != close[0] and not Path(policy).exists():
        raise ConfigError(f"there is no policy {policy!r}", fix=f"did you mean {close[0]}?")
    if engine != "transformers" and policy in SCRIPTED:
        raise ConfigError(f"the engine {engine} samples models, and {policy} is none", fix="leave the engine out")
    if policy.startswith(TEACHER):
        _asked(policy, options)
    else:
        _refuse_what_teachers_need(policy, options)
    if (engine == "transformers") != (server_url is None):
        raise ConfigError(
            f"the engine {engine} {'needs a' if server_url is None else 'reads no'} server URL",
            fix="give the engine vllm or sglang together with http://HOST:PORT",
        )


@asynccontextmanager
async def open_policy(policy: str, tasks: Sequence[Task], options: RolloutOptions) -> AsyncIterator[Policy]:
    """Open the policy of that name. Raises ConfigError as `check_policy`, and ModelError when it cannot be loaded."""
    check_policy(policy, options)
    if not policy.startswith(TEACHER):
        yield _own(policy, tasks, options)
        return
    from composer_replication.trainer.engines.teacher_engine import open_teacher

    asked = _asked(policy, options)
    async with open_teacher(
        asked.teacher, model=asked.model, ledger=asked.ledger, max_total_usd=asked.max_usd, seed=options.seed
    ) as engine:
        yield Policy(engine, engine.renderer, Budgets())


def _asked(policy: str, options: RolloutOptions) -> _Asked:
    """Return the teacher that a policy is. Raises ConfigError where it cannot be asked or paid."""
    from composer_replication.teachers import check_teachers
    from composer_replication.trainer.engines.teacher_engine import teacher_as_policy

    if options.engine != "transformers":
        raise ConfigError(
            f"the engine {options.engine} samples models, and {policy} is asked at its own endpoint", fix="leave the engine out"
        )
    if options.teachers is None or options.model is None or options.ledger is None or options.max_usd is None:
        raise ConfigError(
            f"{policy} needs a file of teachers, the model that is to learn from it, a folder for its answers and a cap",
            fix="give all of --teachers FILE --model MODEL --out DIR --max-usd X",
        )
    teacher = teacher_as_policy(policy, load_teachers(options.teachers), options.temperature, str(options.teachers))
    check_teachers([teacher], options.max_usd)
    return _Asked(teacher=teacher, model=options.model, ledger=options.ledger, max_usd=options.max_usd)


def _refuse_what_teachers_need(policy: str, options: RolloutOptions) -> None:
    given = {"--teachers": options.teachers, "--model": options.model, "--max-usd": options.max_usd}
    unread = [name for name, value in given.items() if value is not None]
    if unread:
        raise ConfigError(f"{policy} is no teacher and reads no {unread[0]}", fix=f"leave it out, or give --policy {TEACHER}NAME")


def _own(policy: str, tasks: Sequence[Task], options: RolloutOptions) -> Policy:
    """Return a policy that is no teacher."""
    if policy not in SCRIPTED:
        engine = options.engine
        return _model(policy) if engine == "transformers" else _served(policy, engine, str(options.server_url))
    return _scripted(policy, tasks, options.toolset)


def _scripted(policy: str, tasks: Sequence[Task], toolset: Toolset) -> Policy:
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
