"""Held-out calls of a Rust project: an instrumented copy writes down those of its tests, and the gold code answers variations."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from composer_replication.languages.calls.asking import answered_book, judged_calls
from composer_replication.languages.calls.book import CallBook
from composer_replication.languages.calls.call import FunctionCall, is_inside
from composer_replication.languages.calls.values import is_made_of
from composer_replication.languages.rust.calls import ask
from composer_replication.languages.rust.crates import Crate
from composer_replication.languages.rust.instrument import Project, recording
from composer_replication.languages.rust.runner import RustRunner
from composer_replication.languages.rust.targets import CallTarget, how_of, targets_of
from composer_replication.sandbox.protocol import Ending, Tree
from composer_replication.types.held_out_checks import HeldOutProgram

_TEXTS = ("root", "name", "owner", "trait", "format")
_TYPE = re.compile(r"[\w\s:<>,&*'\[\]();=+?-]*")
_PASSED = re.compile(r"(&(mut )?)?(\{\}(\[\.\.\]|\.as_ref\(\))?)?")
_PLAIN = frozenset({"bool", "int", "uint", "float", "string", "name"})
_INNER = frozenset({"list", "map", "struct", "pointer", "nil"})


def make_call_book(runner: RustRunner, tree: Tree, sources: Sequence[str], tests: Sequence[str], *, seed: int) -> CallBook:
    """Record the calls that tests make, vary them, and keep what the gold code answers.

    Args:
        sources: the files whose functions may be deleted.
        tests: what the runner is given.

    Raises:
        SandboxError: the sandbox broke.
    """
    mark = secrets.token_hex(8)
    made = recording(tree, mark)
    run, lines = runner.run_observed(tree, {"made": made, "mark": mark, "calls": True}, tests)
    recorded = _recorded(lines or (), made.project, sources)
    return answered_book(run, recorded, seed, lambda calls, blocks: ask(runner, tree, calls, judged=False, blocks=blocks))


def _recorded(lines: Iterable[Any], project: Project, sources: Sequence[str]) -> Iterator[FunctionCall]:
    """Yield the calls that can be made again: of known functions, with types that can be named."""
    known: dict[str, tuple[CallTarget, Crate]] = {}
    for crate, modules in project.crates:
        for path in modules:
            if crate.kind != "test" and path in sources:
                for target in targets_of(path, project.read(path)):
                    known.setdefault(target.key, (target, crate))
    for line in lines:
        if not (isinstance(line, list) and len(line) == 4 and isinstance(line[0], str) and line[0] in known):
            continue
        (target, crate), types, kinds, given = known[line[0]], *line[1:]
        if not (_are_texts(types, len(target.stands_for)) and _are_texts(kinds, len(target.given)) and isinstance(given, list)):
            continue
        how = how_of(target, crate.name, crate.root, types, kinds)
        if how is not None and all(map(_is_value, given)):
            yield FunctionCall(key=target.key, how=how, given=tuple(given))


def _are_texts(found: Any, count: int) -> bool:
    return isinstance(found, list) and len(found) == count and all(isinstance(one, str) for one in found)


def _is_value(value: Any) -> bool:
    return is_made_of(value, _is_node)


def _is_node(node: Any) -> bool:
    if node["k"] not in _PLAIN:
        return node["k"] in _INNER
    return isinstance(node["v"], str) and isinstance(node.get("t", ""), str)


def wrong_calls(runner: RustRunner, tree: Tree, programs: Sequence[HeldOutProgram]) -> tuple[list[int], Ending]:
    """Return the numbers of the held-out calls whose answers are wrong, and how the sandbox ended.

    Raises:
        TaskError: a program is not a call.
        SandboxError: the sandbox broke.
    """
    return judged_calls(programs, is_call, lambda calls: ask(runner, tree, calls, judged=True))


def is_call(call: FunctionCall) -> bool:
    """Return whether untrusted data are a call. Raises KeyError, TypeError or AttributeError on data of other types."""
    how: Mapping[str, Any] = call.how
    inside = all(map(is_inside, (how["root"], call.key.partition("::")[0])))
    named = all(map(_is_name, [how["name"], *how["modules"]])) and re.fullmatch(r"(\{(:\w?\??)?\})?", how["format"]) is not None
    types = [how["owner"], how["trait"], *how["types"], *(kind for _, kind in how["passed"])]
    passed = len(how["passed"]) == len(call.given) >= 1 and all(_PASSED.fullmatch(way) for way, _ in how["passed"])
    written = all(isinstance(how[name], str) for name in _TEXTS) and all(_TYPE.fullmatch(kind) for kind in types)
    return inside and named and passed and written and all(map(_is_value, call.given))


def _is_name(text: str) -> bool:
    return text.removeprefix("r#").isidentifier()
