"""Held-out calls of a project of JavaScript: an instrumented copy writes down those of its tests, and the gold code answers
variations."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from composer_replication.languages.calls.book import (
    CallBook,
    read_program,
    steady_calls,
    with_variations,
    without_throwing,
    wrong_answers,
)
from composer_replication.languages.calls.call import FunctionCall
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
    calls, bases = with_variations(_recorded(lines or (), known, how), seed)
    if not calls:
        why = next(iter(run.collect_errors), f"the tests ended: {run.ending}")
        return CallBook(calls={}, notes=(f"no call of the tests could be recorded: {why}",))
    first, _, said = ask(runner, observed, calls, framework, judged=False)
    again, _, _ = ask(runner, tree, calls, framework, judged=False)
    kept = without_throwing(steady_calls(calls, bases, first, again))
    return CallBook(calls=kept, notes=(f"held-out calls: {said}",) if said else ())


def _recorded(lines: Iterable[Any], known: Mapping[str, ModuleFunction], how: Mapping[str, str]) -> Iterator[FunctionCall]:
    """Yield the calls that can be made again: of functions all of whose calls were looked at, with values that can be made."""
    lines = [line for line in lines if isinstance(line, list) and len(line) > 1 and isinstance(line[1], str)]
    full = {line[1] for line in lines if line[0] == "full"}
    for line in lines:
        if not (len(line) == 3 and line[0] == "call" and line[1] in known and line[1] not in full):
            continue
        target, given = known[line[1]], line[2]
        if not isinstance(given, list) or not given or not all(map(is_value, given)):
            continue
        if target.kind in _ON_OBJECT and given[0]["k"] in ("undefined", "null"):
            continue
        own = {"owner": target.owner, "member": target.member, "kind": target.kind}
        yield FunctionCall(key=target.key, how={**own, **how}, given=tuple(given))


def wrong_calls(runner: JavaScriptRunner, tree: Tree, programs: Sequence[HeldOutProgram]) -> tuple[list[int], Ending]:
    """Return the numbers of the held-out calls whose answers are wrong, and how the sandbox ended.

    Raises:
        TaskError: a program is not a call.
        SandboxError: the sandbox broke.
    """
    known = [read_program(program, is_call) for program in programs]
    if not known:
        return [], Ending.EXITED
    answers, ending, _ = ask(runner, tree, [call for call, _ in known], known[0][0].how["framework"], judged=True)
    return wrong_answers(known, answers), ending


def is_call(call: FunctionCall) -> bool:
    """Return whether untrusted data are a call. Raises KeyError, TypeError or AttributeError on data of other types."""
    how = call.how
    path, mark, name = call.key.partition("::")
    inside = all(_is_inside(one) for one in (path, how["test"])) and bool(mark and name)
    named = all(part.replace("$", "_").isidentifier() for part in how["owner"].split(".")) and how["member"].isprintable()
    return (
        inside
        and named
        and how["kind"] in _KINDS
        and how["framework"] in (*FRAMEWORKS, "node")
        and all(map(is_value, call.given))
    )


def _is_inside(path: str) -> bool:
    return bool(path) and path.isprintable() and not path.startswith("/") and ".." not in path.split("/")
