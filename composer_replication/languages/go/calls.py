"""Calls of a Go module's functions, made in a sandbox and answered as plain data: the host compares, and no sandbox sees what is
expected."""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import replace

from composer_replication.languages.calls.asking import Asked, answers_of
from composer_replication.languages.calls.call import FunctionCall
from composer_replication.languages.calls.values import Value, nodes_of
from composer_replication.languages.go.instrument import Target, support, template
from composer_replication.languages.go.runner import FOLDER, GoRunner
from composer_replication.languages.go.values import as_source
from composer_replication.languages.programs import program_of
from composer_replication.sandbox.beneath import OpenFolder
from composer_replication.sandbox.protocol import Tree
from composer_replication.types.errors import SandboxError

_ASKER = "zz_composer_asker_test.go"
_JUDGED_MS, _GOLD_MS = 2000, 400
"""Limits of one call: less for the gold code, so that a slower machine does not turn right into wrong."""
_REPEATS = 12
"""Times that the gold code makes each call: an order of a map is another each time."""


def text_of(call: FunctionCall) -> str:
    """Return a call as a Go function that looks at what is given, calls, and looks again."""
    given, method, name, results = call.given, call.how["method"], call.how["name"], call.how["results"]
    there = [n for n, value in enumerate(given) if value["k"] != "nil"]
    before = "".join(f"g{n} := {as_source(given[n])}; " for n in there)
    names = [f"g{n}" if n in there else "nil" for n in range(len(given))]
    if call.how["variadic"]:
        names[-1:] = [f"{names[-1]}..."] if names[-1] != "nil" else []
    function = f"{names[0]}.{name.partition('.')[2]}" if method else name
    made = f"{function}({', '.join(names[method:])})"
    listed = ", ".join(f"r{n}" for n in range(results))
    made = f"{listed} := {made}" if results else made
    told = ", ".join(f"&r{n}" for n in range(results))
    looked = ", ".join(f"&g{n}" if n in there else "&composerNothing" for n in range(len(given)))
    inside = f"func() []interface{{}} {{ {made}; return []interface{{}}{{{told}}} }}"
    return f"func() composerAnswer {{ {before}return composerAsk([]interface{{}}{{{looked}}}, {inside}) }}"


def call_of(known: Target, given: Sequence[Value]) -> FunctionCall:
    """Return a call of a function."""
    signature = known.signature
    how = {
        "folder": known.folder,
        "package": known.package,
        "name": known.name,
        "method": signature.receiver is not None,
        "variadic": any(parameter.variadic for parameter in signature.parameters),
        "results": len(signature.results),
    }
    return FunctionCall(key=known.key, how=how, given=tuple(given))


def names_types(call: FunctionCall) -> set[str]:
    """Return the names of types that a call writes down."""
    words = (word for value in call.given for node in nodes_of(value) for word in _words(node.get("t", "")))
    return set(words)


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", text)


def ask(
    runner: GoRunner,
    tree: Tree,
    calls: Sequence[FunctionCall],
    *,
    judged: bool,
    extra: Mapping[str, Mapping[str, bytes]] | None = None,
) -> Asked:
    """Make calls over a tree without its tests; return an answer each, None for one without, how the sandbox ended, and what the
    compiler said.

    Args:
        judged: work is judged, and only what is compared is answered.
        extra: further files of a package, by folder.

    Raises:
        SandboxError: the sandbox broke.
    """
    mark = secrets.token_hex(8)
    folders: dict[str, list[int]] = {}
    for number, call in enumerate(calls):
        folders.setdefault(call.how["folder"], []).append(number)
    packages = []
    for folder, numbers in folders.items():
        files = _files([calls[n] for n in numbers], mark, judged, (extra or {}).get(folder))
        packages.append({"folder": folder, "count": len(numbers), "files": files, "asker": _ASKER})
    program = program_of(FOLDER, "settings", "toolchain", "ask_driver")
    result, found = runner.ask(without_tests(tree), program, {"packages": packages, "mark": mark}, {}, judged=judged)
    answers, said = answers_of(found, list(folders.values()), len(calls))
    return answers, result.ending, said


def _files(calls: Sequence[FunctionCall], mark: str, judged: bool, extra: Mapping[str, bytes] | None) -> dict[str, str]:
    package = calls[0].how["package"]
    listed = "".join(f"\t{text_of(call)},\n" for call in calls)
    asker = template("asker").replace("package PACKAGE", f"package {package}", 1).replace("MARK", mark)
    asker = asker.replace("MILLISECONDS", str(_JUDGED_MS if judged else _GOLD_MS))
    asker = asker.replace("DETAILS", "false" if judged else "true").replace("REPEATS", "1" if judged else str(_REPEATS))
    asker += f"\nvar composerCalls = []func() composerAnswer{{\n{listed}}}\n"
    more = {name: content.decode() for name, content in (extra or {}).items()}
    values = (
        {}
        if "zz_composer_values.go" in more
        else {"zz_composer_values_test.go": support(".", package, ["values"])["zz_composer_values.go"].decode()}
    )
    return {_ASKER: asker, **values, **more}


def without_tests(tree: Tree) -> Tree:
    """Return the tree without its `*_test.go`. Raises SandboxError when the base cannot be listed."""
    try:
        with OpenFolder(tree.base) as folder:
            names = list(folder.listing(skip=frozenset({".git"})).entries)
    except OSError as error:
        raise SandboxError(f"{tree.base} cannot be listed: {error}", fix="make it readable") from error
    hidden = [path for path in names if path.endswith("_test.go")]
    kept = {path: content for path, content in tree.changes.items() if not path.endswith("_test.go")}
    return replace(tree, changes={**kept, **dict.fromkeys(hidden)})
