"""Calls of a Rust project's functions, made in a sandbox and answered as plain data: the host compares, and no sandbox sees what
is expected.

The calls are read as JSON by a generated test of the crate; what makes them stands in the module of each function, so that
private functions and fields can be reached. It is compiled without the project's own tests.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from composer_replication.languages.calls.asking import Asked, answers_of
from composer_replication.languages.calls.call import FunctionCall
from composer_replication.languages.programs import program_of
from composer_replication.languages.rust.crates import Crate, RustModule
from composer_replication.languages.rust.inline_tests import without_tests
from composer_replication.languages.rust.instrument import (
    Project,
    generated,
    hits_in,
    project_of,
    support_name,
    template,
    with_own_tests,
    with_shapes,
    with_support,
)
from composer_replication.languages.rust.runner import FOLDER, RustRunner
from composer_replication.languages.rust.syntax import items_of, root_of
from composer_replication.languages.trees import text_of
from composer_replication.sandbox.protocol import Tree

_JUDGED_MS, _GOLD_MS = 2000, 400
"""Limits of one call: less for the gold code, so that a slower machine does not turn right into wrong."""
_JUDGED_ENDED, _GOLD_ENDED = 10, 200
"""Calls that may end the process before the others count as unanswered: made-up values bring code down that is `unsafe`."""
_REPEATS = 12
"""Times that the gold code makes each call: an order of a map is another each time."""
_Place: TypeAlias = "tuple[str, tuple[str, ...]]"
"""A file, and the modules of that file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Way:
    """A way to call a function: it is compiled once, whatever it is given."""

    number: int
    place: _Place
    how: Mapping[str, Any]

    def arm(self, support: str) -> str:
        """Return the arm of a `match` that reads what is given, calls, and looks at what comes of it."""
        own = f"crate::{support}::asker"
        names = [f"g{number}" for number in range(len(self.how["passed"]))]
        text = ""
        for at, (name, (_, kind)) in enumerate(zip(names, self.how["passed"], strict=True)):
            kind = kind or (self.how["owner"] if self.how["format"] else "")
            wanted = f": {_here(kind, support)}" if kind else ""
            text += f"let mut {name}{wanted} = {own}::read(given, {at})?; "
        text += "".join(f"ask.before(&{name}); " for name in names)
        text += f"ask.begin(); ask.result({self._call(names, support)}); "
        for name, (how, _) in zip(names, self.how["passed"], strict=True):
            text += f"ask.after(&{name}); " if how else "ask.moved(); "
        return f"{self.number} => {{ {text}Some(()) }}"

    def _call(self, names: Sequence[str], support: str) -> str:
        how = self.how
        if how["format"]:
            return f'crate::{support}::asker::said(format_args!("{how["format"]}", {names[0]}))'
        given = ", ".join(way.replace("{}", name) or name for name, (way, _) in zip(names, how["passed"], strict=True))
        types = f"::<{', '.join(_here(one, support) for one in how['types'])}>" if how["types"] else ""
        if not how["owner"]:
            return f"{how['name']}{types}({given})"
        trait = f" as {_here(how['trait'], support)}" if how["trait"] else ""
        return f"<{_here(how['owner'], support)}{trait}>::{how['name']}{types}({given})"


def _here(kind: str, support: str) -> str:
    """Return a type as it is named inside of a crate that may not know `std` or `asker`."""
    text = re.sub(r"(?<![\w:])std::", f"crate::{support}::std::", kind)
    return re.sub(r"^asker::", f"crate::{support}::asker::", text)


def ask(runner: RustRunner, tree: Tree, calls: Sequence[FunctionCall], *, judged: bool, blocks: bool = False) -> Asked:
    """Make calls over a tree without its tests; return an answer each, None for one without, how the sandbox ended, and what the
    compiler said.

    Args:
        judged: work is judged, and only what is compared is answered.
        blocks: answer also which blocks of the code each call runs.

    Raises:
        SandboxError: the sandbox broke.
    """
    mark = secrets.token_hex(8)
    support = support_name(mark)
    roots: dict[str, list[int]] = {}
    for number, call in enumerate(calls):
        roots.setdefault(call.how["root"], []).append(number)
    project = project_of(with_own_tests(tree))
    ways = _ways_of(calls)
    crates = [
        {
            "root": root,
            "names": ",".join(sorted({crate.name for crate, _ in project.crates})),
            "test": f"{support}::asker::ask",
            "calls": [json.dumps([str(ways[_way_key(calls[n])].number), list(calls[n].given)]) for n in numbers],
        }
        for root, numbers in roots.items()
    ]
    files = _files(project, list(ways.values()), mark, judged=judged, blocks=blocks)
    program = program_of(FOLDER, "settings", "toolchain", "ask_driver")
    most = _JUDGED_ENDED if judged else _GOLD_ENDED
    whole = replace(project.tree, changes={**project.tree.changes, **files})
    result, found = runner.ask(whole, program, {"crates": crates, "mark": mark, "most_ended": most}, {}, judged=judged)
    answers, said = answers_of(found, list(roots.values()), len(calls))
    return answers, result.ending, said


