"""Programs of steps over a project's code: recorded from its tests, done in a sandbox, and judged outside of it, where the code
under test cannot see what is expected."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeAlias

from composer_replication.sandbox.grading.literals import differs
from composer_replication.sandbox.grading.pytest_run import CodeRunner, TestRun
from composer_replication.sandbox.protocol import Ending, Tree
from composer_replication.types.held_out_checks import HeldOutProgram

Step: TypeAlias = dict[str, Any]
Steps: TypeAlias = Sequence[tuple[int, Step]]
"""A program: each step with the number by which later ones name its result."""

_CPU_S, _WALL_S = 2.0, 10.0
"""Limits of one program when it judges."""
_GOLD_CPU_S, _GOLD_WALL_S = 0.5, 3.0
"""Limits of one program on the gold code or a trivial body: less, so that a slower machine does not turn right into wrong."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """The steps of all tests, in the order in which they were done; a step's number is its place."""

    steps: Sequence[Step]
    facts: Sequence[tuple[str, bool, str]]
    """Per step the test's id (empty at import), whether it touches the project, and the class of its result, if that is the
    project's or a test's."""


def record_steps(
    runner: CodeRunner, tree: Tree, *, sources: Sequence[str], tests: Sequence[str] = ()
) -> tuple[TestRun, Recording]:
    """Run all tests of a tree whose test files are rewritten (`languages.python.instrument`), and record what they do with
    `sources`.

    Raises:
        SandboxError: the sandbox broke.
    """
    texts = [_text(name) for name in ("literals", "operators", "shipping", "steps_recorder")]
    run, seen = runner.run_observed(tree, {"programs": texts, "options": {"sources": list(sources)}}, tests)
    found = seen or {"steps": [], "facts": []}
    facts = [(test, touching, kind) for test, touching, kind in found["facts"]]
    return run, Recording(steps=found["steps"], facts=facts)


def examine_programs(
    runner: CodeRunner, tree: Tree, programs: Sequence[Steps], *, lines: bool = False, hash_seed: int = 0
) -> list[dict[str, Any] | None]:
    """Do programs over trusted code, and report what each answered and ran (`steps_driver.examine`).

    None stands for a program that did not get to its end; all are None when the sandbox ended early. Raises SandboxError.
    """
    request = {"mode": "lines" if lines else "enter", "programs": list(programs)}
    answers = _ask(runner, tree, request, gold=True, hash_seed=hash_seed)[1]
    return answers if answers is not None and len(answers) == len(programs) else [None] * len(programs)


@dataclass(frozen=True, slots=True, kw_only=True)
class BodyTrial:
    """A changed source file, and the programs that it is tried on, by number, in order."""

    path: str
    qualname: str
    """The function whose body is another one."""
    text: str | None
    """The file's text; None is the gold code itself."""
    numbers: Sequence[int]
    most: int
    """Stop after this many programs whose answers are wrong."""


def try_bodies(
    runner: CodeRunner, tree: Tree, programs: Sequence[Steps], expected: Sequence[list[Any]], trials: Sequence[BodyTrial]
) -> list[list[int]] | None:
    """Return for each trial the numbers of the programs whose answers are wrong: all of them where it cannot be imported.

    None when the sandbox ended early. Raises SandboxError.
    """
    orders = [
        {
            "body": None if trial.text is None else {"path": trial.path, "qualname": trial.qualname, "text": trial.text},
            "numbers": list(trial.numbers),
            "most": trial.most,
            "expected": {number: expected[number] for number in trial.numbers},
            "cpu_s": _GOLD_CPU_S,
            "wall_s": _GOLD_WALL_S,
        }
        for trial in trials
    ]
    request = {"mode": "bodies", "programs": list(programs), "orders": orders}
    answers = _ask(runner, tree, request, gold=True)[1]
    if answers is None or len(answers) != len(trials):
        return None
    return [list(trial.numbers) if found is None else found for trial, found in zip(trials, answers, strict=True)]


def wrong_programs(runner: CodeRunner, tree: Tree, programs: Sequence[HeldOutProgram]) -> tuple[list[int], Ending]:
    """Return the numbers of the programs whose answers are wrong, all of them when the sandbox ended early; and its ending.

    Raises SandboxError.
    """
    request = {"mode": "run", "programs": [json.loads(program.steps) for program in programs]}
    ending, answers = _ask(runner, tree, request, gold=False)
    if answers is None or len(answers) != len(programs):
        return list(range(len(programs))), ending
    pairs = enumerate(zip(programs, answers, strict=True))
    return [number for number, (program, answer) in pairs if differs(json.loads(program.expected), answer)], ending


def _ask(
    runner: CodeRunner, tree: Tree, request: Mapping[str, Any], *, gold: bool, hash_seed: int = 0
) -> tuple[Ending, list[Any] | None]:
    limits = {"cpu_s": _GOLD_CPU_S, "wall_s": _GOLD_WALL_S} if gold else {"cpu_s": _CPU_S, "wall_s": _WALL_S}
    env = {"PYTHONHASHSEED": str(hash_seed)} if hash_seed else {}
    result, answer = runner.ask(tree, _program(), {**request, **limits}, env, judged=not gold)
    return result.ending, answer if isinstance(answer, list) else None


Text: TypeAlias = Literal["literals", "operators", "shipping", "steps_recorder", "steps_driver"]


@cache
def _text(module: Text) -> str:
    return Path(__file__).with_name(f"{module}.py").read_text(encoding="utf-8")


@cache
def _program() -> str:
    texts = [_text(name) for name in ("literals", "operators", "shipping", "steps_driver")]
    return f"for text in {texts!r}:\n    exec(compile(text, '<string>', 'exec'))"
