"""Of an exception counts what tests name of it: its own class, or bases that they know."""

from __future__ import annotations

import pytest

from composer_replication.tasks.held_out.book import _counted

END = ["Exception", "BaseException", "object"]
FULL = ["FullError", "ShopError", "ValueError", *END]


@pytest.mark.parametrize(
    ("named", "counted"),
    [
        ({"FullError"}, FULL),
        ({"ShopError", "ValueError"}, ["ShopError", "ValueError", *END]),
        ({"ValueError"}, ["ValueError", *END]),
        ({"ShopError"}, None),
        ({"Exception"}, END),
        ({"KeyError"}, None),
        (set(), None),
    ],
    ids=["itself", "both bases", "the last base", "a base of which another is not named", "any", "another", "none"],
)
def test_what_counts_of_an_exception(named: set[str], counted: list[str] | None) -> None:
    assert _counted(["raises", FULL], named) == (None if counted is None else ["raises", counted])


def test_other_answers_count_unless_they_are_the_machines() -> None:
    assert _counted(["returns", 1], set()) == ["returns", 1]
    assert _counted(["returns", "<Shop at 0x7f0011223344>"], set()) is None
    assert _counted(["raises", ["SystemExit", "BaseException", "object"]], {"SystemExit"}) is not None
    assert _counted(["lost"], set()) is None
