"""Programs chosen for one task: those that kill every mutant of it, or why there are none.

Visible tests are taken as forged. A mutant has a trivial body (`languages.python.trivial`) in the place of a deleted function's
own: alone, or for those calls only that no test makes, while it answers all others as by heart. (A body of the second kind is
tried alone as well where it survives.) The other functions keep their bodies, so a submission that leaves one function of several
out fails too. A program kills a mutant that answers it wrongly.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass, replace

from composer_replication.languages.python.delete import STUB
from composer_replication.languages.python.functions import Function
from composer_replication.languages.python.trivial import bodies_by_heart, trivial_bodies
from composer_replication.sandbox.grading.programs import Mutant, kills_of, wrong_programs
from composer_replication.sandbox.grading.pytest_run import CodeRunner
from composer_replication.sandbox.protocol import Tree
from composer_replication.tasks.held_out.book import HiddenBook, ObservedProgram
from composer_replication.types.held_out_checks import HeldOutChecks, HeldOutProgram

_POOL = 48
"""Programs that a mutant is tried on, per function."""
_KILLS, _KILLS_BY_HEART = 1, 2
"""Programs that have to kill a mutant with a trivial body alone, and one with answers by heart, before the next is tried. Each of
the former begins at another program, the stub with those that kill the others."""
_FEWEST, _FEWEST_ANSWERS = 4, 2
"""Programs of a function, and different answers to their new calls of it, below which the programs are no evidence."""
_CONSTANTS = 4
"""Answers to new calls, the most frequent ones, that are bodies of mutants with answers by heart. Another constant would be wrong
for most of these calls."""
_KEPT, _ANTI_PER_TASK = 16, 6
"""Programs of a function and anti-tests of a task that are kept. More than kill the mutants: a replay costs milliseconds, and a
body that no build tries has to satisfy them all."""
_STARTS = 8
"""Places of the pool at which mutants begin in turns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tried:
    """The mutants of one function and the programs they are tried on."""

    function: Function
    pool: list[int]
    mutants: list[Mutant]
    """The stub is the last."""


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
    groups = [_mutants_of(function, book, rng) for function in functions]
    kills = _kills(runner, gold, book, [mutant for group in groups for mutant in group.mutants])
    if kills is None:
        return HeldOutChecks(anti_tests=tuple(anti_tests[:_ANTI_PER_TASK]), weakness="mutants could not be tried in time")
    found = iter(kills)
    chosen: list[HeldOutProgram] = []
    weakness = "" if groups else "its solution changes no function"
    for group in groups:
        programs, why = _chosen(group, [next(found) for _ in group.mutants], book.programs)
        chosen += [program for program in programs if program.steps not in {other.steps for other in chosen}]
        if isinstance(why, Mutant):
            why = _survival(why, group, runner, gold, book)
        weakness = weakness or why
    return HeldOutChecks(programs=tuple(chosen), anti_tests=tuple(anti_tests[:_ANTI_PER_TASK]), weakness=weakness)


