"""Calls of a project's functions, made in a sandbox and answered as plain data: the host compares, and no sandbox sees what is
expected."""

from __future__ import annotations

import re
import secrets
from collections.abc import Sequence
from dataclasses import replace

from composer_replication.languages.calls.asking import Asked, answers_of
from composer_replication.languages.calls.call import FunctionCall
from composer_replication.languages.calls.values import nodes_of
from composer_replication.languages.javascript.instrument import exposure
from composer_replication.languages.javascript.layout import TEST_FOLDERS, is_source, is_test
from composer_replication.languages.javascript.runner import JavaScriptRunner
from composer_replication.languages.javascript.settings import manifest_of, node_flags
from composer_replication.languages.javascript.support import FOLDER, support_files
from composer_replication.languages.javascript.syntax import is_read_within
from composer_replication.languages.programs import program_of
from composer_replication.languages.tree_files import content_of, files_of, without_files
from composer_replication.sandbox.protocol import Tree

_JUDGED_S, _GOLD_S = 15.0, 5.0
"""Seconds without an answer after which a call is given up: less for the gold code, so that a slower machine does not turn right
into wrong."""
_START_S = 60.0
"""Seconds until the first call is begun: jest starts slowly where it translates TypeScript, and on a busy machine."""
_READ_S = 5.0
"""CPU seconds in which the host can parse a module of judged work, or gives it up."""
_REPEATS = 3
"""Times that the gold code makes each call in each of two processes."""
_ASKERS = {
    "vitest": """import { test } from "vitest"
import asker from "zz-composer/asker.cjs"
test("calls", async () => { await asker.run((path) => import(/* @vite-ignore */ process.cwd() + "/" + path)) }, 1e9)
""",
    "jest": """const asker = require("zz-composer/asker.cjs")
test("calls", async () => { await asker.run((path) => require(process.cwd() + "/" + path)) }, 1e9)
""",
    "jest modules": """import asker from "zz-composer/asker.cjs"
test("calls", async () => { await asker.run((path) => import(process.cwd() + "/" + path)) }, 1e9)
""",
    "mocha": """const asker = require("zz-composer/asker.cjs")
it("calls", async function () { this.timeout(0); await asker.run(async (path) => require(process.cwd() + "/" + path)) })
""",
    "node": """const asker = require("zz-composer/asker.cjs")
asker.run(async (path) => require(process.cwd() + "/" + path)).then(() => process.exit(0))
""",
}
"""The file that makes the calls, as each framework loads tests."""
_PLAIN = frozenset({"ava", "tape", "tap"})
"""Frameworks that load modules as node does."""


def ask(runner: JavaScriptRunner, tree: Tree, calls: Sequence[FunctionCall], framework: str, *, judged: bool) -> Asked:
    """Make calls over a tree without its tests; return an answer each, None for one without, how the sandbox ended, and what went
    wrong where modules could not be loaded.

    Args:
        judged: work is judged, and only what is compared is answered.

    Raises:
        SandboxError: the sandbox broke.
    """
    framework = "node" if framework in _PLAIN else framework
    mark = secrets.token_hex(8)
    modules = sorted({path for call in calls for path in _modules(call)})
    changes = dict(tree.changes)
    for path in modules:
        source = content_of(tree, path)
        if source and (not judged or is_read_within(path, source, _READ_S)):
            owners = {call.how["owner"] for call in calls if call.key.startswith(f"{path}::")}
            changes[path] = source + exposure(path, source, owners).encode()
    request = {
        **{"support": support_files(), "framework": framework, "mark": mark, "modules": modules},
        **{"calls": [{"key": call.key, "how": dict(call.how), "given": list(call.given)} for call in calls]},
        **{"details": not judged, "repeats": 1 if judged else _REPEATS, "call_s": _JUDGED_S if judged else _GOLD_S},
        **{"start_s": _START_S},
        **_asker(tree, calls, framework, mark),
    }
    program = program_of(FOLDER, "settings", "toolchain", "ask_driver")
    shown = without_tests(replace(tree, changes=changes))
    result, found = runner.ask(shown, program, request, {}, judged=judged)
    answers, said = answers_of([found], [range(len(calls))], len(calls))
    return answers, result.ending, said


def _asker(tree: Tree, calls: Sequence[FunctionCall], framework: str, mark: str) -> dict[str, str]:
    """Return path and text of the file that makes the calls: beside a test, and named like it."""
    beside = str(calls[0].how["test"]) if calls else "asker.js"
    folder, _, name = beside.rpartition("/")
    kind = framework
    if framework == "jest" and "--experimental-vm-modules" in node_flags(manifest_of(str(tree.base))):
        kind = "jest modules"
    ending = ".cjs" if framework in ("node", "mocha") else name[name.index(".") :]
    path = f"{folder}/zzcomposer{mark}{ending}".removeprefix("/")
    return {"asker": path, "text": f"// @ts-nocheck\n{_ASKERS[kind]}"}


def _modules(call: FunctionCall) -> set[str]:
    """Return the files that hold the function, and the classes and functions among what it is given."""
    names = [call.key, *(node["t"] for value in call.given for node in nodes_of(value) if node["k"] in ("struct", "function"))]
    return {name.partition("::")[0] for name in names if "::" in name}


def without_tests(tree: Tree) -> Tree:
    """Return the tree without its test files, snapshots, and all that lies in a folder with tests and no configuration names.

    Raises:
        SandboxError: the base cannot be listed.
    """
    paths = files_of(tree)
    configured = b"\n".join(content_of(tree, path) for path in paths if _is_configuration(path)).decode(errors="replace")
    hidden = [path for path in paths if _is_hidden(path) and not (path in tree.changes and is_source(path))]
    shown = {path for path in hidden if not _is_snapshot(path) and _stem(path) in configured and not _named_as_test(path)}
    return without_files(tree, (path for path in hidden if path not in shown))


def _is_configuration(path: str) -> bool:
    name = path.rpartition("/")[2]
    return "/" not in path and (
        name == "package.json" or re.search(r"(jest|vitest|vite|mocharc|babel|tsconfig)", name) is not None
    )


def _is_hidden(path: str) -> bool:
    return is_test(path) or _is_snapshot(path) or bool(TEST_FOLDERS.intersection(path.split("/")[:-1]))


def _is_snapshot(path: str) -> bool:
    return "__snapshots__" in path.split("/") or path.endswith(".snap")


def _named_as_test(path: str) -> bool:
    return re.search(r"[.\-_](test|spec)\.[cm]?[jt]sx?$", path) is not None


def _stem(path: str) -> str:
    return path.rpartition(".")[0]
