"""Held-out calls of a Go module: an instrumented copy writes down those of its tests, and the gold code answers variations."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from composer_replication.languages.calls.book import CallBook, read_program, steady_calls, with_variations, wrong_answers
from composer_replication.languages.calls.call import FunctionCall
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
    calls, bases = with_variations(_recorded(lines or (), known, types_of(files)), seed)
    if not calls:
        why = next(iter(run.collect_errors), f"the tests ended: {run.ending}")
        return CallBook(calls={}, notes=(f"no call of the tests could be recorded: {why}",))
    more = ("values", "recorder", "hits")
    extra = {folder: _named(support(folder, package, more)) for folder, package in packages_of(files).items()}
    hits = Tree(base=tree.base, changes={**tree.changes, **observed})
    first, _, said = ask(runner, hits, calls, judged=False, extra=extra)
    again, _, _ = ask(runner, tree, calls, judged=False)
    kept = steady_calls(calls, bases, first, again)
    return CallBook(calls=kept, notes=(f"held-out calls: {said}",) if said else ())


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
    known = [read_program(program, is_call) for program in programs]
    answers, ending, _ = ask(runner, tree, [call for call, _ in known], judged=True)
    return wrong_answers(known, answers), ending


def is_call(call: FunctionCall) -> bool:
    """Return whether untrusted data are a call. Raises KeyError, TypeError or AttributeError on data of other types."""
    how = call.how
    names = (how["package"], *how["name"].split("."))
    inside = how["folder"] == "." or (not how["folder"].startswith("/") and ".." not in how["folder"].split("/"))
    numbers = isinstance(how["results"], int) and 0 <= how["results"] <= _MOST_RESULTS and len(call.given) >= 1
    switches = all(isinstance(how[name], bool) for name in ("method", "variadic"))
    return numbers and switches and inside and all(map(str.isidentifier, names)) and all(map(is_value, call.given))
