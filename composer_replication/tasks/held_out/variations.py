"""Programs near the recorded ones: a part of one, another argument, a longer one, more of them, a word renamed throughout,
operands exchanged, a step left out, done twice, or exchanged with the next."""

from __future__ import annotations

import copy
import json
import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from typing import Any, TypeAlias

from composer_replication.languages.python.inputs import changed, grown, kind_of, new_word, shape_of, with_word, words_of
from composer_replication.sandbox.grading.programs import Step, Steps
from composer_replication.sandbox.grading.steps.references import needs

Palette: TypeAlias = Mapping[str, Sequence[Any]]
"""Arguments that tests use, by place (`_slots`)."""

_PART = 0.4
"""Probability of first cutting a program down to one step and what that needs."""
_MORE, _ANOTHER_ARGUMENT, _RENAMED, _EXCHANGED, _LEFT_OUT, _TWICE = 0.12, 0.5, 0.73, 0.8, 0.87, 0.93
"""Upper ends of the other ways' shares of chance; the rest exchanges two steps."""
_TWO_SIDED = frozenset({"eq", "ne", "lt", "le", "gt", "ge", "add", "sub", "mul", "truediv", "or_", "and_", "xor"})
_MORE_TOWARDS, _EXCHANGED_TOWARDS, _RENAMED_TOWARDS = 0.12, 0.25, 0.56
"""Upper ends of the shares of chance where a variation is to lead somewhere; the rest changes an argument."""
_FROM_ANYWHERE = 0.3
"""Probability that a text is exchanged with one of the same shape that stands anywhere."""
_ATTEMPTS = 3
"""Draws for each variation."""
_SECOND_NUMBER = 500_000
"""Added to the number of a step that is done twice, once for each time."""
_ADDED, _ARGUMENTS = (2, 4), 0.5
"""Arguments that a call of a function with any number of them is given in addition, and the probability of that where a container
could grow instead."""


