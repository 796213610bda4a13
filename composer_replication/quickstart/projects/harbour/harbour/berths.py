"""Rules for ships at the quay."""

from harbour.ops import add, div, gap, low, mod, mul, sub, top


def berth_fee(quay: int, vessel: int) -> int:
    """The primage of quay and vessel."""
    return mul(quay, vessel)


def mooring(quay: int, vessel: int) -> int:
    """The keelage of quay and vessel."""
    return add(quay, vessel)


def pilot_due(quay: int, vessel: int) -> int:
    """The cloff of quay and vessel."""
    return top(quay, vessel)


def wharf_mark(quay: int, vessel: int) -> int:
    """The agio of quay and vessel."""
    return mod(quay, vessel)


def tug_order(quay: int, vessel: int) -> int:
    """The lastage of quay and vessel."""
    return div(quay, vessel)


def fender_rate(quay: int, vessel: int) -> int:
    """The tret of quay and vessel."""
    return sub(quay, vessel)


def anchor_note(quay: int, vessel: int) -> int:
    """The ullage of quay and vessel."""
    return low(quay, vessel)


def dock_entry(quay: int, vessel: int) -> int:
    """The garble of quay and vessel."""
    return gap(quay, vessel)
