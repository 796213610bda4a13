"""Checks known to the grader but not to the agent: programs whose answers come from the gold code, and tests that must fail."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOutProgram:
    """Steps over a project's objects. They run in a sandbox that never learns the answers: the host compares."""

    steps: str
    """JSON list of `[number, step]`, in the form of `sandbox.grading.steps.recorder`."""
    expected: str
    """JSON list of the gold code's answer to each step, `["returns", result]` or `["raises", class names]`; null where it is not
    compared."""
    uses: str
    """Key (`path::qualname`) of the function for which it was chosen; the path of a file where it runs none."""
    new_calls: int
    """Calls of that function that it makes and no recorded test does, at most two; 0 for the steps of a test."""


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
    """All of one task. Proven when it was built: the gold code satisfies every one, the task's own tree none of the programs."""

    programs: tuple[HeldOutProgram, ...] = ()
    anti_tests: tuple[AntiTest, ...] = ()
    weakness: str = ""
    """Why the programs are no evidence that the feature is there, such as a trivial body, alone or behind the tests' answers,
    that satisfies them; details come after a colon. Empty when every mutant fails that was tried; never without programs."""
    profile: GoldProfile | None = None
    """What the gold code needs; None where nothing recorded it."""
    untold: int = 0
    """Parts of an imported solution, outside of its functions, that no program of the tests tells: work may lack them."""

    def __post_init__(self) -> None:
        if not self.programs and not self.weakness:
            object.__setattr__(self, "weakness", "it has no held-out programs")
