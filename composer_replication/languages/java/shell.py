"""Compile a project, run its tests and print their outcomes: the command `run-tests` of an agent's shell.

This text runs behind that of `driver`, in one namespace.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from composer_replication.languages.java.driver import built, run_tests

    SUPPORT: dict[str, str] = {}

ALL_S, TEST_S = 600, 60


def say(line: str) -> None:
    """Print a line."""
    sys.stdout.write(line + "\n")


def report(wanted: Sequence[str]) -> int:
    """Run the tests of files, folders and ids, all when there are none; return an exit status."""
    request: dict[str, Any] = {
        **{"ids": [one for one in wanted if "::" in one], "extra": [one for one in wanted if "::" not in one]},
        **{"mark": "shell", "support": SUPPORT, "recorders": [], "all_s": ALL_S, "test_s": TEST_S},
    }
    project = built(request)
    found = run_tests(project, request)
    for error in [*project.errors, *found.errors, *(f"{start} {said}" for start, said in found.groups.items())]:
        say(f"ERROR {error}")
    states = list(found.states.values())
    for test_id, state in found.states.items():
        if state != "passed":
            say(f"{state.upper()} {test_id}: {found.messages.get(test_id, '')}")
    say(", ".join(f"{states.count(state)} {state}" for state in ("passed", "failed", "skipped")))
    whole = states and not project.errors and not found.errors and not found.groups
    return 0 if whole and "failed" not in states else 1


if __name__ == "__main__":
    sys.exit(report(sys.argv[1:]))
