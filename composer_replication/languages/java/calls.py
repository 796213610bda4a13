"""Calls of a Java project's methods, made in a sandbox and answered as plain data: the host compares, and no sandbox sees what is
expected."""

from __future__ import annotations

import secrets
from collections.abc import Sequence

from composer_replication.languages.calls.asking import Asked, answers_of
from composer_replication.languages.calls.call import FunctionCall
from composer_replication.languages.java.runner import JavaRunner
from composer_replication.languages.java.settings import TEST_FOLDERS, place_of
from composer_replication.languages.java.support import ASKERS, FOLDER, support_files
from composer_replication.languages.programs import program_of
from composer_replication.languages.tree_files import files_of, without_files
from composer_replication.sandbox.protocol import Tree

_JUDGED_S, _GOLD_S, _START_S = 15.0, 4.0, 60.0
"""Seconds without an answer after which a call is given up: less for the gold code, so that a slower machine does not turn right
into wrong; and until the first call is begun."""
_REPEATS = 12
"""Times that the gold code makes each call in each of two processes."""


def ask(runner: JavaRunner, tree: Tree, calls: Sequence[FunctionCall], *, judged: bool) -> Asked:
    """Make calls over a tree without its tests; return an answer each, None for one without, how the sandbox ended, and why no
    call could be made.

    Args:
        judged: work is judged, and only what is compared is answered.

    Raises:
        SandboxError: the sandbox broke.
    """
    request = {
        **{"support": support_files(), "askers": list(ASKERS), "mark": secrets.token_hex(8), "all_s": runner.limits.wall_s},
        **{"calls": [{"key": call.key, "how": dict(call.how), "given": list(call.given)} for call in calls]},
        **{"details": not judged, "repeats": 1 if judged else _REPEATS, "call_s": _JUDGED_S if judged else _GOLD_S},
        **{"start_s": _START_S},
    }
    program = program_of(FOLDER, "settings", "toolchain", "ask_driver")
    result, found = runner.ask(without_tests(tree), program, request, {}, judged=judged)
    answers, said = answers_of([found], [range(len(calls))], len(calls))
    return answers, result.ending, said


def without_tests(tree: Tree) -> Tree:
    """Return the tree without its tests and all that lies in a folder of tests. Raises SandboxError when the base cannot be
    listed."""
    return without_files(tree, filter(_is_of_tests, files_of(tree)))


def _is_of_tests(path: str) -> bool:
    place = place_of(path)
    return place == "test" or (not place and bool(TEST_FOLDERS.intersection(path.split("/")[:-1])))