class Variations:
    """Draws variations of programs: never one of the programs, nor the same one twice.

    Args:
        open_ended: names of functions, methods and classes that take any number of arguments by position, each with the number of
            those that have a name.
    """

    def __init__(self, programs: Sequence[Steps], rng: random.Random, open_ended: Mapping[str, int] | None = None) -> None:
        self.programs, self.rng, self.open_ended = programs, rng, open_ended or {}
        self.palette = _palette_of(programs)
        self.known = {json.dumps(program) for program in programs}

    def draw(self, wanted: Sequence[int]) -> list[tuple[int, Steps]]:
        """Return at most so many variations of each program, each with the program's number."""
        drawn = ((number, self.draw_one(number)) for number, count in enumerate(wanted) for _ in range(count))
        return [(number, steps) for number, steps in drawn if steps]

    def draw_towards(self, number: int, leading: Set[int], count: int) -> list[tuple[int, Steps]]:
        """Return at most so many variations of a program in what the `leading` steps need or are given."""
        drawn = (self.draw_one(number, leading) for _ in range(count))
        return [(number, steps) for steps in drawn if steps]

    def draw_longer(self, number: int, leading: Set[int], count: int) -> list[tuple[int, Steps]]:
        """Return at most so many variations of a program with more of something in what the `leading` steps need or are given."""
        drawn = (self.new(lambda: self._longer(self.programs[number], leading)) for _ in range(count))
        return [(number, steps) for steps in drawn if steps]

    def draw_one(self, number: int, leading: Set[int] = frozenset()) -> Steps | None:
        """Return a new variation of a program; None where some draws bring none."""
        program = self.programs[number]
        return self.new(lambda: self._towards(program, leading) if leading else self._anywhere(program))

    def new(self, draw: Callable[[], list[tuple[int, Step]] | None]) -> Steps | None:
        """Return the first of some draws that is new; None where none is."""
        for _ in range(_ATTEMPTS):
            steps = draw()
            written = json.dumps(steps)
            if steps and written not in self.known:
                self.known.add(written)
                return steps
        return None

    def _anywhere(self, program: Steps) -> list[tuple[int, Step]] | None:
        """Return one variation, or None where what was drawn changes nothing."""
        rng, steps = self.rng, copy.deepcopy(list(program))
        if rng.random() < _PART:
            steps = _part(steps, rng)
        way, at = rng.random(), rng.randrange(len(steps))
        if way < _MORE and self._with_more(steps, steps):
            return steps
        if way < _ANOTHER_ARGUMENT:
            return steps if _with_another_argument(steps, self.palette, rng) or len(steps) < len(program) else None
        if way < _RENAMED:
            return steps if _with_word_renamed(steps, steps, rng) or len(steps) < len(program) else None
        if way < _EXCHANGED:
            return steps if _with_operands_exchanged(steps, rng) else None
        if way < _LEFT_OUT:
            del steps[at]
        elif way < _TWICE:
            number, step = steps[at]
            steps.insert(at + 1, (_SECOND_NUMBER + number, copy.deepcopy(step)))
        elif at + 1 < len(steps):
            steps[at], steps[at + 1] = steps[at + 1], steps[at]
        return steps

    def _towards(self, program: Steps, leading: Set[int]) -> list[tuple[int, Step]] | None:
        """Return one variation in an argument, a word or the operands of a step that the leading ones need, or of one of these;
        None where there is nothing to change."""
        rng, steps = self.rng, copy.deepcopy(list(program))
        if rng.random() < _PART:
            steps = _part(steps, rng, [(number, step) for number, step in steps if number in leading])
        needed = _needed(steps, leading)
        reached = [(number, step) for number, step in steps if number in needed]
        way = rng.random()
        if way < _MORE_TOWARDS and self._with_more(steps, reached):
            return steps
        if way < _EXCHANGED_TOWARDS and _with_operands_exchanged(reached, rng):
            return steps
        if way < _RENAMED_TOWARDS and _with_word_renamed(steps, reached, rng):
            return steps
        changed_one = _with_another_argument(reached, self.palette, rng) or _with_operands_exchanged(reached, rng)
        return steps if changed_one else None

    def _longer(self, program: Steps, leading: Set[int]) -> list[tuple[int, Step]] | None:
        steps = copy.deepcopy(list(program))
        needed = _needed(steps, leading)
        return steps if self._with_more(steps, [(number, step) for number, step in steps if number in needed]) else None

    def _with_more(self, steps: list[tuple[int, Step]], where: Steps) -> bool:
        """Give one container among the arguments of the steps `where` more items, or one call more arguments where it takes any
        number, and say whether there was one."""
        slots = [slot for _, step in where for slot in _slots(step)]
        longer = [(holder, key, grown(self._filled(place, holder[key]), self.rng)) for place, holder, key in slots]
        longer = [(holder, key, new) for holder, key, new in longer if new != holder[key]]
        calls = [step for _, step in where if _called(step) in self.open_ended and step.get("args") and "asks" not in step]
        if not longer and not calls:
            return False
        if calls and (not longer or self.rng.random() < _ARGUMENTS):
            self._add_arguments(steps, self.rng.choice(calls))
        else:
            holder, key, new = self.rng.choice(longer)
            holder[key] = new
        return True

    def _filled(self, place: str, value: Any) -> Any:
        """Return a container, or one of its type with something in it where it is empty and another program has one there."""
        if not isinstance(value, list) or len(value) < 2 or value[1]:
            return value
        others = [other for other in self.palette.get(place, ()) if isinstance(other, list) and other[0] == value[0] and other[1]]
        return self.rng.choice(others) if others else value

    def _add_arguments(self, steps: list[tuple[int, Step]], call: Step) -> None:
        """Give a call more arguments like one of the last: another value, or the result of the step that gave that one, done
        again."""
        named, rng = self.open_ended[_called(call)], self.rng
        at = next(at for at, (_, step) in enumerate(steps) if step is call)
        like = rng.choice(call["args"][named:] or call["args"][-1:])
        for time in range(1, rng.choice(_ADDED) + 1):
            new, made = self._another(like, steps, time)
            steps[at:at] = made
            at += len(made)
            call["args"].insert(rng.randint(min(named, len(call["args"])), len(call["args"])), new)

    def _another(self, like: Any, steps: Steps, time: int) -> tuple[Any, list[tuple[int, Step]]]:
        """Return an argument like another one, and the steps that make it."""
        if not isinstance(like, list) or like[0] != "step":
            return (changed(like, like, self.rng) if _is_plain(like) else like), []
        again = copy.deepcopy(dict(steps)[like[1]])
        if again["do"] in ("value", "iterator") and _is_plain(again["of"]):
            full = self._filled(f"{again['do']} of", again["of"])
            again["of"] = changed(full, full, self.rng) if full == again["of"] else full
        number = time * _SECOND_NUMBER + like[1]
        return ["step", number], [(number, again)]


def _palette_of(programs: Sequence[Steps]) -> Palette:
    """Collect the arguments of all steps by place."""
    found: dict[str, list[Any]] = defaultdict(list)
    for program in programs:
        for _, step in program:
            for place, holder, key in _slots(step):
                found[place].append(holder[key])
                if isinstance(holder[key], str):
                    found[_shaped(holder[key])].append(holder[key])
    return found


