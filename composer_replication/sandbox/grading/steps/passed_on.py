"""Results that a test only passes on to the project, or asks for no more than a property: their form is no promise, such as that
of a signature, or the order of what is only counted.

The text of this module runs inside a sandbox, in front of that of `steps.recorder`. A text is known by its identity, as other
objects are, where it is long enough to be no word of the test's own.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from composer_replication.sandbox.grading.steps.references import needs, with_references

_TEXTS = (str, bytes)
_SHORTEST = 8
"""Characters or bytes of a text that is followed."""
_PLAIN_CONTAINERS = (list, tuple, dict, set, frozenset, bytearray)


class PassedOn:
    """Follows the results of steps."""

    def __init__(self) -> None:
        self.texts: dict[int, int] = {}
        """The last steps that gave the texts that are followed, by `id`."""
        self.values: dict[int, str | bytes] = {}
        """The texts, by every step that gave one."""
        self.containers: set[int] = set()
        """Steps of the project's that give plain containers, and steps that give parts of these, or others made of them."""
        self.own: set[int] = set()
        """Steps that the project's code takes."""
        self.looked: set[int] = set()
        """Steps whose texts a test compares with others for equality."""
        self.asking: dict[int, bool] = {}
        """Steps that ask a text or container for something, and whether they touch the project otherwise."""
        self.numbers: list[tuple[int, Any]] = []
        """Steps that give a number for a text or container, and the numbers, since tests last compared any."""
        self.compared: set[int] = set()
        """Those of them whose numbers tests compare, but not for equality."""

    def follows(self, values: Iterable[Any]) -> bool:
        """Return whether one of the values is a text that is followed."""
        return any(type(value) in _TEXTS and id(value) in self.texts for value in values)

    def reference(self, value: Any) -> list[Any] | None:
        """Encode a text that is followed by the step that gave it; None for anything else."""
        number = self.texts.get(id(value)) if type(value) in _TEXTS else None
        return None if number is None else ["step", number]

    def look(self, values: Iterable[Any]) -> None:
        """Note that a test compares texts or reads them character by character."""
        self.looked.update(self.texts[id(value)] for value in values if self.follows((value,)))

    def note(self, number: int, step: dict[str, Any], operands: Iterable[Any], result: Any, *, own: bool, touching: bool) -> None:
        """Note a step with what it was given and what it gave; whether the project's code took it, and whether it touches the
        project without the texts that are followed."""
        text, follows = type(result) in _TEXTS, self.follows(operands)
        if not own and (follows or not self.containers.isdisjoint(needs(step))):
            self.asking[number] = touching
            if type(result) in (int, float):
                self.numbers.append((number, result))
        if text and (any(result is operand for operand in operands) or (not own and id(result) in self.texts)):
            return  # it is known already, or the test's
        derived = own or number in self.asking
        if text and len(result) >= _SHORTEST and derived:
            self.texts[id(result)] = number
            self.values[number] = result
        if own:
            self.own.add(number)
        if derived and type(result) in _PLAIN_CONTAINERS:
            self.containers.add(number)

    def compare(
        self, names: Iterable[str], operands: tuple[Any, ...], add: Callable[[dict[str, Any], bool, Any], int], next_: int
    ) -> None:
        """Write down that a test compares the number that the last step gave, and maybe those that steps before it gave, but not
        for equality. Raises what `add` raises.

        Args:
            names: of the operators between the operands.
            next_: the number of the step that `add` writes down first.
        """
        given, self.numbers = self.numbers[-len(operands) :], []
        if not given or given[-1][0] != next_ - 1:
            return
        if len(given) == len(operands) and all(value is of for value, (_, of) in zip(operands, given, strict=True)):
            places = dict(enumerate(number for number, _ in given))
        else:
            places = {place: given[-1][0] for place, value in enumerate(operands) if value is given[-1][1]}
        args = [["step", places[place]] if place in places else value for place, value in enumerate(operands)]
        if places and all(type(arg) in (int, list) for arg in args):
            for name, pair in zip(names, itertools.pairwise(args), strict=True):
                self.asking[add({"do": "operator", "name": name, "args": list(pair)}, True, True)] = True
            self.compared.update(places.values())

    def settle(self, steps: list[dict[str, Any]], facts: list[tuple[str, bool, str]]) -> None:
        """Mark the steps whose plain results are passed on and not compared as unused, write the texts that are compared in the
        places of references to them, and have steps that ask something of another text touch the project."""
        looked = self.all_looked(steps)
        values = {number: text for number, text in self.values.items() if number in looked}
        used = {needed for step in steps for needed in needs(step)}
        passed_on = ({*self.values} - looked) | self.containers | self.compared
        for number, step in enumerate(steps):
            if number in passed_on and number in used:
                step["unused"] = True
            if number in self.asking and (self.asking[number] or not looked.issuperset(needs(step))):
                facts[number] = (facts[number][0], True, facts[number][2])
                step["asks"] = True
            steps[number] = with_references(step, lambda of: written_text(values[of]) if of in values else ["step", of])

    def all_looked(self, steps: list[dict[str, Any]]) -> set[int]:
        """Return the steps whose results a test looks at, also in a container. A text made of another stands for itself."""
        found, whole = set[int](), self.own.union(self.values)
        pending = [*self.looked]
        for step in steps:
            if step["do"] in ("look", "items"):
                pending += needs(step)
        while pending:
            number = pending.pop()
            if number not in found:
                found.add(number)
                pending += [] if number in whole else needs(steps[number])
        return found


def written_text(text: str | bytes) -> Any:
    """Encode a text."""
    return text if isinstance(text, str) else ["bytes", text.hex()]
