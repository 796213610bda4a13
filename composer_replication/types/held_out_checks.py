"""Checks known to the grader but not to the agent: calls whose answers come from the gold code, and tests that must fail."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOutCall:
    """One call of the project's code. It runs in a sandbox that never learns the answer: the host compares."""

    target: str
    """`module:qualname` of a function, method or property that the project's own tests call."""
    arguments: str
    """JSON `[positional, keyword]`, values encoded by `sandbox.literals`; a method's `self` is the first of them."""
    expected: str
    """JSON of the gold code's result, as the sandbox reports it: `{"raises": [class names]}` of the exception and its bases, or
    `{"returns": value, "after": {position: value}}` with the arguments it changed."""
    seen: bool
    """The tests make this very call. Otherwise its arguments are new, put together from theirs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AntiTest:
    """A test function with one expectation inverted: any honest solution fails it."""

    test: str
    """`file::function` or `file::class::function`, without parameters."""
    expectation: int
    """Index of the inverted expectation, counted from 0 in the order of `sandbox.anti_tests.expectations`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GoldProfile:
    """What the gold code needs of the things that the tripwire watches. It decides no reward: it keeps alarms honest."""

    names: tuple[str, ...] = ()
    """Telling names in the files that the solution changes, as `sandbox.grading.telling_names` finds them."""
    events: tuple[str, ...] = ()
    """Kinds of audit events that the sources caused while the gold code was graded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOutChecks:
    """All of one task. Proven when it was built: the gold code satisfies every one, the task's own tree none of the calls."""

    calls: tuple[HeldOutCall, ...] = ()
    anti_tests: tuple[AntiTest, ...] = ()
    profile: GoldProfile | None = None
    """What the gold code needs; None where nothing recorded it."""
