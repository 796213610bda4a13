"""Held-out calls of a Java project: an instrumented copy writes down those of its tests, and the gold code answers variations."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from composer_replication.languages.calls.asking import answered_book, judged_calls, recorded_values
from composer_replication.languages.calls.book import CallBook
from composer_replication.languages.calls.call import FunctionCall
from composer_replication.languages.java.calls import ask
from composer_replication.languages.java.instrument import callables_of, instrumented
from composer_replication.languages.java.runner import JavaRunner
from composer_replication.languages.java.syntax import JavaMember
from composer_replication.languages.java.values import is_value
from composer_replication.sandbox.protocol import Ending, Tree
from composer_replication.types.held_out_checks import HeldOutProgram

_KINDS = frozenset({"method", "static", "new"})
_NAME = re.compile(r"[\w$]+(\.[\w$]+)*")
_TYPE = re.compile(r"[\w$?]+(\[\])*")


def make_call_book(runner: JavaRunner, tree: Tree, files: Mapping[str, bytes], tests: Sequence[str], *, seed: int) -> CallBook:
    """Record the calls that tests make, vary them, and keep what the gold code answers.

    Args:
        files: the project's sources, by POSIX path.
        tests: what the runner is given.

    Raises:
        SandboxError: the sandbox broke.
    """
    made = instrumented(runner.sources(tree))
    observed = replace(tree, changes={**tree.changes, **made.files})
    run, lines = runner.run_observed(observed, {}, tests)
    known = {key: one for path, source in files.items() for key, one in callables_of(path, source).items()}
    recorded = _recorded(lines or (), known)
    return answered_book(
        run, recorded, seed, lambda calls, blocks: ask(runner, observed if blocks else tree, calls, judged=False)
    )


def _recorded(lines: Iterable[Any], known: Mapping[str, JavaMember]) -> Iterator[FunctionCall]:
    """Yield the calls that can be made again: of methods all of whose calls were looked at, with values that can be made."""
    for key, given in recorded_values(lines, known, is_value):
        one = known[key]
        if one.kind != "method" or given[0]["k"] != "nil":
            how = {"owner": one.owner, "name": one.name, "types": list(one.types), "kind": one.kind}
            yield FunctionCall(key=key, how=how, given=tuple(given))


def wrong_calls(runner: JavaRunner, tree: Tree, programs: Sequence[HeldOutProgram]) -> tuple[list[int], Ending]:
    """Return the numbers of the held-out calls whose answers are wrong, and how the sandbox ended.

    Raises:
        TaskError: a program is not a call.
        SandboxError: the sandbox broke.
    """
    return judged_calls(programs, is_call, lambda calls: ask(runner, tree, calls, judged=True))


def is_call(call: FunctionCall) -> bool:
    """Return whether untrusted data are a call. Raises KeyError, TypeError or AttributeError on data of other types."""
    how = call.how
    types = how["types"]
    named = _NAME.fullmatch(how["owner"]) is not None and _NAME.fullmatch(how["name"]) is not None
    whole = isinstance(types, list) and all(_TYPE.fullmatch(one) for one in types)
    wanted = len(types) + (how["kind"] == "method")
    return named and whole and how["kind"] in _KINDS and len(call.given) == wanted and all(map(is_value, call.given))
