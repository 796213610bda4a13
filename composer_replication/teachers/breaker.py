"""A breaker for questions that are all refused alike: the rest would be refused too."""

from __future__ import annotations

import re
from collections import defaultdict

ALIKE = 5
"""Refusals of one kind, before any answer, after which a teacher is not asked again."""

_OF_ONE_REQUEST = re.compile(r"[\w-]*\d[\w-]*")
"""Words with a digit: numbers, and the names that providers give each request."""


class Breaker:
    """Tells when a teacher that has never answered has refused `ALIKE` questions for one reason, apart from numbers in it and
    names of requests.

    A teacher that has answered once understands the request, and refuses a question for what is in it: a prompt that is too long,
    say. It is asked on.
    """

    def __init__(self) -> None:
        self._answered: set[str] = set()
        self._refusals: defaultdict[str, list[str]] = defaultdict(list)

    def answered(self, teacher: str) -> None:
        """Note an answer."""
        self._answered.add(teacher)

    def refused(self, teacher: str, reason: str) -> str | None:
        """Note a refusal, and return why the teacher is left out from now on; None while it is not."""
        if teacher in self._answered:
            return None
        self._refusals[teacher].append(_OF_ONE_REQUEST.sub("#", reason))
        last = self._refusals[teacher][-ALIKE:]
        return f"its first questions were all refused: {reason}" if len(last) == ALIKE and len(set(last)) == 1 else None
