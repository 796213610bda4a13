"""Held-out calls of a Go module: an instrumented copy writes down those of its tests, and the gold code answers variations."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from composer_replication.languages.calls.asking import Asked, answered_book, judged_calls
from composer_replication.languages.calls.book import CallBook
from composer_replication.languages.calls.call import FunctionCall, is_inside
from composer_replication.languages.go.calls import ask, call_of, names_types
from composer_replication.languages.go.instrument import Target, callables_of, instrumented, packages_of, support, types_of
from composer_replication.languages.go.runner import GoRunner
from composer_replication.languages.go.values import is_value
from composer_replication.sandbox.protocol import Ending, Tree
from composer_replication.types.held_out_checks import HeldOutProgram

_MOST_RESULTS = 20
_BUILTIN = frozenset(
    {
        *("bool", "string", "int", "int8", "int16", "int32", "int64", "uint", "uint8", "uint16", "uint32", "uint64", "uintptr"),
        *("float32", "float64", "map", "interface", "byte", "rune", "error", "any"),
    }
)


def make_call_book(runner: GoRunner, tree: Tree, files: Mapping[str, bytes], tests: Sequence[str], *, seed: int) -> CallBook:
    """Record the calls that tests make, vary them, and keep what the gold code answers.

    Args:
        files: the module's sources, by POSIX path.
        tests: what the runner is given.

    Raises:
        SandboxError: the sandbox broke.
    """
    observed = instrumented(files)
    run, lines = runner.run_observed(Tree(base=tree.base, changes={**tree.changes, **observed}), {}, tests)
    known = {one.key: one for path, source in files.items() for one in callables_of(path, source)}
    more = ("values", "recorder", "hits")
    extra = {folder: _named(support(folder, package, more)) for folder, package in packages_of(files).items()}
    hits = Tree(base=tree.base, changes={**tree.changes, **observed})

    def answers(calls: Sequence[FunctionCall], blocks: bool) -> Asked:
        return ask(runner, hits if blocks else tree, calls, judged=False, extra=extra if blocks else None)

    return answered_book(run, _recorded(lines or (), known, types_of(files)), seed, answers)


def _named(files: Mapping[str, bytes]) -> dict[str, bytes]:
    return {path.rpartition("/")[2]: content for path, content in files.items()}


def _recorded(lines: Iterable[Any], known: Mapping[str, Target], types: Mapping[str, set[str]]) -> Iterator[FunctionCall]:
    """Yield the calls that can be made again: of known functions, with types that the sources define."""
    for line in lines:
        if not (isinstance(line, list) and len(line) == 2 and line[0] in known and isinstance(line[1], list)):
            continue
        target = known[line[0]]
        if len(line[1]) != len(target.given) or not all(map(is_value, line[1])):
            continue
        call = call_of(target, line[1])
        nil_receiver = call.how["method"] and call.given[0]["k"] == "nil"
        if not nil_receiver and names_types(call) - _numbers(call) <= types.get(target.folder, set()) | _BUILTIN:
            yield call


def _numbers(call: FunctionCall) -> set[str]:
    return {word for word in names_types(call) if word.isdigit()}


def wrong_calls(runner: GoRunner, tree: Tree, programs: Sequence[HeldOutProgram]) -> tuple[list[int], Ending]:
    """Return the numbers of the held-out calls whose answers are wrong, and how the sandbox ended.

    Raises:
        TaskError: a program is not a call.
        SandboxError: the sandbox broke.
    """
    return judged_calls(programs, is_call, lambda calls: ask(runner, tree, calls, judged=True))


def is_call(call: FunctionCall) -> bool:
    """Return whether untrusted data are a call. Raises KeyError, TypeError or AttributeError on data of other types."""
    how = call.how
    names = (how["package"], *how["name"].split("."))
    numbers = isinstance(how["results"], int) and 0 <= how["results"] <= _MOST_RESULTS and len(call.given) >= 1
    switches = all(isinstance(how[name], bool) for name in ("method", "variadic"))
    return (
        numbers and switches and is_inside(how["folder"]) and all(map(str.isidentifier, names)) and all(map(is_value, call.given))
    )
