"""Programs near the recorded ones: a part of one, another argument, operands exchanged, a step left out, done twice, or exchanged
with the next."""

from __future__ import annotations

import copy
import random
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from composer_replication.languages.python.inputs import changed, kind_of
from composer_replication.sandbox.grading.programs import Step, Steps
from composer_replication.tasks.held_out.slices import needs

Palette: TypeAlias = Mapping[str, Sequence[Any]]
"""Arguments that tests use, by place (`_slots`)."""

_PART = 0.4
"""Probability of first cutting a program down to one step and what that needs."""
_ANOTHER_ARGUMENT, _EXCHANGED, _LEFT_OUT, _TWICE = 0.6, 0.7, 0.8, 0.9
"""Upper ends of the other ways' shares of chance; the rest exchanges two steps."""
_TWO_SIDED = frozenset({"eq", "ne", "lt", "le", "gt", "ge", "add", "sub", "mul", "truediv", "or_", "and_", "xor"})
_SECOND_NUMBER = 500_000
"""Added to the number of a step that is done twice."""


def palette_of(programs: Sequence[Steps]) -> Palette:
    """Collect the arguments of all steps by place."""
    found: dict[str, list[Any]] = defaultdict(list)
    for program in programs:
        for _, step in program:
            for place, holder, key in _slots(step):
                found[place].append(holder[key])
    return found


def vary(program: Steps, palette: Palette, rng: random.Random) -> list[tuple[int, Step]] | None:
    """Return one variation, or None where what was drawn changes nothing."""
    steps = copy.deepcopy(list(program))
    if rng.random() < _PART:
        steps = _part(steps, rng)
    way, at = rng.random(), rng.randrange(len(steps))
    if way < _ANOTHER_ARGUMENT:
        return steps if _with_another_argument(steps, palette, rng) or len(steps) < len(program) else None
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


def _part(steps: list[tuple[int, Step]], rng: random.Random) -> list[tuple[int, Step]]:
    """Return one step with the steps that it needs, and those that need nothing else."""
    number, _ = rng.choice(steps)
    kept = {number}
    for earlier, step in reversed(steps):
        if earlier in kept:
            kept.update(needs(step))
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
        if new != value:
            holder[key] = new
            return True
    return False


def _with_operands_exchanged(steps: Sequence[tuple[int, Step]], rng: random.Random) -> bool:
    """Exchange the operands of one operator, and say whether there was one: what is less one way is not the other way round."""
    found = [step for _, step in steps if step["do"] == "operator" and step["name"] in _TWO_SIDED]
    if found:
        rng.choice(found)["args"].reverse()
    return bool(found)


def _slots(step: Step) -> list[tuple[str, Any, Any]]:
    """Return the places of a step's plain arguments: a name of the place, and the holder and key of the value."""
    what = f"{step['do']} {step.get('name', step.get('of'))}"
    if step["do"] in ("value", "iterator"):
        return [(step["do"], step, "of")] if _is_plain(step["of"]) else []
    fixed = {"setattr": 2, "delattr": 2, "getitem": 1}.get(step.get("name", ""), 0) if step["do"] == "operator" else 0
    args, named = step.get("args", []), step.get("named", {})
    found = [(f"{what} {at}", args, at) for at in range(fixed, len(args)) if _is_plain(args[at])]
    return found + [(f"{what} {name}", named, name) for name in named if _is_plain(named[name])]


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
