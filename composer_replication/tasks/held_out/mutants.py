"""Mutants of a task's functions, and the programs that each is tried on.

A mutant has a trivial body (`languages.python.trivial`) in the place of a function's own: alone, or for those calls only that no
test makes, while it answers all others as by heart. Where a task deletes several functions, other mutants have trivial bodies in
all of them, or in two: functions that undo each other, such as `pack` and `unpack`, may be asked only together. Some of these
mutants check their arguments as the functions do (`steps.kept`). A submission may rewrite functions that no task deletes as
well, so those that programs call beside a deleted one are tried as its accomplices (`tasks.held_out.accomplices`). Where tests
ask texts for no more than what is in them, bodies give all that is asked at once. Others again keep the body and
cut an argument short.
"""

from __future__ import annotations

import itertools
import json
import random
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any, Protocol

from composer_replication.languages.functions import Function
from composer_replication.languages.python.delete import STUB
from composer_replication.languages.python.trivial import (
    Asked,
    asked_bodies,
    bodies_by_heart,
    common_start,
    joint_bodies,
    joint_bodies_by_heart,
    shortened,
    trivial_bodies,
)
from composer_replication.sandbox.grading.programs import Mutant, OtherBody
from composer_replication.sandbox.grading.steps.kept import GIVEN_BACK, keeping
from composer_replication.tasks.held_out.book import HiddenBook, ObservedProgram

