"""The hidden checks of a grading: anti-tests laid out under fresh random names, and their verdict."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from composer_replication.sandbox.beneath import OpenFolder
from composer_replication.sandbox.grading.anti_tests import TwinTests, with_twins
from composer_replication.types import Outcome
from composer_replication.types.errors import TaskError
from composer_replication.types.held_out_checks import AntiTest

_TEST_FILE_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class HiddenTests:
    """Test files to be added to a tree. Each anti-test comes with an equal copy of the real test, which must pass."""

    files: Mapping[str, bytes]
    ids: tuple[tuple[str, str], ...]
    """Per anti-test: node id of the copy that must pass and of the one that must fail, without parameters."""

    @property
    def wanted(self) -> tuple[str, ...]:
        """All ids, for `CodeRunner.run`."""
        return tuple(test_id for pair in self.ids for test_id in pair)

    def broken(self, outcomes: Mapping[str, Outcome]) -> list[tuple[int, str]]:
        """Return the numbers of the anti-tests that do not hold, and what happened instead."""
        found = []
        for number, (same, opposite) in enumerate(self.ids):
            if _all_of(same, outcomes) != {Outcome.PASSED}:
                found.append((number, "a copy of a test under another name did not pass"))
            elif _all_of(opposite, outcomes) != {Outcome.FAILED}:
                found.append((number, "a test that expects the opposite did not fail"))
        return found


def _all_of(wanted: str, outcomes: Mapping[str, Outcome]) -> set[Outcome]:
    """Return the outcomes of a test function with all its parameters."""
    return {outcome for test_id, outcome in outcomes.items() if test_id == wanted or test_id.startswith(wanted + "[")}


def any_order(count: int) -> list[bool]:
    """Return for each of `count` anti-tests whether the copy that must fail comes first: for a random half of them.

    An object that agrees with the first value it is compared with loses on those, one that disagrees with it on the others.
    """
    dice = secrets.SystemRandom()
    coin = dice.randrange(2)
    order = [number % 2 == coin for number in range(count)]
    dice.shuffle(order)
    return order


def lay_out(tests: Sequence[AntiTest], pristine: Path, *, opposite_first: Sequence[bool]) -> HiddenTests:
    """Write test files for `tests` from those of the tree `pristine`, each in the folder of the file it is made from.

    All names are random. `opposite_first` says for each of `tests` whether the copy that must fail comes before the other.

    Raises:
        TaskError: the tree has no such test or expectation.
    """
    files: dict[str, bytes] = {}
    ids: dict[AntiTest, tuple[str, str]] = {}
    first = dict(zip(tests, opposite_first, strict=True))
    for path in dict.fromkeys(test.test.partition("::")[0] for test in tests):
        name = str(PurePosixPath(path).with_name(f"test_{secrets.token_hex(6)}.py"))
        twins = []
        for test in (t for t in tests if t.test.partition("::")[0] == path):
            inside = test.test.partition("::")[2]
            scope, separator, function = inside.rpartition("::")
            names = sorted(f"{function}_{secrets.token_hex(4)}" for _ in range(2))  # the order in which unittest runs them
            opposite, same = names if first[test] else reversed(names)
            twins.append(
                TwinTests(test=inside, expectation=test.expectation, same=same, opposite=opposite, opposite_first=first[test])
            )
            ids[test] = (f"{name}::{scope}{separator}{same}", f"{name}::{scope}{separator}{opposite}")
        try:
            with OpenFolder(pristine.resolve()) as tree:  # the path is the task's, which may be a stranger's
                files[name] = with_twins(tree.read(path, _TEST_FILE_BYTES), twins)
        except (OSError, SyntaxError, KeyError, IndexError) as error:
            raise TaskError(f"{path} is not the test file that anti-tests were made from", fix="build the task again") from error
    return HiddenTests(files, tuple(ids[test] for test in tests))
