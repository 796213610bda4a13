"""Rules for running the furnace, on worked examples."""

from foundry.furnace import (
    charge_note,
    flux_dose,
    ingot_mark,
    ladle_fill,
    melt_stamp,
    pour_order,
    slag_grade,
    tuyere,
)


def test_charge_note() -> None:
    assert charge_note(27, 7) == 27
    assert charge_note(7, 35) == 35
    assert charge_note(31, 16) == 31


def test_ladle_fill() -> None:
    assert ladle_fill(11, 4) == 4
    assert ladle_fill(17, 57) == 17
    assert ladle_fill(2, 19) == 2


def test_slag_grade() -> None:
    assert slag_grade(60, 10) == 50
    assert slag_grade(6, 18) == -12
    assert slag_grade(9, 31) == -22


def test_pour_order() -> None:
    assert pour_order(50, 10) == 60
    assert pour_order(35, 37) == 72
    assert pour_order(25, 39) == 64


def test_tuyere() -> None:
    assert tuyere(52, 2) == 0
    assert tuyere(6, 51) == 6
    assert tuyere(6, 14) == 6


def test_melt_stamp() -> None:
    assert melt_stamp(23, 11) == 12
    assert melt_stamp(20, 41) == 21
    assert melt_stamp(5, 38) == 33


def test_flux_dose() -> None:
    assert flux_dose(45, 18) == 2
    assert flux_dose(53, 56) == 0
    assert flux_dose(55, 21) == 2


def test_ingot_mark() -> None:
    assert ingot_mark(33, 7) == 231
    assert ingot_mark(40, 57) == 2280
    assert ingot_mark(11, 21) == 231