_POOL = 48
"""Programs that a mutant is tried on, per function."""
KILLS, _KILLS_BY_HEART = 1, 2
"""Programs that have to kill a mutant with a trivial body alone, and one with answers by heart, before the next is tried. Each of
the former begins at another program, the stub with those that kill the others."""
_CONSTANTS, _JOINT_CONSTANTS = 4, 2
"""Answers to new calls, the most frequent ones, that are bodies of mutants with answers by heart. Another constant would be wrong
for most of these calls."""
KEPT = 16
"""Programs of a function that are kept. More than kill the mutants: a replay costs milliseconds, and a body that no build tries
has to satisfy them all."""
_LONGER = 3
"""Programs with longer arguments, or more, that are kept of a function."""
_STARTS = 8
"""Places of the pool at which mutants begin in turns."""
_SPECIAL = frozenset(".^$*+?{}[]|()")
"""Characters by which a pattern is more than a text."""
_MOST_PAIRS = 10
"""Pairs of functions whose bodies are trivial at once, where a task deletes more than two."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """The mutants of one function, or of several at once, and the programs they are tried on."""

    functions: Sequence[Function]
    pool: list[int]
    asking: list[int]
    """Those that make new calls."""
    asked: str = ""
    """All that tests ask texts for, in one text."""
    mutants: list[Mutant]
    """Of one function, the stub is the last."""
    together: bool = False
    """The mutants have other bodies in several functions."""


class Asking(Protocol):
    """A program, and what the gold code answers."""

    @property
    def steps(self) -> Sequence[tuple[int, dict[str, Any]]]: ...

    @property
    def expected(self) -> Sequence[Any]: ...


def mutants_of(function: Function, book: HiddenBook, rng: random.Random) -> Tried:
    """Order the programs that run a function, and start each mutant at another of them: first those that together run all its
    lines that any does, then those that make new calls of it and the others in turns."""
    programs = book.programs
    running = [number for number, program in enumerate(programs) if function.key in program.entered]
    rng.shuffle(running)
    running.sort(key=lambda number: len(programs[number].steps))
    running = _mixed(running)
    pool = list(dict.fromkeys([*_covering(function, running, programs), *longer_of(function, running, programs)]))
    rest = [number for number in running if number not in pool]
    new = [number for number in rest if function.key in programs[number].new_calls]
    old = [number for number in rest if function.key not in programs[number].new_calls]
    pool = [*pool, *_in_turns([new[: _POOL // 2], old[: _POOL // 2]])][:_POOL]
    asking = [number for number in dict.fromkeys((*new, *pool)) if function.key in programs[number].new_calls][:_POOL]
    all_asked, undenied = asked_of(function, programs)
    texts = [*asked_bodies(function, undenied), *asked_bodies(function, all_asked)]
    by_arguments = (*bodies_by_heart(function), *texts)  # whose mutants answer no less than those with the same body alone
    behind = list(dict.fromkeys((*_constants(function, book, asking, _CONSTANTS), *by_arguments)))
    trivial = [body for body in trivial_bodies(function) if body != STUB and body not in by_arguments]
    alone = [alone_of([function], [body], _turned(pool, at)) for at, body in enumerate(trivial)]
    by_heart = [by_heart_of([function], [body], asking, book.known) for body in behind]
    cut = [_cut(function, line, asking) for line in shortened(function)]
    stub = Mutant(bodies=[other_body(function, STUB)], numbers=pool, most=KEPT, found_first=True)
    mutants = [*alone, *by_heart, *cut, stub] if pool else []
    return Tried(functions=[function], pool=pool, asking=asking, asked=undenied.text, mutants=mutants)


def longer_of(function: Function, numbers: Iterable[int], programs: Sequence[ObservedProgram]) -> list[int]:
    """Return the numbers of the longest few programs that ask a function for longer arguments, or more, than the tests have."""
    longer = [number for number in numbers if programs[number].longer and function.key in programs[number].new_calls]
    return sorted(longer, key=lambda number: -len(json.dumps(programs[number].steps)))[:_LONGER]


def joint_mutants_of(tried: Sequence[Tried], book: HiddenBook) -> list[Tried]:
    """Return mutants of all functions at once, and of pairs of them; none of a single one."""
    found = []
    for some in _several(tried):
        functions = [one.functions[0] for one in some]
        pool, asking = list(_in_turns([one.pool for one in some])), list(_in_turns([one.asking for one in some]))
        pool, asking = list(dict.fromkeys(pool))[:_POOL], list(dict.fromkeys(asking))[:_POOL]
        constants = [_constants(one.functions[0], book, one.asking, _JOINT_CONSTANTS) for one in some]
        keeping_all = _keeping([one.asked for one in some])
        behind = [*joint_bodies_by_heart(functions), *keeping_all, *zip(*constants, strict=False)]
        by_heart = [by_heart_of(functions, bodies, asking, book.known) for bodies in behind]
        mutants = [*_joint(functions, keeping_all, pool), *by_heart]
        found.append(Tried(functions=functions, pool=pool, asking=asking, mutants=mutants, together=True))
    return found


def joint_mutants(
    functions: Sequence[Function], numbers: Sequence[int], asking: Sequence[int], programs: Sequence[Asking]
) -> list[Mutant]:
    """Return mutants with trivial bodies of all these functions at once, where the tests' calls are not known: those that would
    answer them by heart are tried on nothing but the programs numbered `asking`, which make new calls."""
    asked = _asked(programs, programs, denied=_denied(programs)).text
    keeping_all = _keeping([asked] * len(functions))
    behind = [
        replace(alone_of(functions, texts, asking), most=_KILLS_BY_HEART, least=_KILLS_BY_HEART)
        for texts in (*joint_bodies_by_heart(functions), *keeping_all)
    ]
    return [*_joint(functions, keeping_all, numbers), *behind]


def _joint(functions: Sequence[Function], keeping_all: Sequence[Sequence[str]], numbers: Sequence[int]) -> list[Mutant]:
    texts_of_all = (*joint_bodies(functions), *keeping_all)
    return [alone_of(functions, texts, _turned(numbers, at)) for at, texts in enumerate(texts_of_all)]


def _keeping(asked: Sequence[str]) -> list[Sequence[str]]:
    """Return bodies that raise what functions raise, keep what the others are given, and give it back, in every way, where the
    functions' texts are asked for something."""
    return [[keeping(which, text) for text in asked] for which in GIVEN_BACK]


def asked_of(function: Function, programs: Sequence[ObservedProgram]) -> tuple[Asked, Asked]:
    """Return what the tests ask of texts for which a function runs: all of it, and what no program finds missing."""
    running = [program for program in programs if function.key in program.entered]
    own = [program for program in running if not program.new_calls]
    own = own if any(_questions(program) for program in own) else running
    return _asked(own, running), _asked(own, running, denied=_denied(running))


def _asked(programs: Iterable[Asking], running: Iterable[Asking], *, denied: Set[str] = frozenset()) -> Asked:
    """Return what programs ask of texts and find there."""
    found: dict[str, dict[str, None]] = {"startswith": {}, "": {}, "endswith": {}}
    for place, text, holds in itertools.chain.from_iterable(map(_questions, programs)):
        if holds and text not in denied:
            found[place][text] = None
    begins = {text for program in running for place, text, holds in _questions(program) if holds and place == "startswith"}
    everywhere = common_start([*begins])
    return Asked(
        begins=tuple(found["startswith"]),
        holds=tuple(found[""]),
        ends=tuple(found["endswith"]),
        everywhere=everywhere if len(begins) < 2 else re.sub(r"\w+$", "", everywhere),
    )


