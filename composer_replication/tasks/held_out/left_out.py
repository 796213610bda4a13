"""Parts of a solution outside of functions: which programs tell that one was left out, and of which functions they ask it.

A table, an enumeration's members, a class's bases, an import, a file of data: each is left out of the solved tree by itself. The
programs that then fail tell. They ask it of the functions that they run and others do not: one that everything runs says little.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path

from composer_replication.languages.functions import Function
from composer_replication.languages.python.changes import without_parts
from composer_replication.languages.python.functions import find_functions
from composer_replication.sandbox.grading.literals import OPAQUE
from composer_replication.sandbox.grading.programs import seen_failing
from composer_replication.sandbox.grading.pytest_run import CodeRunner
from composer_replication.sandbox.grading.steps.references import modules_of
from composer_replication.sandbox.protocol import Tree
from composer_replication.tasks.held_out.book import ObservedProgram
from composer_replication.tasks.held_out.choice import held_out
from composer_replication.types.held_out_checks import HeldOutChecks, HeldOutProgram

_MOST_PARTS = 16
"""Parts that are left out of a solution, one by one."""
_MOST_FUNCTIONS, _FEWEST_TOLD = 4, 4
"""Functions that are asked for one part, and programs that tell it which each but the first adds."""
_ASKED_ANYWAY = 3
"""Another function is taken instead of one that is asked anyway where it fits so many times as well."""
_KEPT = 4
"""Programs that tell a part, kept for it whatever the functions are asked."""


@dataclass(frozen=True, slots=True)
class Told:
    """Programs that tell whether one part of a solution is there, by number, and the path of a file that has it."""

    path: str
    programs: frozenset[int]


def find_told(
    programs: Sequence[ObservedProgram],
    changed: Sequence[Function],
    *,
    runner: CodeRunner,
    repo: Path,
    solved: Path,
    gold: Mapping[str, bytes],
) -> list[Told]:
    """Return what programs tell of the parts, each of them failing on the task's own tree; at the end what fails there, runs none
    of the changed functions and tells none of the parts. Those come too that nothing tells, and those beyond the sixteenth.

    A part without which a file cannot be imported does not come: whatever needs the file asks for it.

    Raises:
        SandboxError: the sandbox broke.
    """
    failing = sorted(_failing(programs, range(len(programs)), runner, Tree(base=repo))[0])
    if not failing:
        return []
    found = []
    parts = list(_parts(repo, gold))
    for path, changes in parts[:_MOST_PARTS]:
        wrong, unimportable = _failing(programs, failing, runner, Tree(base=solved, changes=changes))
        telling = frozenset(number for number in wrong if not unimportable.intersection(modules_of(programs[number].steps)))
        found += [Told(path, telling)] if telling or not wrong else []
    keys = {function.key for function in changed}
    found += [Told(path, frozenset()) for path, _ in parts[_MOST_PARTS:]]
    rest = {number for number in failing if not programs[number].entered & keys}.difference(*(told.programs for told in found))
    return found + ([Told(next(iter(gold)), frozenset(rest))] if rest else [])


def asked_of(
    told: Iterable[Told], programs: Sequence[ObservedProgram], changed: Sequence[Function], solved: Path
) -> list[Function]:
    """Return the functions to ask for the parts beside those that are changed: few, and those that the programs suggest."""
    running: dict[str, set[int]] = {}
    for number, program in enumerate(programs):
        for key in program.entered:
            running.setdefault(key, set()).add(number)
    functions = {function.key: function for function in _functions(running, solved)}
    asked = {function.key: function for function in changed}
    for one in told:
        left = set(one.programs)
        for taken in range(_MOST_FUNCTIONS):
            fits = {key: (_fit(running[key], left, key in asked), key.startswith(f"{one.path}::")) for key in functions}
            best = max(sorted(fits), key=fits.__getitem__, default="")
            if not best or len(running[best] & left) < (_FEWEST_TOLD if taken else 1):
                break
            asked[best] = functions[best]
            left -= running[best]
    return [function for function in asked.values() if function not in changed]


def _fit(running: Set[int], telling: Set[int], is_asked: bool) -> float:
    share = len(running & telling) / len(running | telling)
    return share * _ASKED_ANYWAY if is_asked else share


def with_told(checks: HeldOutChecks, told: Iterable[Told], programs: Sequence[ObservedProgram]) -> HeldOutChecks:
    """Add programs, those with new calls first, until some tell each part."""
    chosen = {program.steps: program for program in checks.programs}
    for one in told:
        written = [_written(programs[number], one.path) for number in sorted(one.programs)]
        missing = _KEPT - sum(program.steps in chosen for program in written)
        ranked = sorted((program for program in written if program.steps not in chosen), key=lambda program: -program.new_calls)
        chosen |= {program.steps: program for program in ranked[: max(missing, 0)]}
    return replace(checks, programs=tuple(chosen.values()))


def _written(program: ObservedProgram, path: str) -> HeldOutProgram:
    """Write a program down as one of the function that it calls anew most often, or of the file where it runs none."""
    return held_out(program, max(sorted(program.entered), key=lambda key: len(program.new_calls.get(key, ())), default=path))


def _parts(repo: Path, gold: Mapping[str, bytes]) -> Iterator[tuple[str, dict[str, bytes | None]]]:
    """Yield the path of the file of each part, and the changes that leave the part out of the solved tree: files of data, and
    then in turn one part of each module."""
    before = {path: (repo / path).read_bytes() if (repo / path).is_file() else None for path in gold}
    modules = [path for path in gold if path.endswith(".py")]
    yield from ((path, {path: content}) for path, content in before.items() if path not in modules)
    versions = [without_parts(path, before[path] or b"", gold[path]) for path in modules]
    for row in zip_longest(*versions):
        yield from ((path, {path: version}) for path, version in zip(modules, row, strict=True) if version is not None)


def _failing(
    programs: Sequence[ObservedProgram], numbers: Iterable[int], runner: CodeRunner, tree: Tree
) -> tuple[set[int], set[str]]:
    """Return the numbers of the programs that fail on a tree, and the modules they need which cannot be imported there."""
    tried = list(numbers)
    modules = sorted({name for number in tried for name in modules_of(programs[number].steps)})
    asked = [held_out(programs[number], "") for number in tried] + [_importing(name) for name in modules]
    wrong = seen_failing(runner, tree, asked)
    failing = {tried[number] for number in wrong if number < len(tried)}
    return failing, {modules[number - len(tried)] for number in wrong if number >= len(tried)}


def _importing(module: str) -> HeldOutProgram:
    steps = json.dumps([[0, {"do": "value", "of": ["module", module]}]])
    return HeldOutProgram(steps=steps, expected=json.dumps([["returns", OPAQUE]]), uses="", new_calls=0)


def _functions(keys: Iterable[str], solved: Path) -> Iterator[Function]:
    """Yield the functions with these keys."""
    wanted = set(keys)
    for path in sorted({key.partition("::")[0] for key in wanted}):
        if (solved / path).is_file():
            yield from (function for function in find_functions(path, (solved / path).read_bytes())[0] if function.key in wanted)
