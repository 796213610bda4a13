"""Synthetic traces of an agent at work whose every step is known to be good or bad.

A task is a small project: files of named numbers, one of which is to be raised. The agent lists the files, reads one, edits it
and reports the new value; at any step it may commit a fault, see an error and try again. The call alone says little: every tool,
file and number is right in some tasks and wrong in others, at every turn. But names that many tasks have are right more often.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from composer_replication.tokens import ChatRenderer
from composer_replication.types import Message, StopReason, ToolSchema, Trajectory, Turn

TOOLS = (("list", "ls", "tree"), ("read", "cat", "show"), ("edit", "replace", "patch"), ("report", "answer", "submit"))
"""What each of four tools is called: every task offers one name of each."""
COMMON = (4, 2, 1)
"""How often a task has the names of a tool, in their order."""
FILES = ("apple", "cherry", "fig", "grape", "kiwi", "lemon", "pear", "plum")
"""A task has four; the first half is in most."""
NAMES = ("amber", "coral", "gold", "jade", "navy", "rose", "sand", "teal")
FAULT = 0.4
"""Probability that a step is bad."""
MOST_TURNS = 8


@dataclass(frozen=True, slots=True)
class Project:
    """A task."""

    task_id: str
    tools: tuple[str, ...]
    files: dict[str, dict[str, int]]
    path: str
    name: str
    by: int


@dataclass(frozen=True, slots=True)
class Planted:
    """A trace, and of every turn whether it is good, and the kind of its fault or ""."""

    trajectory: Trajectory
    labels: dict[int, float]
    faults: dict[int, str]


def project(number: int) -> Project:
    """Always the same task of a number."""
    rng = random.Random(f"project {number}")
    common = {stem: 4 if i < len(FILES) // 2 else 1 for i, stem in enumerate(FILES)}
    stems = sorted(FILES, key=lambda stem: rng.random() ** (1 / common[stem]))[-4:]
    rng.shuffle(stems)
    names = rng.sample(NAMES, 8)
    files = {stem: {name: rng.randint(1, 3) for name in names[2 * i : 2 * i + 2]} for i, stem in enumerate(stems)}
    path = rng.choice(stems)
    tools = tuple(rng.choices(same, COMMON)[0] for same in TOOLS)
    return Project(f"task{number:05d}", tools, files, path, rng.choice([*files[path]]), rng.randint(1, 3))


def traces(renderer: ChatRenderer, numbers: range, siblings: int) -> Iterator[Planted]:
    """`siblings` traces of each task."""
    for number in numbers:
        for sibling in range(siblings):
            yield _trace(renderer, project(number), sibling)


def _trace(renderer: ChatRenderer, task: Project, sibling: int) -> Planted:
    rng = random.Random(f"{task.task_id}/{sibling}")
    tools: tuple[ToolSchema, ...] = tuple(
        {"type": "function", "function": {"name": name, "parameters": {}}} for name in task.tools
    )
    opening = (Message(role="user", content=f"raise {task.name} in {task.path} by {task.by}"),)
    turns: list[Turn] = []
    labels, faults = {}, {}
    stage = 0
    while stage < 4 and len(turns) < MOST_TURNS:
        fault = _fault(stage, rng) if rng.random() < FAULT else ""
        name, arguments = _action(task, stage, fault, rng)
        reply = f"error: {fault}" if fault else _reply(task, stage)
        labels[len(turns)], faults[len(turns)] = float(not fault), fault
        ids = renderer.assistant_ids(_call(name, arguments, len(turns)))
        stage += not fault
        last = stage == 4 or len(turns) + 1 == MOST_TURNS
        read = () if last else renderer.delta_ids([Message(role="tool", content=reply)], ended=True)
        turns.append(Turn(action_ids=ids, logprobs=(0.0,) * len(ids), text=renderer.decode(ids), observation_ids=read))
    trajectory = Trajectory(
        trajectory_id=f"0/{task.task_id}/{sibling}",
        task_id=task.task_id,
        policy_version=0,
        messages=opening,
        tools=tools,
        prompt_ids=renderer.prompt_ids(opening, tools),
        turns=tuple(turns),
        stop_reason=StopReason.SUBMITTED if stage == 4 else StopReason.MAX_TURNS,
        temperature=1.0,
        reward=float(stage == 4),
    )
    return Planted(trajectory, labels, faults)


def _fault(stage: int, rng: random.Random) -> str:
    """A kind of fault that can happen at a stage."""
    own = ((), ("no such file",), ("old text not found", "wrong sum"), ("wrong value",))[stage]
    return rng.choice(("no such tool", *own))


def _action(task: Project, stage: int, fault: str, rng: random.Random) -> tuple[str, dict[str, Any]]:
    """Tool and arguments of the stage's right call, but for its fault."""
    tool, path, old = task.tools[stage], task.path, task.files[task.path][task.name]
    name, new = task.name, old + task.by
    if fault == "no such tool":
        tool = rng.choice([other for other in TOOLS[stage] if other != tool])
    elif fault == "no such file":
        path = rng.choice([other for other in FILES if other not in task.files])
    elif fault == "old text not found":
        wrong = rng.choice([value for value in (1, 2, 3) if value != old])
        old, new = wrong, wrong + task.by
    elif fault in ("wrong sum", "wrong value"):
        new = old + rng.choice([by for by in (1, 2, 3) if by != task.by])
    arguments: tuple[dict[str, Any], ...] = (
        {},
        {"path": path},
        {"old": f"{name} = {old}", "new": f"{name} = {new}"},
        {"value": new},
    )
    return tool, arguments[stage]


def _reply(task: Project, stage: int) -> str:
    if stage == 0:
        return " ".join(task.files)
    if stage == 1:
        return "\n".join(f"{name} = {value}" for name, value in task.files[task.path].items())
    return "ok"


def _call(name: str, arguments: dict[str, Any], turn: int) -> Message:
    call = {"id": f"call_{turn}_0", "type": "function", "function": {"name": name, "arguments": arguments}}
    return Message(role="assistant", content="", tool_calls=[call])


def texts(count: int = 200) -> Iterator[str]:
    """Rendered traces for a tokenizer to learn from."""
    from composer_replication.tokens import byte_level_tokenizer

    renderer = ChatRenderer(byte_level_tokenizer())
    for planted in traces(renderer, range(-count, 0), 1):
        trajectory = planted.trajectory
        yield renderer.template.decode(trajectory.context_ids(len(trajectory.turns)))
