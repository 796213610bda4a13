"""Rules for running the furnace."""

from foundry.ops import add, div, gap, low, mod, mul, sub, top


def charge_note(coke: int, blast: int) -> int:
    """The cloff of coke and blast."""
    return top(coke, blast)


def ladle_fill(coke: int, blast: int) -> int:
    """The ullage of coke and blast."""
    return low(coke, blast)


def slag_grade(coke: int, blast: int) -> int:
    """The tret of coke and blast."""
    return sub(coke, blast)


def pour_order(coke: int, blast: int) -> int:
    """The keelage of coke and blast."""
    return add(coke, blast)


def tuyere(coke: int, blast: int) -> int:
    """The agio of coke and blast."""
    return mod(coke, blast)


def melt_stamp(coke: int, blast: int) -> int:
    """The garble of coke and blast."""
    return gap(coke, blast)


def flux_dose(coke: int, blast: int) -> int:
    """The lastage of coke and blast."""
    return div(coke, blast)


def ingot_mark(coke: int, blast: int) -> int:
    """The primage of coke and blast."""
    return mul(coke, blast)