def _needed(steps: Steps, numbers: Iterable[int]) -> set[int]:
    """Return the numbers with those of all steps that they need."""
    kept = set(numbers)
    for earlier, step in reversed(steps):
        if earlier in kept:
            kept.update(needs(step))
    return kept


def _part(steps: list[tuple[int, Step]], rng: random.Random, ends: Steps = ()) -> list[tuple[int, Step]]:
    """Return one step, one of `ends` where there are any, with the steps that it needs, and those that need nothing else."""
    number, _ = rng.choice(ends or steps)
    kept = _needed(steps, [number])
    found = []
    for later, step in steps:
        needed = set(needs(step))
        if later in kept or (needed and needed <= kept):
            kept.add(later)
            found.append((later, step))
    return found


def _with_another_argument(steps: Sequence[tuple[int, Step]], palette: Palette, rng: random.Random) -> bool:
    """Change one argument of one step, and say whether there was one to change."""
    slots = [slot for _, step in steps for slot in _slots(step)]
    rng.shuffle(slots)
    for place, holder, key in slots:
        value = holder[key]
        alike = [other for other in palette.get(place, ()) if kind_of(other) == kind_of(value)]
        new = changed(value, rng.choice(alike) if alike else value, rng)
        if isinstance(value, str) and rng.random() < _FROM_ANYWHERE:
            new = rng.choice(palette.get(_shaped(value), [value]))
        if new != value:
            holder[key] = new
            return True
    return False


def _with_word_renamed(steps: Steps, where: Steps, rng: random.Random) -> bool:
    """Rename one word or number of the arguments of the steps `where` in all steps, and say whether there was one: what is equal,
    part of something or a key of it stays so."""
    of_the_project = (step for _, step in where if "asks" not in step)
    words = sorted({word for step in of_the_project for holder, key in _arguments(step) for word in words_of(holder[key])})
    if not words:
        return False
    old = rng.choice(words)
    new = new_word(old, rng)
    if new in words:  # what differs has to differ afterwards
        return False
    for _, step in steps:
        for holder, key in _arguments(step):
            holder[key] = with_word(holder[key], old, new)
    return True


def _called(step: Step) -> str:
    """Return the last name of what a step calls; empty where it calls nothing by name."""
    if step["do"] == "method":
        return str(step["name"])
    of = step.get("of")
    return (
        of[1].rpartition(":")[2].rpartition(".")[2] if step["do"] == "call" and isinstance(of, list) and of[0] == "named" else ""
    )


def _with_operands_exchanged(steps: Sequence[tuple[int, Step]], rng: random.Random) -> bool:
    """Exchange the operands of one operator, and say whether there was one: what is less one way is not the other way round."""
    found = [step for _, step in steps if step["do"] == "operator" and step["name"] in _TWO_SIDED and "asks" not in step]
    if found:
        rng.choice(found)["args"].reverse()
    return bool(found)


def _shaped(text: str) -> str:
    """Return the place of texts of one shape, wherever they stand."""
    return f"text {shape_of(text)}"


def _slots(step: Step) -> list[tuple[str, Any, Any]]:
    """Return the places of a step's plain arguments: a name of the place, and the holder and key of the value. There are none
    where a text of any form is asked something: what else might be asked of it is no promise."""
    if "asks" in step:
        return []
    what = step["do"] if step["do"] in ("value", "iterator") else f"{step['do']} {step.get('name', step.get('of'))}"
    return [(f"{what} {key}", holder, key) for holder, key in _arguments(step) if _is_plain(holder[key])]


def _arguments(step: Step) -> list[tuple[Any, Any]]:
    """Return the holder and key of each argument of a step that may be varied: no name of an attribute, nor what an item is taken
    from, nor the pattern that the tests expect of a message."""
    if step["do"] in ("value", "iterator"):
        return [(step, "of")]
    fixed = {"setattr": 2, "delattr": 2, "getitem": 1}.get(step.get("name", ""), 0) if step["do"] == "operator" else 0
    fixed = 1 if step.get("of") == ["named", "re:search"] else fixed
    args, named = step.get("args", []), step.get("named", {})
    return [(args, at) for at in range(fixed, len(args))] + [(named, name) for name in named]


def _is_plain(written: Any) -> bool:
    """Return whether a value may be varied: no result of a step, and nothing of code."""
    if not isinstance(written, list):
        return True
    if written[0] in ("step", "named", "module", "method", "stand-in", "shipped"):
        return False
    return all(_is_plain(item) for item in _inner(written))


def _inner(written: list[Any]) -> list[Any]:
    if written[0] in ("list", "tuple", "set", "frozenset"):
        return list(written[1])
    return [part for pair in written[1] for part in pair] if written[0] == "dict" else []
