"""The difficulty of a deletion: an estimate from the deleted code, before any model has tried."""

from __future__ import annotations

import math
from collections.abc import Sequence

from composer_replication.languages.functions import Function

_MIDDLE = 60.0
"""The effort whose difficulty is one half: about a function of 30 lines with eight branches and ten calls."""


def difficulty_of(functions: Sequence[Function], covering_tests: int) -> float:
    """Return the difficulty, between 0 and 1, rounded to two decimals.

    The effort is the number of deleted lines, plus two for each branch, one for each name they call, five for each further
    function and ten for each further file; it grows by a share of `1 / sqrt(covering_tests)`, because fewer tests say less
    about what is wanted. The difficulty is `effort / (effort + 60)`. It orders tasks; it is not a probability.
    """
    lines = sum(function.lines for function in functions)
    branches = sum(function.branches for function in functions)
    calls = len(frozenset().union(*(function.calls for function in functions)))
    files = len({function.path for function in functions})
    size = lines + 2 * branches + calls + 5 * (len(functions) - 1) + 10 * (files - 1)
    effort = size * (1 + 1 / math.sqrt(max(1, covering_tests)))
    return round(effort / (effort + _MIDDLE), 2)
