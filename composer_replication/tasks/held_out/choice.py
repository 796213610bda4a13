"""Programs chosen for one task: those that tell the gold code from every trivial body, or why there are none.

Visible tests are taken as forged. Each deleted function gets each trivial body (`languages.python.trivial`) in the place of its
own, the others keep theirs, so a program that leaves one function of several out fails as well.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass, replace

from composer_replication.languages.python.delete import STUB
from composer_replication.languages.python.functions import Function
from composer_replication.languages.python.trivial import trivial_bodies
from composer_replication.sandbox.grading.programs import BodyTrial, try_bodies, wrong_programs
from composer_replication.sandbox.grading.pytest_run import CodeRunner
from composer_replication.sandbox.protocol import Tree
from composer_replication.tasks.held_out.book import HiddenBook, ObservedProgram
from composer_replication.types.held_out_checks import HeldOutChecks, HeldOutProgram

_POOL = 48
"""Programs that a body is tried on, per function."""
_BITES = 1
"""Programs that have to tell a body from the gold code before the next body is tried. Each body begins at another program, the
stub with those that tell the others."""
_FEWEST, _FEWEST_ANSWERS = 4, 2
"""Programs of a function, and different lists of answers among them, below which the programs are no evidence."""
_KEPT, _ANTI_PER_TASK = 16, 6
"""Programs of a function and anti-tests of a task that are kept. More than tell the trivial bodies apart: a replay costs
milliseconds, and a body that no build tries has to satisfy them all."""
_STARTS = 8
"""Places of the pool at which bodies begin in turns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Trials:
    """The bodies of one function and the programs they are tried on."""

    function: Function
    pool: list[int]
    bodies: list[str]
    trials: list[BodyTrial]
    """One of each body."""


def choose_proven(
    book: HiddenBook,
    functions: Sequence[Function],
    failing: Set[str],
    *,
    runner: CodeRunner,
    gold: Tree,
    task: Tree,
    seed: str,
) -> HeldOutChecks:
    """Choose checks as `choose_checks` does, whose programs all fail on the task's own tree.

    A program that does not is no evidence, and without it some trivial body may be told by none: where one was chosen, all that
    run the functions are done on that tree, and the choice is made again among those that fail.

    Args:
        task: the tree without the feature.

    Raises:
        SandboxError: the sandbox broke.
    """
    checks = choose_checks(book, functions, failing, runner=runner, gold=gold, seed=seed)
    proven = prove_programs(checks, runner, task)
    if checks.weakness or proven == checks:  # a choice among fewer programs is no stronger
        return proven
    keys = {function.key for function in functions}
    running = [program for program in book.programs if program.entered & keys]
    wrong = wrong_programs(runner, task, [_held_out(program, "") for program in running])[0]
    book = replace(book, programs=[running[number] for number in wrong])
    return prove_programs(choose_checks(book, functions, failing, runner=runner, gold=gold, seed=seed), runner, task)


def choose_checks(
    book: HiddenBook,
    functions: Sequence[Function],
    failing: Set[str],
    *,
    runner: CodeRunner,
    gold: Tree,
    seed: str,
) -> HeldOutChecks:
    """Choose checks for a task that deletes `functions` and whose fail-to-pass tests are `failing`; deterministic in `seed`.

    Args:
        gold: the tree with the feature.

    Raises:
        SandboxError: the sandbox broke.
    """
    rng = random.Random(seed)
    names = {test_id.partition("[")[0] for test_id in failing}
    anti_tests = [test for test in book.anti_tests if test.test in names]
    rng.shuffle(anti_tests)
    groups = [_trials_of(function, book.programs, rng) for function in functions]
    numbers = sorted({number for group in groups for number in group.pool})
    place = {number: at for at, number in enumerate(numbers)}
    trials = [replace(trial, numbers=[place[number] for number in trial.numbers]) for group in groups for trial in group.trials]
    answers = try_bodies(runner, gold, [book.programs[number] for number in numbers], trials) if numbers else []
    if answers is None:
        return HeldOutChecks(anti_tests=tuple(anti_tests[:_ANTI_PER_TASK]), weakness="trivial bodies could not be tried in time")
    found = iter([[numbers[at] for at in wrong] for wrong in answers])
    chosen: list[HeldOutProgram] = []
    weakness = "" if groups else "its solution changes no function"
    for group in groups:
        wrong = [next(found) for _ in group.trials]
        programs, why = _chosen(group, wrong, book.programs)
        chosen += [program for program in programs if program.steps not in {other.steps for other in chosen}]
        weakness = weakness or why
    return HeldOutChecks(programs=tuple(chosen), anti_tests=tuple(anti_tests[:_ANTI_PER_TASK]), weakness=weakness)