def _way_key(call: FunctionCall) -> str:
    return json.dumps([call.key.partition("::")[0], dict(call.how)], sort_keys=True)


def _ways_of(calls: Iterable[FunctionCall]) -> dict[str, _Way]:
    found: dict[str, _Way] = {}
    for call in calls:
        key = _way_key(call)
        if key not in found:
            place = (call.key.partition("::")[0], tuple(call.how["modules"]))
            found[key] = _Way(number=len(found), place=place, how=call.how)
    return found


def _files(project: Project, ways: Sequence[_Way], mark: str, *, judged: bool, blocks: bool) -> dict[str, bytes]:
    """Return the files of a project without its tests, with what makes the calls."""
    support = support_name(mark)
    bare = {path: without_tests(project.read(path)) if path in project.sources else b"" for path in project.files}
    noted, lines = hits_in({path: bare[path] for path in project.sources}, mark) if blocks else ({}, {})
    files = {**bare, **noted}
    for path in project.sources:
        files[path] = with_shapes(files[path], support)
    for crate, modules in project.crates:
        if crate.kind != "test":
            own = [way for way in ways if way.how["root"] == crate.root]
            for path, texts in _routes(crate, modules, own, support).items():
                files[path] = _with_ends(files[path], texts)
    asker = template("asker").replace("MILLISECONDS", str(_JUDGED_MS if judged else _GOLD_MS)).replace("NAME", support)
    asker = asker.replace("DETAILS", "false" if judged else "true").replace("REPEATS", "1" if judged else str(_REPEATS))
    more = dict.fromkeys(("json", "values", "standard", "collections", "whole"), "")
    more["asker"] = asker.replace("MARK", mark)
    return {**files, **with_support(project, files, mark, len(lines) + 1, more)}


def _routes(
    crate: Crate, modules: Mapping[str, RustModule], ways: Sequence[_Way], support: str
) -> dict[str, dict[tuple[str, ...], str]]:
    """Return the functions that lead to the calls, by file and module in it: each makes its own and hands on those of others."""
    arms: dict[_Place, list[str]] = {(crate.root, ()): []}
    handed: dict[_Place, dict[tuple[str, str], list[int]]] = {}
    for way in ways:
        place = way.place
        if place[0] not in modules:
            continue
        arms.setdefault(place, []).append(way.arm(support))
        while place != (crate.root, ()):
            path, inner = place
            module = modules[path]
            name, cfg = (inner[-1], "") if inner else (module.names[-1], _conditions(module.attributes))
            place = (path, inner[:-1]) if inner else module.parent
            handed.setdefault(place, {}).setdefault((name, cfg), []).append(way.number)
            arms.setdefault(place, [])
    found: dict[str, dict[tuple[str, ...], str]] = {}
    for place, own in arms.items():
        lines = [generated(arm).decode() for arm in own]
        for (name, cfg), numbers in handed.get(place, {}).items():
            lines.append(f"{cfg} {' | '.join(map(str, sorted(set(numbers))))} => {name}::{support}_ask(number, given, ask),")
        head = f"#[doc(hidden)] #[allow(warnings)] pub(crate) fn {support}_ask(number: usize, "
        head += (
            f"given: &[crate::{support}::json::Json], ask: &mut crate::{support}::asker::Ask) -> Option<()> {{ match number {{"
        )
        found.setdefault(place[0], {})[place[1]] = "\n".join(["", head, *lines, "_ => None } }", ""])
    return found


def _conditions(attributes: str) -> str:
    return " ".join(line for line in attributes.splitlines() if re.match(r"#\[\s*cfg\s*\(", line))


def _with_ends(source: bytes, texts: Mapping[tuple[str, ...], str]) -> bytes:
    """Return a file with texts at the ends of modules in it."""
    ends: dict[tuple[str, ...], int] = {(): len(source)}
    for item in items_of(root_of(source)):
        body = item.node.child_by_field_name("body")
        if item.node.type == "mod_item" and body is not None:
            ends[(*item.modules, text_of(item.node.child_by_field_name("name")))] = body.end_byte - 1
    known = ((ends[modules], text) for modules, text in texts.items() if modules in ends)
    for at, text in sorted(known, reverse=True):
        source = source[:at] + text.encode() + source[at:]
    return source
