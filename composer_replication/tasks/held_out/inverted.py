"""Anti-tests of a project: one for each test function, as far as its copies behave as they should, in any order."""

from __future__ import annotations

import random
from collections.abc import Set
from pathlib import Path

from composer_replication.sandbox.grading.anti_tests import expectations
from composer_replication.sandbox.grading.held_out import lay_out
from composer_replication.sandbox.grading.pytest_run import CodeRunner
from composer_replication.sandbox.protocol import Ending, Tree
from composer_replication.types.held_out_checks import AntiTest

_MOST_CASES = 40
"""Limit on the cases of a parametrized test that an anti-test is made from."""


def make_anti_tests(runner: CodeRunner, tree: Path, passing: Set[str], rng: random.Random) -> tuple[list[AntiTest], str]:
    """Return them, and why there are none. Raises SandboxError."""
    cases: dict[str, int] = {}
    for test_id in passing:
        name = test_id.partition("[")[0]
        cases[name] = cases.get(name, 0) + 1
    counts = {
        f"{path}::{name}": count
        for path in sorted({name.partition("::")[0] for name in cases})
        if path.endswith(".py")
        for name, count in expectations((tree / path).read_bytes()).items()
    }
    chosen = [
        AntiTest(test=test, expectation=rng.randrange(count))
        for test, count in counts.items()
        if count and 0 < cases.get(test, 0) <= _MOST_CASES
    ]
    if not chosen:
        return [], "no anti-tests: no test has an expectation to turn around"
    broken: set[int] = set()
    for opposite_first in (False, True):
        laid_out = lay_out(chosen, tree, opposite_first=[opposite_first] * len(chosen))
        run = runner.run(Tree(base=tree, changes=laid_out.files), laid_out.wanted)
        if run.ending is not Ending.EXITED or run.tampered:
            return [], f"no anti-tests: their run ended early ({run.ending})"
        broken |= {number for number, _ in laid_out.broken(run.outcomes)}
    return [test for number, test in enumerate(chosen) if number not in broken], ""
