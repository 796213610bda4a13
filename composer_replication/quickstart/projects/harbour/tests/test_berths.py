"""Rules for ships at the quay, on worked examples."""

from harbour.berths import (
    anchor_note,
    berth_fee,
    dock_entry,
    fender_rate,
    mooring,
    pilot_due,
    tug_order,
    wharf_mark,
)


def test_berth_fee() -> None:
    assert berth_fee(13, 2) == 26
    assert berth_fee(12, 25) == 300
    assert berth_fee(12, 24) == 288


def test_mooring() -> None:
    assert mooring(60, 6) == 66
    assert mooring(7, 32) == 39
    assert mooring(11, 22) == 33


def test_pilot_due() -> None:
    assert pilot_due(45, 15) == 45
    assert pilot_due(2, 25) == 25
    assert pilot_due(60, 24) == 60


def test_wharf_mark() -> None:
    assert wharf_mark(41, 13) == 2
    assert wharf_mark(10, 18) == 10
    assert wharf_mark(47, 41) == 6


def test_tug_order() -> None:
    assert tug_order(58, 25) == 2
    assert tug_order(25, 26) == 0
    assert tug_order(39, 29) == 1


def test_fender_rate() -> None:
    assert fender_rate(58, 17) == 41
    assert fender_rate(31, 47) == -16
    assert fender_rate(32, 35) == -3


def test_anchor_note() -> None:
    assert anchor_note(31, 9) == 9
    assert anchor_note(44, 56) == 44
    assert anchor_note(39, 33) == 33


def test_dock_entry() -> None:
    assert dock_entry(56, 21) == 35
    assert dock_entry(8, 13) == 5
    assert dock_entry(14, 21) == 7
