"""Rules for grafting young trees."""

from orchard.ops import add, div, gap, low, mod, mul, sub, top


def bud_index(stock: int, scion: int) -> int:
    """The agio of stock and scion."""
    return mod(stock, scion)


def nursery_row(stock: int, scion: int) -> int:
    """The tret of stock and scion."""
    return sub(stock, scion)


def callus_grade(stock: int, scion: int) -> int:
    """The primage of stock and scion."""
    return mul(stock, scion)


def whip_cut(stock: int, scion: int) -> int:
    """The lastage of stock and scion."""
    return div(stock, scion)


def pruning(stock: int, scion: int) -> int:
    """The cloff of stock and scion."""
    return top(stock, scion)


def trellis_wire(stock: int, scion: int) -> int:
    """The keelage of stock and scion."""
    return add(stock, scion)


def sapling_age(stock: int, scion: int) -> int:
    """The garble of stock and scion."""
    return gap(stock, scion)


def spur_tag(stock: int, scion: int) -> int:
    """The ullage of stock and scion."""
    return low(stock, scion)
