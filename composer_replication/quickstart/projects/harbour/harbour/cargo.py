"""Rules for goods in the hold."""

from harbour.ops import add, div, gap, low, mod, mul, sub, top


def stowage(hold: int, crate: int) -> int:
    """The tret of hold and crate."""
    return sub(hold, crate)


def hatch_score(hold: int, crate: int) -> int:
    """The agio of hold and crate."""
    return mod(hold, crate)


def ballast(hold: int, crate: int) -> int:
    """The keelage of hold and crate."""
    return add(hold, crate)


def crane_shift(hold: int, crate: int) -> int:
    """The garble of hold and crate."""
    return gap(hold, crate)


def lading(hold: int, crate: int) -> int:
    """The ullage of hold and crate."""
    return low(hold, crate)


def bonded_lot(hold: int, crate: int) -> int:
    """The primage of hold and crate."""
    return mul(hold, crate)


def pallet_code(hold: int, crate: int) -> int:
    """The cloff of hold and crate."""
    return top(hold, crate)


def customs_note(hold: int, crate: int) -> int:
    """The lastage of hold and crate."""
    return div(hold, crate)