def _mutants_of(function: Function, book: HiddenBook, rng: random.Random) -> _Tried:
    """Order the programs that run a function, and start each mutant at another of them: first those that together run all its
    lines that any does, then those that make new calls of it and the others in turns."""
    programs = book.programs
    running = [number for number, program in enumerate(programs) if function.key in program.entered]
    rng.shuffle(running)
    running.sort(key=lambda number: len(programs[number].steps))
    running = _mixed(running)
    pool = _covering(function, running, programs)
    rest = [number for number in running if number not in pool]
    new = [number for number in rest if function.key in programs[number].new_calls]
    old = [number for number in rest if function.key not in programs[number].new_calls]
    pool = [*pool, *(number for turn in _in_turns([new[: _POOL // 2], old[: _POOL // 2]]) for number in turn)][:_POOL]
    asking = [number for number in dict.fromkeys((*new, *pool)) if function.key in programs[number].new_calls][:_POOL]
    others = bodies_by_heart(function)
    behind = list(dict.fromkeys((*_constants(function, book, asking), *others)))
    trivial = [body for body in trivial_bodies(function) if body != STUB and body not in others]
    alone = [_mutant(function, body, _turned(pool, at), most=_KILLS) for at, body in enumerate(trivial)]
    known = book.known.get(function.key, ())
    by_heart = [
        replace(_mutant(function, body, asking, most=_KILLS_BY_HEART), least=_KILLS_BY_HEART, known=known) for body in behind
    ]
    stub = replace(_mutant(function, STUB, pool, most=_KEPT), found_first=True)
    return _Tried(function=function, pool=pool, mutants=[*alone, *by_heart, stub] if pool else [])


def _mutant(function: Function, body: str, numbers: Sequence[int], *, most: int) -> Mutant:
    return Mutant(
        path=function.path,
        qualname=function.qualname,
        def_line=function.def_line,
        first_line=function.first_line,
        last_line=function.last_line,
        indent=function.indent.decode(),
        text=body,
        numbers=numbers,
        most=most,
    )


def _turned(numbers: Sequence[int], at: int) -> list[int]:
    """Return the numbers from another one on, the first behind the last."""
    start = at % max(min(len(numbers), _STARTS), 1)
    return [*numbers[start:], *numbers[:start]]


def _constants(function: Function, book: HiddenBook, numbers: Sequence[int]) -> list[str]:
    """Return bodies that give the answers, and raise the exceptions, which are most frequent among new calls of the function."""
    new = Counter(answer for number in numbers for answer in book.programs[number].new_calls.get(function.key, ()))
    written = [answer for answer, _ in new.most_common() if answer is not None and not answer.startswith("#")]
    return [_raising(answer) if answer.startswith("!") else f"return {answer}" for answer in written[:_CONSTANTS]]


def _raising(answer: str) -> str:
    """Return a body that raises an exception, which `steps.calls.Calls` names."""
    module, _, name = answer.removeprefix("!").partition(":")
    return f"raise {name}" if module == "builtins" else f"raise __import__({module!r}, fromlist=['']).{name}"


def _covering(function: Function, numbers: Sequence[int], programs: Sequence[ObservedProgram]) -> list[int]:
    """Return those of the numbers whose programs run a line of the function that none before them runs."""
    found, known = [], set[int]()
    for number in numbers:
        lines = programs[number].lines.get(function.path, ())
        new = {line for line in lines if function.first_line <= line <= function.last_line} - known
        if new:
            known |= new
            found.append(number)
    return found


def _mixed(numbers: Sequence[int]) -> list[int]:
    """Order programs, which come by length, so that the shortest and such as are spread over the rest stand in turns: what a
    function does may not show in the shortest."""
    short, rest = numbers[: _POOL // 2], numbers[_POOL // 2 :]
    every = max(len(rest) // (_POOL // 2), 1)
    spread = [number for start in range(every) for number in rest[start::every]]
    return [number for turn in _in_turns([short, spread]) for number in turn]


def _in_turns(halves: Sequence[Sequence[int]]) -> Iterable[list[int]]:
    for at in range(max(map(len, halves), default=0)):
        yield [half[at] for half in halves if at < len(half)]


def _chosen(
    group: _Tried, kills: Sequence[Sequence[int]], programs: Sequence[ObservedProgram]
) -> tuple[list[HeldOutProgram], str | Mutant]:
    """Return programs of one function that kill every mutant and its stub, and why they are no evidence: such as a mutant that
    survives."""
    name, key = group.function.qualname, group.function.key
    if not group.pool:
        return [], f"no held-out program runs it: {name}"
    surviving = _surviving(group, kills)
    if surviving is None:  # the stub, which comes last, was tried: a program that it satisfies is none
        kills = [[number for number in found if number in kills[-1]] for found in kills]
        surviving = _surviving(group, kills)
    chosen = list(dict.fromkeys(number for found in kills[:-1] for number in found))
    chosen += [number for number in kills[-1] if number not in chosen][: max(_KEPT - len(chosen), 0)]
    held = [_held_out(programs[number], key) for number in chosen]
    if surviving is not None:
        return held, surviving
    if len(held) < _FEWEST:
        return held, f"few held-out programs kill its mutants: {len(held)} of {name}"
    answers = {answer for number in chosen for answer in programs[number].new_calls.get(key, ())}
    if len(answers) < _FEWEST_ANSWERS and not answers <= {None, "None"}:
        return held, f"its held-out programs ask for one answer alone: {name}"
    return held, ""


def _survival(mutant: Mutant, group: _Tried, runner: CodeRunner, gold: Tree, book: HiddenBook) -> str:
    """Say which mutant survives: the one without answers by heart, where that does as well. Raises SandboxError."""
    name = group.function.qualname
    alone = replace(mutant, known=None, numbers=group.pool, most=_KILLS, least=_KILLS)
    if mutant.known is None or _kills(runner, gold, book, [alone]) == [[]]:
        return f"a trivial body satisfies its held-out programs: `{mutant.text}` in {name}"
    return f"the tests' answers by heart satisfy its held-out programs: otherwise `{mutant.text}` in {name}"


def _kills(runner: CodeRunner, gold: Tree, book: HiddenBook, mutants: Sequence[Mutant]) -> list[list[int]] | None:
    """Return for each mutant the programs of the book that kill it (`kills_of`). Raises SandboxError."""
    numbers = sorted({number for mutant in mutants for number in mutant.numbers})
    place = {number: at for at, number in enumerate(numbers)}
    mutants = [replace(mutant, numbers=[place[number] for number in mutant.numbers]) for mutant in mutants]
    programs = [book.programs[number] for number in numbers]
    found = kills_of(runner, gold, programs, mutants) if numbers else [[] for _ in mutants]
    return None if found is None else [[numbers[at] for at in killing] for killing in found]


def _surviving(group: _Tried, kills: Sequence[Sequence[int]]) -> Mutant | None:
    """Return the first mutant that too few programs kill."""
    pairs = zip(group.mutants, kills, strict=True)
    return next((mutant for mutant, found in pairs if len(found) < mutant.least), None)


def _held_out(program: ObservedProgram, uses: str) -> HeldOutProgram:
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
    new = sum(program.new_calls > 0 for program in checks.programs)
    return {"held_out_programs": len(checks.programs), "held_out_new": new, "anti_tests": len(checks.anti_tests)}
