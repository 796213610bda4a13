"""Rules for goods in the hold, on worked examples."""

from harbour.cargo import (
    ballast,
    bonded_lot,
    crane_shift,
    customs_note,
    hatch_score,
    lading,
    pallet_code,
    stowage,
)


def test_stowage() -> None:
    assert stowage(59, 4) == 55
    assert stowage(17, 40) == -23
    assert stowage(42, 12) == 30


def test_hatch_score() -> None:
    assert hatch_score(49, 9) == 4
    assert hatch_score(32, 48) == 32
    assert hatch_score(40, 33) == 7


def test_ballast() -> None:
    assert ballast(43, 18) == 61
    assert ballast(6, 33) == 39
    assert ballast(4, 50) == 54


def test_crane_shift() -> None:
    assert crane_shift(43, 12) == 31
    assert crane_shift(34, 59) == 25
    assert crane_shift(52, 36) == 16


def test_lading() -> None:
    assert lading(59, 21) == 21
    assert lading(19, 20) == 19
    assert lading(46, 13) == 13


def test_bonded_lot() -> None:
    assert bonded_lot(35, 16) == 560
    assert bonded_lot(14, 55) == 770
    assert bonded_lot(52, 44) == 2288


def test_pallet_code() -> None:
    assert pallet_code(16, 2) == 16
    assert pallet_code(13, 38) == 38
    assert pallet_code(53, 17) == 53


def test_customs_note() -> None:
    assert customs_note(59, 29) == 2
    assert customs_note(34, 54) == 0
    assert customs_note(44, 25) == 1
