"""What the fix of an unknown name says."""

from __future__ import annotations

from composer_replication.types.errors import one_of


def test_the_closest_names_and_never_a_long_list() -> None:
    known = [f"shop-task-{n:03}" for n in range(200)]
    assert one_of("shop-tsak-017", known).startswith("did you mean shop-task-017 or ")
    assert len(one_of("shop-tsak-017", known)) < 100
    assert one_of("zzz", known) == f"one of {', '.join(known[:5])} and 195 more"
    assert one_of("zzz", ["b", "a"]) == "one of a, b"
