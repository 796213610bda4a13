"""Held-out calls of a project of JavaScript: an instrumented copy writes down those of its tests, and the gold code answers
variations."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from composer_replication.languages.calls.asking import Asked, answered_book, judged_calls, recorded_values
from composer_replication.languages.calls.book import CallBook
from composer_replication.languages.calls.call import FunctionCall, is_inside
from composer_replication.languages.javascript.calls import ask
from composer_replication.languages.javascript.instrument import ModuleFunction, instrumented, targets_of
from composer_replication.languages.javascript.layout import framework_in
from composer_replication.languages.javascript.runner import JavaScriptRunner
from composer_replication.languages.javascript.settings import FRAMEWORKS
from composer_replication.languages.javascript.values import is_value
from composer_replication.sandbox.protocol import Ending, Tree
from composer_replication.types.held_out_checks import HeldOutProgram

_KINDS = frozenset({"function", "static", "method", "get", "set", "new"})
_ON_OBJECT = frozenset({"method", "get", "set"})


def make_call_book(
    runner: JavaScriptRunner, tree: Tree, files: Mapping[str, bytes], tests: Sequence[str], passing: Iterable[str], *, seed: int
) -> CallBook:
    """Record the calls that tests make, vary them, and keep what the gold code answers.

    Args:
        files: the project's sources, by POSIX path.
        tests: what the runner is given.
        passing: ids of tests that pass.

    Raises:
        SandboxError: the sandbox broke.
    """
    test_files = sorted({test_id.partition("::")[0] for test_id in passing})
    framework = framework_in(tree.base, test_files)
    made = instrumented(files)
    observed = replace(tree, changes={**tree.changes, **made.files})
    run, lines = runner.run_observed(observed, {}, tests)
    known = {one.key: one for path, source in files.items() for one in targets_of(path, source)}
    how = {"framework": framework, "test": test_files[0] if test_files else "asker.js"}

    def answers(calls: Sequence[FunctionCall], blocks: bool) -> Asked:
        return ask(runner, observed if blocks else tree, calls, framework, judged=False)

    return answered_book(run, _recorded(lines or (), known, how), seed, answers)


def _recorded(lines: Iterable[Any], known: Mapping[str, ModuleFunction], how: Mapping[str, str]) -> Iterator[FunctionCall]:
    """Yield the calls that can be made again: of functions all of whose calls were looked at, with values that can be made."""
    for key, given in recorded_values(lines, known, is_value):
        target = known[key]
        if target.kind not in _ON_OBJECT or given[0]["k"] not in ("undefined", "null"):
            own = {"owner": target.owner, "member": target.member, "kind": target.kind}
            yield FunctionCall(key=target.key, how={**own, **how}, given=tuple(given))


def wrong_calls(runner: JavaScriptRunner, tree: Tree, programs: Sequence[HeldOutProgram]) -> tuple[list[int], Ending]:
    """Return the numbers of the held-out calls whose answers are wrong, and how the sandbox ended.

    Raises:
        TaskError: a program is not a call.
        SandboxError: the sandbox broke.
    """

    def answers(calls: Sequence[FunctionCall]) -> Asked:
        return ask(runner, tree, calls, calls[0].how["framework"], judged=True)

    return judged_calls(programs, is_call, answers)


def is_call(call: FunctionCall) -> bool:
    """Return whether untrusted data are a call. Raises KeyError, TypeError or AttributeError on data of other types."""
    how = call.how
    path, mark, name = call.key.partition("::")
    inside = all(map(is_inside, (path, how["test"]))) and bool(mark and name) and "." in how["test"].rpartition("/")[2]
    named = all(part.replace("$", "_").isidentifier() for part in how["owner"].split(".")) and how["member"].isprintable()
    return (
        inside
        and named
        and how["kind"] in _KINDS
        and how["framework"] in (*FRAMEWORKS, "node")
        and all(map(is_value, call.given))
    )
