"""Rules for making the moulds, on worked examples."""

from foundry.moulds import (
    chill_plate,
    cope_mark,
    drag_weight,
    flask_size,
    pattern_code,
    riser,
    sprue_bore,
    vent_rate,
)


def test_flask_size() -> None:
    assert flask_size(33, 4) == 37
    assert flask_size(4, 11) == 15
    assert flask_size(43, 17) == 60


def test_cope_mark() -> None:
    assert cope_mark(42, 12) == 42
    assert cope_mark(6, 55) == 55
    assert cope_mark(27, 44) == 44


def test_riser() -> None:
    assert riser(41, 19) == 19
    assert riser(11, 24) == 11
    assert riser(9, 17) == 9


def test_sprue_bore() -> None:
    assert sprue_bore(22, 8) == 14
    assert sprue_bore(24, 56) == -32
    assert sprue_bore(17, 36) == -19


def test_vent_rate() -> None:
    assert vent_rate(35, 17) == 18
    assert vent_rate(10, 29) == 19
    assert vent_rate(18, 7) == 11


def test_pattern_code() -> None:
    assert pattern_code(55, 6) == 9
    assert pattern_code(18, 22) == 0
    assert pattern_code(53, 3) == 17


def test_drag_weight() -> None:
    assert drag_weight(25, 10) == 250
    assert drag_weight(55, 60) == 3300
    assert drag_weight(35, 15) == 525


def test_chill_plate() -> None:
    assert chill_plate(54, 6) == 0
    assert chill_plate(16, 28) == 16
    assert chill_plate(22, 13) == 9
