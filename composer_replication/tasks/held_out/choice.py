"""Programs chosen for one task: those that kill every mutant of it (`tasks.held_out.mutants`), or why there are none.

Visible tests are taken as forged. A program kills a mutant that answers it wrongly. The functions that a mutant leaves alone keep
their bodies, so a submission that leaves one function of several out fails too.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any

from composer_replication.languages.functions import Function
from composer_replication.sandbox.grading.languages import seen_failing
from composer_replication.sandbox.grading.programs import KnownProgram, Mutant, Steps, kills_of
from composer_replication.sandbox.grading.pytest_run import CodeRunner
from composer_replication.sandbox.grading.steps.kept import MISSING, given_back_by, is_accomplice
from composer_replication.sandbox.protocol import Tree
from composer_replication.tasks.held_out.accomplices import accomplices_of
from composer_replication.tasks.held_out.book import SLOW_S, HiddenBook, ObservedProgram
from composer_replication.tasks.held_out.mutants import KEPT, KILLS, Tried, joint_mutants, joint_mutants_of, longer_of, mutants_of
from composer_replication.types.held_out_checks import HeldOutChecks, HeldOutProgram

_FEWEST, _FEWEST_ANSWERS = 4, 2
"""Programs of a function, and different answers to their new calls of it, below which the programs are no evidence."""
_ROUNDS = 3
"""Times that mutants are tried again, on programs other than those that the stub satisfies."""
_LONGEST_NAMED = 240
"""Characters of a body that are said."""
_MOST_NAMED = 4
"""Accomplices that are named."""
_ANTI_PER_TASK = 6
"""Anti-tests of a task that are kept."""


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

    A program that does not is no evidence, and without it some mutant may survive: where one was chosen, all that
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
    book = replace(book, programs=failing_programs(book, functions, runner, task))
    return prove_programs(choose_checks(book, functions, failing, runner=runner, gold=gold, seed=seed), runner, task)


def failing_programs(book: HiddenBook, functions: Sequence[Function], runner: CodeRunner, tree: Tree) -> list[ObservedProgram]:
    """Return the programs that run one of the functions and fail on a tree. Raises SandboxError."""
    keys = {function.key for function in functions}
    running = [program for program in book.programs if program.entered & keys]
    return [running[number] for number in seen_failing(runner, tree, [held_out(program, "") for program in running])]


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
    groups = [mutants_of(function, book, rng) for function in functions]
    several = [*joint_mutants_of(groups, book), *accomplices_of(groups, book, gold)]
    kills = _kills(runner, gold, book.programs, [mutant for group in (*groups, *several) for mutant in group.mutants])
    if kills is None:
        return HeldOutChecks(anti_tests=tuple(anti_tests[:_ANTI_PER_TASK]), weakness="mutants could not be tried in time")
    found = iter(kills)
    chosen: dict[str, HeldOutProgram] = {}
    weakness = "" if groups else "its solution changes no function"
    for group in (*groups, *several):
        killing = [next(found) for _ in group.mutants]
        if not group.together:
            programs, why = _chosen(group, _tried_again(group, killing, runner, gold, book), book.programs)
        else:
            programs, why = _chosen_together(group, killing, book.programs)
        for program in programs:
            chosen.setdefault(program.steps, program)
        if isinstance(why, Mutant):
            why = _survival(why, group, runner, gold, book)
        weakness = weakness or why
    return HeldOutChecks(programs=tuple(chosen.values()), anti_tests=tuple(anti_tests[:_ANTI_PER_TASK]), weakness=weakness)


def _tried_again(group: Tried, kills: list[list[int]], runner: CodeRunner, gold: Tree, book: HiddenBook) -> list[list[int]]:
    """Return the programs that kill each mutant of one function, after more trials where they may turn out to be too few.

    A program that the stub satisfies is not chosen, whatever else it kills. Mutants that lose a program in this way are tried
    on those that are left. Raises SandboxError.
    """
    satisfied: set[int] = set()
    for _ in range(_ROUNDS if kills and _surviving(group, kills) is None else 0):
        failing = {*kills[-1]}
        more = {number for found in kills for number in found} - failing - satisfied
        pairs = enumerate(zip(group.mutants, kills, strict=True))
        lost = [at for at, (mutant, found) in pairs if len(failing.intersection(found)) < mutant.least]
        if not (more and lost):
            break
        satisfied |= more
        others = [
            replace(one, numbers=[n for n in one.numbers if n not in satisfied]) for one in (group.mutants[at] for at in lost)
        ]
        again = _kills(runner, gold, book.programs, [*others, replace(group.mutants[-1], numbers=[], most=0)])
        if again is None:
            break
        kills = [*kills[:-1], [*kills[-1], *(number for number in again[-1] if number not in failing)]]
        for at, found in zip(lost, again[:-1], strict=True):
            kills[at] = [*kills[at], *found]
    return kills


def _chosen(
    group: Tried, kills: Sequence[Sequence[int]], programs: Sequence[ObservedProgram]
) -> tuple[list[HeldOutProgram], str | Mutant]:
    """Return programs of one function that kill every mutant and its stub, and why they are no evidence: such as a mutant that
    survives."""
    name, key = group.functions[0].qualname, group.functions[0].key
    if not group.pool:
        return [], f"no held-out program runs it: {name}"
    surviving = _surviving(group, kills)
    if surviving is None:  # the stub, which comes last, was tried: a program that it satisfies is none
        kills = [[number for number in found if number in kills[-1]] for found in kills]
        surviving = _surviving(group, kills)
    chosen = list(dict.fromkeys(number for found in kills[:-1] for number in found))
    chosen += [number for number in longer_of(group.functions[0], kills[-1], programs) if number not in chosen]
    chosen += [number for number in kills[-1] if number not in chosen][: max(KEPT - len(chosen), 0)]
    held = [held_out(programs[number], key) for number in chosen]
    if surviving is not None:
        return held, surviving
    if len(held) < _FEWEST:
        return held, f"few held-out programs kill its mutants: {len(held)} of {name}"
    answers = {answer for number in chosen for answer in programs[number].new_calls.get(key, ())}
    if len(answers) < _FEWEST_ANSWERS and not answers <= {None, "None"}:
        return held, f"its held-out programs ask for one answer alone: {name}"
    return held, ""


def _chosen_together(
    group: Tried, kills: Sequence[Sequence[int]], programs: Sequence[ObservedProgram]
) -> tuple[list[HeldOutProgram], str | Mutant]:
    """Do `_chosen` for mutants of several functions, whose programs are enough for each."""
    keys = [function.key for function in group.functions]
    numbers = dict.fromkeys(number for found in kills for number in found)
    held = [held_out(programs[number], next(key for key in keys if key in programs[number].entered)) for number in numbers]
    return held, _surviving(group, kills) or ""


def _survival(mutant: Mutant, group: Tried, runner: CodeRunner, gold: Tree, book: HiddenBook) -> str:
    """Say which mutant survives: the one without answers by heart, where that does as well. Raises SandboxError."""
    alone = replace(
        mutant, bodies=[replace(body, known=None) for body in mutant.bodies], numbers=group.pool, most=KILLS, least=KILLS
    )
    by_heart = mutant.bodies != alone.bodies
    if by_heart and any(_kills(runner, gold, book.programs, [alone]) or []):
        return f"the tests' answers by heart satisfy its held-out programs: otherwise {_named(mutant)}"
    return f"{_trivial(mutant)} its held-out programs: {_named(mutant)}"


def _trivial(mutant: Mutant) -> str:
    return "a trivial body satisfies" if len(mutant.bodies) == 1 else "trivial bodies of several functions satisfy"


def _named(mutant: Mutant) -> str:
    given_back = next(filter(None, (given_back_by(body.text) for body in mutant.bodies)), "")
    if given_back:
        names = ", ".join(body.qualname for body in mutant.bodies if given_back_by(body.text))
        beside = [body.qualname for body in mutant.bodies if is_accomplice(body.text)][:_MOST_NAMED]
        missing = [body.qualname for body in mutant.bodies if body.text == MISSING]
        without = f" without {', '.join(missing)}" if missing else ""
        with_others = f", where {', '.join(beside)} may be rewritten" if beside else ""
        return f"arguments are checked and kept, and {given_back}, in {names}{without}{with_others}"
    return ", ".join(f"`{_shortened(body.text)}` in {body.qualname}" for body in mutant.bodies)


def _shortened(text: str) -> str:
    return text if len(text) <= _LONGEST_NAMED else f"{text[:_LONGEST_NAMED]}..."


def _kills(runner: CodeRunner, gold: Tree, programs: Sequence[KnownProgram], mutants: Sequence[Mutant]) -> list[list[int]] | None:
    """Return for each mutant the programs that kill it (`kills_of`). Raises SandboxError."""
    numbers = sorted({number for mutant in mutants for number in mutant.numbers})
    place = {number: at for at, number in enumerate(numbers)}
    mutants = [replace(mutant, numbers=[place[number] for number in mutant.numbers]) for mutant in mutants]
    found = kills_of(runner, gold, [programs[number] for number in numbers], mutants) if numbers else [[] for _ in mutants]
    return None if found is None else [[numbers[at] for at in killing] for killing in found]


def _surviving(group: Tried, kills: Sequence[Sequence[int]]) -> Mutant | None:
    """Return the first mutant that too few programs kill."""
    pairs = zip(group.mutants, kills, strict=True)
    return next((mutant for mutant, found in pairs if len(found) < mutant.least), None)


def held_out(program: ObservedProgram, uses: str) -> HeldOutProgram:
    """Write a program down as one that is chosen for `uses`."""
    return HeldOutProgram(
        steps=json.dumps(program.steps),
        expected=json.dumps(program.expected),
        uses=uses,
        new_calls=len(program.new_calls.get(uses, ())),
    )


def prove_programs(checks: HeldOutChecks, runner: CodeRunner, tree: Tree) -> HeldOutChecks:
    """Keep the checks whose programs fail on a task's own tree. Those that remain may be too few to be evidence. Raises
    SandboxError."""
    if not checks.programs:
        return checks
    wrong = set(seen_failing(runner, tree, checks.programs))
    return without_broken(checks, (number for number in range(len(checks.programs)) if number not in wrong))


def joint_weakness(programs: Sequence[HeldOutProgram], functions: Sequence[Function], runner: CodeRunner, gold: Tree) -> str:
    """Return the trivial bodies of all these functions at once that satisfy the programs, or those that make new calls; empty
    where none do. Raises SandboxError."""
    asking = [number for number, program in enumerate(programs) if program.new_calls]
    written = [_Written(program) for program in programs]
    mutants = joint_mutants(functions, range(len(programs)), asking, written)
    kills = _kills(runner, gold, written, mutants)
    if kills is None:
        return "mutants could not be tried in time"
    mutant = next((mutant for mutant, found in zip(mutants, kills, strict=True) if not found), None)
    return "" if mutant is None else f"{_trivial(mutant)} its held-out programs: {_named(mutant)}"


@dataclass(frozen=True)
class _Written:
    """A program of a task, read back. What it took the gold code is not written down: the most that counts is."""

    program: HeldOutProgram
    cpu_s: float = SLOW_S

    @property
    def steps(self) -> Steps:
        steps: Steps = json.loads(self.program.steps)
        return steps

    @property
    def expected(self) -> Sequence[Any]:
        expected: Sequence[Any] = json.loads(self.program.expected)
        return expected


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
    new = sum(program.new_calls > 0 for program in checks.programs)
    return {"held_out_programs": len(checks.programs), "held_out_new": new, "anti_tests": len(checks.anti_tests)}
