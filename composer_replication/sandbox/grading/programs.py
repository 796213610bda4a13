"""Programs of steps over a project's code: recorded from its tests, done in a sandbox, and judged outside of it, where the code
under test cannot see what is expected."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol, TypeAlias

from composer_replication.sandbox.grading.literals import differs
from composer_replication.sandbox.grading.pytest_run import CodeRunner, TestRun
from composer_replication.sandbox.grading.test_files import without_tests
from composer_replication.sandbox.grading.texts import program_of, text_of
from composer_replication.sandbox.protocol import Ending, Tree
from composer_replication.types.held_out_checks import HeldOutProgram

Step: TypeAlias = dict[str, Any]
Steps: TypeAlias = Sequence[tuple[int, Step]]
"""A program: each step with the number by which later ones name its result."""

DRIVER = (
    "literals",
    *(f"steps/{name}" for name in ("operators", "shipping", "calls", "references", "replay", "kept", "mutants", "driver")),
)
"""Modules whose texts are the program in the sandbox."""
RECORDER = (
    *("literals", "steps/operators", "steps/shipping", "steps/harness", "steps/origins", "steps/entered"),
    *("steps/references", "steps/passed_on", "steps/recorder"),
)
"""Modules whose texts record what tests do."""
_CPU_S, _WALL_S = 2.0, 10.0
"""Limits of one program when it judges."""
_GOLD_CPU_S, _GOLD_WALL_S = 0.5, 3.0
"""Limits of one program on the gold code: less, so that a slower machine does not turn right into wrong."""
_LONGER, _LEAST_CPU_S = 5.0, 0.1
"""A mutant that takes so many times the gold code's CPU-seconds, and at least so many, has no end."""


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
    texts = [text_of(name) for name in RECORDER]
    run, seen = runner.run_observed(tree, {"programs": texts, "options": {"sources": list(sources)}}, tests)
    found = seen or {"steps": [], "facts": []}
    facts = [(test, touching, kind) for test, touching, kind in found["facts"]]
    return run, Recording(steps=found["steps"], facts=facts)


def watch_calls(
    runner: CodeRunner, tree: Tree, *, sources: Sequence[str], tests: Sequence[str] = ()
) -> tuple[Mapping[str, Sequence[int]], bool]:
    """Run all tests of a tree, and return the calls that are made meanwhile of each function of `sources`
    (`steps.calls.call_of`), by `path::name`, and whether these are all. There are none when the run ends early.

    Raises:
        SandboxError: the sandbox broke.
    """
    texts = [text_of(name) for name in ("steps/calls", "steps/watcher")]
    _, seen = runner.run_observed(tree, {"programs": texts, "options": {"sources": list(sources)}}, tests)
    return (seen["calls"], seen["whole"]) if seen else ({}, False)


def examine_programs(
    runner: CodeRunner,
    tree: Tree,
    programs: Sequence[Steps],
    *,
    lines: bool = False,
    known: Mapping[str, Sequence[int]] | None = None,
    hash_seed: int = 0,
) -> list[dict[str, Any] | None]:
    """Do programs over trusted code, and report what each answered and ran (`steps.replay.examine`).

    Args:
        lines: report calls and lines too.
        known: calls that are not reported, by function. Where it is None, a call is reported of the first program that makes it.

    None stands for a program that did not get to its end; all are None when the sandbox ended early. Raises SandboxError.
    """
    request = {"mode": "examine", "lines": lines, "programs": list(programs), "known": known}
    answers = _ask(runner, tree, request, gold=True, hash_seed=hash_seed)[1]
    return answers if answers is not None and len(answers) == len(programs) else [None] * len(programs)


def answers_again(
    runner: CodeRunner, tree: Tree, programs: Sequence[Steps], expected: Sequence[Sequence[Any] | None], *, hash_seed: int
) -> list[Sequence[Any] | None]:
    """Return the answers of programs over trusted code that gave the `expected` ones before, in another interpreter; one that is
    expected to give none is not done.

    None stands for a program that did not get to its end; all are None when the sandbox ended early. Raises SandboxError.
    """
    request = {"mode": "again", "programs": list(programs), "expected": list(expected)}
    answers = _ask(runner, tree, request, gold=True, hash_seed=hash_seed)[1]
    if answers is None or len(answers) != len(programs):
        return [None] * len(programs)
    return [before if answer is True else answer for before, answer in zip(expected, answers, strict=True)]


class KnownProgram(Protocol):
    """A program, what the gold code answers, and the CPU-seconds that it took."""

    @property
    def steps(self) -> Steps: ...

    @property
    def expected(self) -> Sequence[Any]: ...

    @property
    def cpu_s(self) -> float: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherBody:
    """A line of code in the place of one function's body, or in front of it."""

    path: str
    qualname: str
    def_line: int
    """1-based, as are those of the body's lines."""
    first_line: int
    last_line: int
    indent: str
    text: str
    """One line."""
    known: Sequence[int] | None = None
    """Calls of the function (`steps.calls.call_of`) that are answered as the gold code does, as if by heart; the line is for all
    others. None has it answer every call."""
    in_front: bool = False
    """Keep the function's own body behind the line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """The gold code with other bodies of some functions, and the programs that it is tried on, by number, in order."""

    bodies: Sequence[OtherBody]
    numbers: Sequence[int]
    most: int
    """Stop after this many programs that kill it: it answers them wrongly."""
    least: int = 1
    """It survives when fewer programs than this kill it."""
    found_first: bool = False
    """Begin with the programs that kill the mutants of the same functions before this one, all of them."""


def kills_of(
    runner: CodeRunner, tree: Tree, programs: Sequence[KnownProgram], mutants: Sequence[Mutant]
) -> list[list[int]] | None:
    """Return for each mutant the numbers of the programs that kill it: the gold code answers them as expected, and it does not.
    None do where it survives; all do where its file cannot be imported and it knows no call.

    Once a mutant survives, the others of the same functions are not tried, and get an empty list too. None when the sandbox ended
    early. Raises SandboxError.
    """
    request = {
        "mode": "mutants",
        "programs": [program.steps for program in programs],
        "expected": [program.expected for program in programs],
        "mutant_cpu_s": [max(_LEAST_CPU_S, _LONGER * program.cpu_s) for program in programs],
        "mutants": [asdict(mutant) for mutant in mutants],
    }
    answers = _ask(runner, tree, request, gold=True)[1]
    return answers if answers is not None and len(answers) == len(mutants) else None


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


def seen_failing(runner: CodeRunner, tree: Tree, programs: Sequence[HeldOutProgram]) -> list[int]:
    """Return the numbers of the programs whose answers were seen to be wrong: none when the sandbox ended early, which proves
    nothing of a check. Raises SandboxError."""
    wrong, ending = wrong_programs(runner, tree, programs)
    return wrong if ending is Ending.EXITED else []


def _ask(
    runner: CodeRunner, tree: Tree, request: Mapping[str, Any], *, gold: bool, hash_seed: int = 0
) -> tuple[Ending, list[Any] | None]:
    """Do programs over the tree without its tests, which say what some of them are to answer."""
    limits = {"cpu_s": _GOLD_CPU_S, "wall_s": _GOLD_WALL_S} if gold else {"cpu_s": _CPU_S, "wall_s": _WALL_S}
    env = {"PYTHONHASHSEED": str(hash_seed)} if hash_seed else {}
    result, answer = runner.ask(without_tests(tree), program_of(*DRIVER), {**request, **limits}, env, judged=not gold)
    return result.ending, answer if isinstance(answer, list) else None
