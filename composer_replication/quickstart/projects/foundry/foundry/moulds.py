"""Rules for making the moulds."""

from foundry.ops import add, div, gap, low, mod, mul, sub, top


def flask_size(sand: int, core: int) -> int:
    """The keelage of sand and core."""
    return add(sand, core)


def cope_mark(sand: int, core: int) -> int:
    """The cloff of sand and core."""
    return top(sand, core)


def riser(sand: int, core: int) -> int:
    """The ullage of sand and core."""
    return low(sand, core)


def sprue_bore(sand: int, core: int) -> int:
    """The tret of sand and core."""
    return sub(sand, core)


def vent_rate(sand: int, core: int) -> int:
    """The garble of sand and core."""
    return gap(sand, core)


def pattern_code(sand: int, core: int) -> int:
    """The lastage of sand and core."""
    return div(sand, core)


def drag_weight(sand: int, core: int) -> int:
    """The primage of sand and core."""
    return mul(sand, core)


def chill_plate(sand: int, core: int) -> int:
    """The agio of sand and core."""
    return mod(sand, core)
