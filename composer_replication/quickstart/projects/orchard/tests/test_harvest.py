"""Rules for bringing in the fruit, on worked examples."""

from orchard.harvest import (
    bee_visit,
    cider_mark,
    crop_note,
    frost_cover,
    picking,
    press_run,
    sorting,
    windfall,
)


def test_picking() -> None:
    assert picking(37, 10) == 3
    assert picking(4, 26) == 0
    assert picking(44, 15) == 2


def test_windfall() -> None:
    assert windfall(18, 3) == 54
    assert windfall(5, 7) == 35
    assert windfall(15, 2) == 30


def test_press_run() -> None:
    assert press_run(41, 19) == 22
    assert press_run(3, 55) == 52
    assert press_run(57, 2) == 55


def test_cider_mark() -> None:
    assert cider_mark(60, 8) == 8
    assert cider_mark(31, 35) == 31
    assert cider_mark(45, 30) == 30


def test_crop_note() -> None:
    assert crop_note(29, 6) == 35
    assert crop_note(25, 55) == 80
    assert crop_note(19, 50) == 69


def test_sorting() -> None:
    assert sorting(47, 9) == 2
    assert sorting(2, 11) == 2
    assert sorting(31, 10) == 1


def test_frost_cover() -> None:
    assert frost_cover(33, 2) == 31
    assert frost_cover(5, 10) == -5
    assert frost_cover(53, 43) == 10


def test_bee_visit() -> None:
    assert bee_visit(20, 2) == 20
    assert bee_visit(10, 30) == 30
    assert bee_visit(16, 28) == 28
