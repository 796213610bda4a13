"""What the tests did with TRL's trainer beside what they did with ours. This file imports neither."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path

PASSED = "passed"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one test did: passed, failed, skipped, xfailed or missing, and why if it did not pass."""

    result: str
    why: str = ""

    def __str__(self) -> str:
        first = self.why.strip().partition("\n")[0]
        return f"{self.result}: {first}" if first else self.result


MISSING = Outcome("missing", "the other run had this test, and this one did not")


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """An option that our trainer refuses on purpose, and the tests that use it."""

    tests: str
    """A shell pattern of test ids, in which brackets stand for themselves."""
    error: str
    """The beginning of the error that these tests must fail with."""
    reason: str
    """Why the trainer refuses the option."""

    def covers(self, test: str) -> bool:
        """Return whether the pattern matches a test id."""
        return fnmatchcase(test, self.tests.replace("[", "[[]"))


@dataclass(frozen=True, slots=True)
class Comparison:
    """Every test by what it did with each of the two trainers; values are outcomes with theirs, with ours."""

    same: Sequence[str]
    """Tests that pass with both."""
    neither: Mapping[str, tuple[Outcome, Outcome]]
    """Tests that pass with neither."""
    lost: Mapping[str, tuple[Outcome, Outcome]]
    """Tests that pass with theirs, and not with ours."""
    gained: Mapping[str, tuple[Outcome, Outcome]]
    """Tests that pass with ours alone."""
    refused: Mapping[str, Refusal]
    """Tests that pass with theirs and fail with ours with the error of a refusal."""
    stale: Sequence[Refusal] = field(default=())
    """Refusals that explain no test."""

    @property
    def passed(self) -> bool:
        """Whether what passes with theirs passes with ours, but for what is refused on purpose."""
        return bool(self.same) and not self.lost and not self.stale


def read_outcomes(path: Path) -> dict[str, Outcome]:
    """Read the plugin's file. Of several phases of a test the first that did not pass counts."""
    found: dict[str, Outcome] = {}
    for line in path.read_text("utf-8").splitlines():
        row = json.loads(line)
        if found.get(row["test"], Outcome(PASSED)).result == PASSED:
            found[row["test"]] = Outcome(row["outcome"], row["why"])
    return found


def compare(theirs: Mapping[str, Outcome], ours: Mapping[str, Outcome], refusals: Iterable[Refusal] = ()) -> Comparison:
    """Sort the tests of both runs. A test that only one run has counts as missing in the other."""
    refusals = list(refusals)
    pairs = {test: (theirs.get(test, MISSING), ours.get(test, MISSING)) for test in sorted({*theirs, *ours})}
    only_theirs = {test: pair for test, pair in pairs.items() if pair[0].result == PASSED and pair[1].result != PASSED}
    refused = {test: found for test, pair in only_theirs.items() if (found := _refusal_of(test, pair[1], refusals))}
    return Comparison(
        same=[test for test, pair in pairs.items() if pair[0].result == pair[1].result == PASSED],
        neither={test: pair for test, pair in pairs.items() if PASSED not in (pair[0].result, pair[1].result)},
        lost={test: pair for test, pair in only_theirs.items() if test not in refused},
        gained={test: pair for test, pair in pairs.items() if pair[0].result != PASSED and pair[1].result == PASSED},
        refused=refused,
        stale=[refusal for refusal in refusals if refusal not in refused.values()],
    )


def _refusal_of(test: str, outcome: Outcome, refusals: Iterable[Refusal]) -> Refusal | None:
    fitting = (one for one in refusals if one.covers(test) and outcome.why.startswith(one.error))
    return next(fitting, None) if outcome.result == "failed" else None


def table(found: Comparison) -> str:
    """Return the comparison for a terminal: counts, tests that pass with one trainer alone, why others pass with neither."""
    counts = {
        "pass with both": len(found.same),
        "pass with theirs and not with ours": len(found.lost),
        "pass with theirs, refused by ours on purpose": len(found.refused),
        "pass with ours alone": len(found.gained),
        "pass with neither": len(found.neither),
    }
    lines = [f"{count:>5}  {name}" for name, count in counts.items()]
    for test, pair in (*found.lost.items(), *found.gained.items()):
        lines += ["", test, f"    theirs {pair[0]}", f"    ours   {pair[1]}"]
    for test, refusal in found.refused.items():
        lines += ["", f"refused on purpose: {test}", f"    {refusal.reason}"]
    for refusal in found.stale:
        lines += ["", f"no test fails with the error of this refusal: {refusal.tests}", f"    {refusal.error}"]
    lines += ["", "with neither, by what happened with theirs:", *(f"{count:>5}  {why}" for why, count in reasons(found))]
    return "\n".join(lines)


def reasons(found: Comparison) -> list[tuple[str, int]]:
    """Return why tests pass with neither, as far as theirs says, with their number, the most frequent first."""
    return Counter(str(pair[0]) for pair in found.neither.values()).most_common()


def figures(found: Comparison) -> dict[str, object]:
    """Return the comparison for the line of JSON."""
    return {
        "passed": found.passed,
        "both": len(found.same),
        "lost": sorted(found.lost),
        "gained": sorted(found.gained),
        "refused": {test: refusal.reason for test, refusal in found.refused.items()},
        "stale": [refusal.tests for refusal in found.stale],
        "neither": dict(reasons(found)),
    }
