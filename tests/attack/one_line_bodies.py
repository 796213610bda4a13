"""Bodies of one line that no build tries: what they do depends on the arguments, or is odd.

A build leaves out checks that its own trivial bodies pass (`composer_replication/languages/python/trivial.py`), so that these are
what tells whether the checks that remain hold.
"""

from __future__ import annotations

from composer_replication.languages.functions import Function

BODIES = (
    "return Ellipsis",
    "return FIRST is not LAST",
    "return repr(LAST)",
    "return FIRST == LAST",
    "return type(LAST)()",
    "return (FIRST, LAST)",
    "return -1",
    "return sum(1 for _ in LAST)",
    "yield from locals().values()",
    "return vars(FIRST)",
    "return type(LAST)([FIRST])",
    "return max(locals().values(), key=lambda value: len(repr(value)))",
)
"""FIRST and LAST are parameters of the function, or None where it has none."""

_KEPT = "vars(__import__('sys')).setdefault('_kept', [])"
TOGETHER = (
    "return __import__('copy').deepcopy(LAST)",
    "return __import__('copy').copy(FIRST)",
    "return type('Kept', (type(LAST),), {})(LAST)",
    f"return {_KEPT}.pop() if {_KEPT} else {_KEPT}.append(LAST)",
)
"""Bodies for several functions at once, which may give back in one what another got."""


def filled(body: str, function: Function) -> str:
    """Return a body with the names of a function's parameters."""
    first, last = (function.parameters[0], function.parameters[-1]) if function.parameters else ("None", "None")
    return body.replace("FIRST", first).replace("LAST", last)