def _denied(programs: Iterable[Asking]) -> set[str]:
    return {text for program in programs for _, text, holds in _questions(program) if not holds}


def _questions(program: Asking) -> list[tuple[str, str, bool]]:
    """Return what a program asks texts for: the method's name where it is a text's begin or end, and whether it is there."""
    found = []
    for (_, step), answer in zip(program.steps, program.expected, strict=True):
        is_pattern = step.get("of") == ["named", "re:search"] and len(step["args"]) == 2
        if answer is None or answer[0] != "returns" or not (step.get("asks") or is_pattern):
            continue
        name = step.get("name", "")
        holds = (answer[1] not in (False, None, 0, -1)) != (name == "not in")
        texts = [text for text in map(_text_of, step.get("args", ())) if text and not (is_pattern and _SPECIAL & {*text})]
        found += [(name if name in ("startswith", "endswith") else "", text, holds) for text in texts]
    return found


def _text_of(written: Any) -> str:
    """Return a text, or bytes as one; empty for anything else."""
    match written:
        case str():
            return written
        case ["bytes", str(digits)]:
            return bytes.fromhex(digits).decode("latin-1")
    return ""


def other_body(function: Function, text: str, *, known: Sequence[int] | None = None, in_front: bool = False) -> OtherBody:
    """Return a line in the place of a function's body (`OtherBody`)."""
    return OtherBody(
        path=function.path,
        qualname=function.qualname,
        def_line=function.def_line,
        first_line=function.first_line,
        last_line=function.last_line,
        indent=function.indent.decode(),
        text=text,
        known=known,
        in_front=in_front,
    )


def _several(tried: Sequence[Tried]) -> list[Sequence[Tried]]:
    if len(tried) < 2:
        return []
    pairs = list(itertools.combinations(tried, 2))[:_MOST_PAIRS] if len(tried) > 2 else []
    return [tried, *pairs]


def alone_of(functions: Sequence[Function], texts: Sequence[str], numbers: Sequence[int]) -> Mutant:
    """Return a mutant whose bodies answer every call."""
    bodies = [other_body(function, text) for function, text in zip(functions, texts, strict=True)]
    return Mutant(bodies=bodies, numbers=numbers, most=KILLS)


def by_heart_of(
    functions: Sequence[Function], texts: Sequence[str], numbers: Sequence[int], known: Mapping[str, Sequence[int]]
) -> Mutant:
    """Return a mutant whose bodies answer the calls that are not known, by the functions' keys."""
    pairs = zip(functions, texts, strict=True)
    bodies = [other_body(function, text, known=known.get(function.key, ())) for function, text in pairs]
    return Mutant(bodies=bodies, numbers=numbers, most=_KILLS_BY_HEART, least=_KILLS_BY_HEART)


def _cut(function: Function, line: str, numbers: Sequence[int]) -> Mutant:
    """Return a mutant that may survive: that no program asks for more of an argument is no weakness. Those that do are chosen."""
    return Mutant(bodies=[other_body(function, line, in_front=True)], numbers=numbers, most=KILLS, least=0)


def _turned(numbers: Sequence[int], at: int) -> list[int]:
    """Return the numbers from another one on, the first behind the last."""
    start = at % max(min(len(numbers), _STARTS), 1)
    return [*numbers[start:], *numbers[:start]]


def _constants(function: Function, book: HiddenBook, numbers: Sequence[int], most: int) -> list[str]:
    """Return bodies that give the answers, and raise the exceptions, which are most frequent among new calls of the function."""
    new = Counter(answer for number in numbers for answer in book.programs[number].new_calls.get(function.key, ()))
    written = [answer for answer, _ in new.most_common() if answer is not None and not answer.startswith("#")]
    return [_raising(answer) if answer.startswith("!") else f"return {answer}" for answer in written[:most]]


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
    return list(_in_turns([short, spread]))


def _in_turns(lists: Sequence[Sequence[int]]) -> Iterable[int]:
    for at in range(max(map(len, lists), default=0)):
        yield from [numbers[at] for numbers in lists if at < len(numbers)]
