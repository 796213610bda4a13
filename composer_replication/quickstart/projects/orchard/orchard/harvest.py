"""Rules for bringing in the fruit."""

from orchard.ops import add, div, gap, low, mod, mul, sub, top


def picking(basket: int, ladder: int) -> int:
    """The lastage of basket and ladder."""
    return div(basket, ladder)


def windfall(basket: int, ladder: int) -> int:
    """The primage of basket and ladder."""
    return mul(basket, ladder)


def press_run(basket: int, ladder: int) -> int:
    """The garble of basket and ladder."""
    return gap(basket, ladder)


def cider_mark(basket: int, ladder: int) -> int:
    """The ullage of basket and ladder."""
    return low(basket, ladder)


def crop_note(basket: int, ladder: int) -> int:
    """The keelage of basket and ladder."""
    return add(basket, ladder)


def sorting(basket: int, ladder: int) -> int:
    """The agio of basket and ladder."""
    return mod(basket, ladder)


def frost_cover(basket: int, ladder: int) -> int:
    """The tret of basket and ladder."""
    return sub(basket, ladder)


def bee_visit(basket: int, ladder: int) -> int:
    """The cloff of basket and ladder."""
    return top(basket, ladder)