def _trials_of(function: Function, programs: Sequence[ObservedProgram], rng: random.Random) -> _Trials:
    """Order the programs that run a function, and start each body at another of them: first those that together run all its lines
    that any does, then new and recorded ones in turns."""
    running = [number for number, program in enumerate(programs) if function.key in program.entered]
    rng.shuffle(running)
    running.sort(key=lambda number: len(programs[number].steps))
    pool = _covering(function, running, programs)
    halves = [[n for n in running if programs[n].seen is seen and n not in pool][: _POOL // 2] for seen in (False, True)]
    pool = [*pool, *(number for turn in _in_turns(halves) for number in turn)][:_POOL]
    bodies = [*(body for body in trivial_bodies(function) if body != STUB), STUB] if pool else []
    trials = []
    for number, body in enumerate(bodies):
        start = 0 if body == STUB else number % min(len(pool), _STARTS)
        trials.append(
            BodyTrial(
                path=function.path,
                qualname=function.qualname,
                def_line=function.def_line,
                first_line=function.first_line,
                last_line=function.last_line,
                indent=function.indent.decode(),
                text=body,
                numbers=pool[start:] + pool[:start],
                most=_KEPT if body == STUB else _BITES,
                found_first=body == STUB,
            )
        )
    return _Trials(function=function, pool=pool, bodies=bodies, trials=trials)


def _covering(function: Function, numbers: Sequence[int], programs: Sequence[ObservedProgram]) -> list[int]:
    """Return those of the numbers, short programs first, whose programs run a line of the function that none before them runs."""
    found, known = [], set[int]()
    for number in numbers:
        lines = programs[number].lines.get(function.path, ())
        new = {line for line in lines if function.first_line <= line <= function.last_line} - known
        if new:
            known |= new
            found.append(number)
    return found


def _in_turns(halves: Sequence[Sequence[int]]) -> Iterable[list[int]]:
    for at in range(max(map(len, halves), default=0)):
        yield [half[at] for half in halves if at < len(half)]


def _chosen(
    group: _Trials, wrong: Sequence[Sequence[int]], programs: Sequence[ObservedProgram]
) -> tuple[list[HeldOutProgram], str]:
    """Return programs of one function that tell every body and fail on its stub, and why they are no evidence."""
    name = group.function.qualname
    if not group.pool:
        return [], f"no held-out program runs it: {name}"
    passing = next((body for body, found in zip(group.bodies, wrong, strict=True) if not found), None)
    if passing is None:  # the stub, which comes last, was tried: a program that it satisfies is none
        wrong = [[number for number in found if number in wrong[-1]] for found in wrong]
        passing = next((body for body, found in zip(group.bodies, wrong, strict=True) if not found), None)
    chosen = list(dict.fromkeys(number for found in wrong[:-1] for number in found))
    chosen += [number for number in wrong[-1] if number not in chosen][: max(_KEPT - len(chosen), 0)]
    held = [_held_out(programs[number], group.function.key) for number in chosen]
    if passing is not None:
        return held, f"a trivial body satisfies its held-out programs: `{passing}` in {name}"
    if len(held) < _FEWEST or len({program.expected for program in held}) < _FEWEST_ANSWERS:
        return held, f"few held-out programs tell trivial bodies from it: {len(held)} of {name}"
    return held, ""


def _held_out(program: ObservedProgram, uses: str) -> HeldOutProgram:
    return HeldOutProgram(steps=json.dumps(program.steps), expected=json.dumps(program.expected), uses=uses, seen=program.seen)


def prove_programs(checks: HeldOutChecks, runner: CodeRunner, tree: Tree) -> HeldOutChecks:
    """Keep the checks whose programs fail on a task's own tree. Those that remain may be too few to be evidence. Raises
    SandboxError."""
    if not checks.programs:
        return checks
    wrong = set(wrong_programs(runner, tree, checks.programs)[0])
    return without_broken(checks, (number for number in range(len(checks.programs)) if number not in wrong))


def without_broken(checks: HeldOutChecks, broken: Iterable[int]) -> HeldOutChecks:
    """Drop the checks numbered as in `GradeReport.hidden_broken`. Those that remain may be too few to be evidence."""
    lost, first = set(broken), len(checks.programs)
    programs = tuple(program for number, program in enumerate(checks.programs) if number not in lost)
    few = "some held-out programs did not hold" if len(programs) < first else ""
    return replace(
        checks,
        programs=programs,
        anti_tests=tuple(test for number, test in enumerate(checks.anti_tests, first) if number not in lost),
        weakness=checks.weakness or few,
    )


def numbers_of(checks: HeldOutChecks) -> dict[str, int]:
    """Return the counts for a task's `provenance`."""
    new = sum(not program.seen for program in checks.programs)
    return {"held_out_programs": len(checks.programs), "held_out_new": new, "anti_tests": len(checks.anti_tests)}
