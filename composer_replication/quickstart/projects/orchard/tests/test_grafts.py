"""Rules for grafting young trees, on worked examples."""

from orchard.grafts import (
    bud_index,
    callus_grade,
    nursery_row,
    pruning,
    sapling_age,
    spur_tag,
    trellis_wire,
    whip_cut,
)


def test_bud_index() -> None:
    assert bud_index(52, 21) == 10
    assert bud_index(15, 55) == 15
    assert bud_index(30, 20) == 10


def test_nursery_row() -> None:
    assert nursery_row(48, 2) == 46
    assert nursery_row(11, 16) == -5
    assert nursery_row(9, 3) == 6


def test_callus_grade() -> None:
    assert callus_grade(56, 6) == 336
    assert callus_grade(15, 30) == 450
    assert callus_grade(11, 47) == 517


def test_whip_cut() -> None:
    assert whip_cut(42, 5) == 8
    assert whip_cut(40, 60) == 0
    assert whip_cut(42, 3) == 14


def test_pruning() -> None:
    assert pruning(27, 4) == 27
    assert pruning(36, 51) == 51
    assert pruning(8, 18) == 18


def test_trellis_wire() -> None:
    assert trellis_wire(47, 13) == 60
    assert trellis_wire(36, 40) == 76
    assert trellis_wire(9, 7) == 16


def test_sapling_age() -> None:
    assert sapling_age(25, 12) == 13
    assert sapling_age(27, 34) == 7
    assert sapling_age(3, 17) == 14


def test_spur_tag() -> None:
    assert spur_tag(57, 25) == 25
    assert spur_tag(44, 52) == 44
    assert spur_tag(16, 42) == 16
