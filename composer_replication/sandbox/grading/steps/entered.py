"""Stand-ins for the context managers of tests, so that a recorder sees how they are entered and left.

The text of this module runs inside a sandbox, in front of that of `steps.recorder`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol


class StepWriter(Protocol):
    """The part of a recorder that they use."""

    def method(self, owner: Any, name: str, /, *args: Any, **named: Any) -> Any: ...

    def attempt(self, make: Callable[[], Any]) -> Any: ...

    def matched(self, error: BaseException, pattern: str) -> None: ...


def pattern_of(expecting: Any) -> str | None:
    """Return the pattern that a `raises` of pytest or unittest has for the message of the exception."""
    for name in ("match_expr", "match", "expected_regex"):
        pattern = getattr(expecting, name, None)
        if isinstance(pattern, re.Pattern) and pattern.flags == re.compile("").flags:
            pattern = pattern.pattern
        if isinstance(pattern, str):
            return pattern
    return None


class Expecting:
    """A context manager of the test framework that expects an exception with a message."""

    def __init__(self, recorder: StepWriter, manager: Any, pattern: str) -> None:
        self.recorder, self.manager, self.pattern = recorder, manager, pattern

    def __enter__(self) -> Any:
        return self.manager.__enter__()

    def __exit__(self, kind: Any, error: Any, trace: Any) -> Any:
        swallowed = self.manager.__exit__(kind, error, trace)
        if swallowed:
            self.recorder.attempt(partial(self.recorder.matched, error, self.pattern))
        return swallowed


class Entered:
    """A context manager of the project whose entry and exit are steps."""

    def __init__(self, recorder: StepWriter, manager: Any) -> None:
        self.recorder, self.manager = recorder, manager

    def __enter__(self) -> Any:
        return self.recorder.method(self.manager, "__enter__")

    def __exit__(self, kind: Any, error: Any, trace: Any) -> Any:
        if kind is not None:
            return self.manager.__exit__(kind, error, trace)
        return self.recorder.method(self.manager, "__exit__", None, None, None)
