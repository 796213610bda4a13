"""What is found in JavaScript and TypeScript, what instrumenting leaves alone, and what a project says of its tests."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from composer_replication.languages import tripwire
from composer_replication.languages.functions import with_stubs
from composer_replication.languages.javascript.alarms import telling
from composer_replication.languages.javascript.environment import needed, remove_own_copies
from composer_replication.languages.javascript.instrument import exposure, instrumented, targets_of
from composer_replication.languages.javascript.language import JAVASCRIPT
from composer_replication.languages.javascript.layout import built_folders, is_source, is_test
from composer_replication.languages.javascript.settings import framework_of, node_flags
from composer_replication.languages.javascript.support import FOLDER
from composer_replication.languages.javascript.syntax import find_functions, functions_of, is_read_within, root_of
from composer_replication.languages.javascript.values import is_value
from composer_replication.languages.layout import NoTestsError
from composer_replication.languages.programs import program_of
from composer_replication.types.errors import SourceError

SOURCE = b"""#!/usr/bin/env node
"use strict"
// Makes words loud.
export function loud(text, { marks } = {}) {
  const bare = text.trim()
  return bare
}
export default class Store extends Base {
  #secret = 1
  static made(...all) {
    return new Store(all)
  }
  constructor(all) {
    super(all)
    this.all = all
  }
  get size() {
    if (!this.all) return 0
    return this.all.length
  }
  set size(n) {
    this.all.length = n
  }
  async *each() {
    for (const one of this.all) yield one
    yield 3
  }
  [Symbol.iterator]() {
    const all = this.all
    return all[Symbol.iterator]()
  }
}
const quick = (n) => n + 1
const slow = async (n, ...rest) => {
  const m = n && rest.length ? n : rest[0] ?? 4
  return m
}
const table = {
  read(x) {
    const y = x
    return y
  },
  write: function (x) {
    const y = x
    return y
  },
}
exports.third = function (x) {
  const y = x
  return y
}
Store.prototype.last = function () {
  const all = this.all
  return all.at(-1)
}
"""
FOUND = {
    "loud": ("loud", "", "function"),
    "Store.made": ("Store", "made", "static"),
    "Store.constructor": ("Store", "constructor", "new"),
    "Store.get size": ("Store", "size", "get"),
    "Store.set size": ("Store", "size", "set"),
    "Store.each": ("Store", "each", "method"),
    "Store.[Symbol.iterator]": ("", "[Symbol.iterator]", "method"),
    "quick": ("quick", "", "function"),
    "slow": ("slow", "", "function"),
    "table.read": ("table", "read", "static"),
    "table.write": ("table", "write", "static"),
    "exports.third": ("exports", "third", "static"),
    "Store.last": ("Store", "last", "method"),
}


def test_functions_are_found_with_how_they_are_called() -> None:
    found = {one.qualname: (one.owner, one.member, one.kind) for one in functions_of(root_of("a.js", SOURCE))}
    assert found == FOUND


def test_what_can_be_deleted() -> None:
    functions, skipped = find_functions("a.js", SOURCE)
    reasons = {one.what.partition("::")[2]: one.reason for one in skipped}
    assert reasons["quick"] == "its body is an expression"
    assert reasons["Store.constructor"] == "the constructor of a class that extends another"
    assert "Store.set size" not in reasons
    by_name = {one.qualname: one for one in functions}
    assert by_name["loud"].parameters == ("text",)
    assert by_name["slow"].parameters == ("n",)
    assert by_name["slow"].rest == "rest"
    assert by_name["slow"].branches == 3
    assert "trim" in by_name["loud"].calls
    for function in functions:
        changed = with_stubs(SOURCE, [function], 'throw new Error("not implemented");')
        assert not root_of("a.js", changed).has_error
        assert {one.qualname for one in functions_of(root_of("a.js", changed))} == set(FOUND)


def test_files_that_cannot_be_parsed_give_nothing() -> None:
    functions, (skipped,) = find_functions("a.ts", b"export function (((")
    assert functions == []
    assert skipped.reason == "cannot be parsed"


def test_typescript_and_its_dialects() -> None:
    source = b"export function pick<T extends object>(from: T, name?: keyof T) {\n  const key = name\n  return from[key]\n}\n"
    (function,), _ = find_functions("a.ts", source)
    assert function.parameters == ("from", "name")
    view = b"export function View({ n }: { n: number }) {\n  const m = n + 1\n  return <b>{m}</b>\n}\n"
    assert [one.qualname for one in find_functions("a.tsx", view)[0]] == ["View"]
    assert find_functions("a.ts", view)[0] == []
    assert targets_of("a.tsx", view)[0].kind == "function"
    header, said = JAVASCRIPT.outline(
        b"/**\n * One.\n *\n * Two.\n */\nexport const f = async (a: number) => {\n  return a\n}\n", "f"
    )
    assert header == "export const f = async (a: number)"
    assert said == "One.\n\nTwo."


def test_instrumented_code_keeps_its_lines_and_parses() -> None:
    made = instrumented({"a.js": SOURCE, "broken.js": b"((("})
    text = made.files["a.js"]
    assert "broken.js" not in made.files
    assert not root_of("a.js", text).has_error
    body, _, line = text.rpartition(b"\n;")
    assert body.count(b"\n") == SOURCE.count(b"\n")
    assert b"__composerExpose" in line
    assert text.startswith(b'#!/usr/bin/env node\n"use strict"\n')
    assert {path for path, _ in made.lines.values()} == {"a.js"}
    assert {number for _, numbers in made.lines.values() for number in numbers} >= {5, 6, 18, 19}


def test_a_module_gives_out_its_names() -> None:
    said = exposure("a.ts", b"export class A {\n  #x = 1\n}\nfunction f() {}\n", ["exports"])
    assert said.count("\n") == 2
    assert '"A": () => A, "f": () => f, "exports": () => exports' in said
    assert '["A"]' in said
    assert "(globalThis as any)" in said


@pytest.mark.parametrize(
    ("manifest", "texts", "framework"),
    [
        ({"scripts": {"test": "vitest run"}}, [], "vitest"),
        ({"scripts": {"test": "npm run lint && jest --coverage"}}, [], "jest"),
        ({"scripts": {"test": "node --test"}, "devDependencies": {"jest": "1"}}, [], "node"),
        ({"scripts": {"test": "c8 mocha"}}, [], "mocha"),
        ({"scripts": {"test": "borp"}}, ["const { test } = require('node:test')"], "node"),
        ({"scripts": {"test": "npm run unit", "unit": "vitest"}}, [], "vitest"),
        ({"scripts": {"test": "eslint . --plugin=jest"}, "devDependencies": {"vitest": "1"}}, [], "vitest"),
        ({"jest": {}}, [], "jest"),
        ({}, ['import { it } from "vitest"'], "vitest"),
        ({"scripts": {"test": "xo && ava && tsd"}}, [], "ava"),
        ({"scripts": {"test": "node test/all.js"}}, ["var test = require('tape')"], "tape"),
        ({"scripts": {"test": "tap"}}, [], "tap"),
        ({}, [], "node"),
    ],
)
def test_what_runs_the_tests(manifest: dict[str, object], texts: list[str], framework: str) -> None:
    assert framework_of(manifest, texts) == framework


def test_flags_that_load_modules_are_kept() -> None:
    script = (
        "cross-env NODE_OPTIONS='--experimental-vm-modules' node --import tsx -r ./hook.cjs --test --conditions=dev test/*.ts"
    )
    flags = node_flags({"scripts": {"test": script}})
    assert flags == ["--experimental-vm-modules", "--import=tsx", "--require=./hook.cjs", "--conditions=dev"]


@pytest.mark.parametrize(
    ("path", "source", "test"),
    [
        ("src/a.ts", True, False),
        ("index.js", True, False),
        ("src/a.test.ts", False, True),
        ("src/__tests__/a.js", False, True),
        ("test/helper.js", False, True),
        ("test/fixtures/a.js", False, False),
        ("src/types.d.ts", False, False),
        ("dist/a.js", False, False),
        ("vitest.config.ts", False, False),
        (".eslintrc.cjs", False, False),
        ("README.md", False, False),
    ],
)
def test_sources_and_tests_are_told_apart(path: str, source: bool, test: bool) -> None:
    assert (is_source(path), is_test(path)) == (source, test)


def test_a_layout_lets_nothing_but_sources_be_edited(tmp_path: Path) -> None:
    for path in (
        "package.json",
        "index.js",
        "vitest.config.js",
        "src/a.ts",
        "src/a.test.ts",
        "lib/b.js",
        "lib/c.js",
        "test/b.js",
    ):
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text("{}")
    layout = JAVASCRIPT.layout(tmp_path, (), ())
    assert layout.sources == ("index.js", "lib/b.js", "lib/c.js", "src/a.ts")
    assert layout.editable == ("index.js", "lib/*.js", "src/a.ts")
    assert layout.tests == ("src/a.test.ts", "test")
    with pytest.raises(SourceError, match="no gone"):
        JAVASCRIPT.layout(tmp_path, ("gone",), ())
    for path in ("src/a.test.ts", "test/b.js"):
        (tmp_path / path).unlink()
    with pytest.raises(NoTestsError, match="no tests"):
        JAVASCRIPT.layout(tmp_path, (), ())


def test_packages_for_formatting_and_publishing_are_not_needed(tmp_path: Path) -> None:
    manifest = {
        "scripts": {"test": "jest"},
        "dependencies": {"a": "1"},
        "peerDependencies": {"b": "1", "c": "1"},
        "peerDependenciesMeta": {"c": {"optional": True}},
        "devDependencies": {"eslint": "9", "chai": "5", "own": "workspace:*", "ts-jest": "29", "release-it": "1"},
    }
    (tmp_path / "package.json").write_text(json.dumps(manifest))
    (tmp_path / "a.test.js").write_text("const { expect } = require('chai/index.js')\nimport('own')\n")
    assert needed(tmp_path) == {
        "dependencies": {"b": "1", "a": "1"},
        "devDependencies": {"chai": "5", "ts-jest": "29", "jest": "*"},
    }


@pytest.mark.parametrize(
    "value",
    [
        {"k": "float", "t": "number", "v": "1); f("},
        {"k": "list", "t": "Evil", "e": []},
        {"k": "map", "t": "Object", "e": [[1]]},
        {"k": "opaque"},
        {"k": "struct", "t": "", "e": []},
        {"k": "bool", "t": "boolean", "v": "maybe"},
        {"k": "list", "t": "Array", "e": 3},
        None,
        "text",
    ],
)
def test_what_is_no_value_is_refused(value: object) -> None:
    assert not is_value(value)


def test_what_a_build_wrote_is_no_source() -> None:
    source = ["package.json", "src/index.ts", "src/a.ts", "src/deep/b.ts", "test/a.ts"]
    assert built_folders(source) == ("build", "dist")
    files = dict.fromkeys([*source, "umd/x.min.js", "docs/jquery-min.js", "umd/x.min.js.map", "dist/a.js", "src/min.js"], b"")
    assert JAVASCRIPT.built_files(files) == {"umd/x.min.js", "docs/jquery-min.js", "umd/x.min.js.map", "dist/a.js"}
    assert built_folders([*source, "lib/a.js", "lib/a.d.ts", "lib/deep/b.js", "lib/index.js"]) == ("build", "dist", "lib")
    assert built_folders([*source, "bin/run.js", "bin/index.js"]) == ("build", "dist")
    assert built_folders(["lib/a.js", "lib/b.js"]) == ("build", "dist")


@pytest.mark.parametrize("path", ["a.js", "a.ts", "a.tsx"])
@pytest.mark.parametrize(
    "source",
    [
        b"const x = " + b"(" * 5000 + b"1" + b")" * 5000 + b"\n",
        b"a = " * 5000 + b"1\n",
        b"function f(){" * 3000 + b"}" * 3000,
        b"x = " + b"{a:" * 5000 + b"1" + b"}" * 5000,
    ],
    ids=["brackets", "assignments", "functions", "objects"],
)
def test_deep_nesting_does_not_end_the_host(path: str, source: bytes) -> None:
    assert "__composerExpose" in exposure(path, source, ())
    assert telling({path: source}) == set()


def test_what_takes_minutes_to_parse_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tripwire, "_ONE_S", 0.5)
    slow = b"/[" * 100_000
    begun = time.thread_time()
    assert not is_read_within("a.js", slow, 0.5)
    assert telling({"a.js": slow, "b.ts": slow}) == {"a file that takes long to read"}
    assert time.thread_time() - begun < 30
    assert is_read_within("a.js", SOURCE, 0.5)


def test_lines_of_outcomes_may_hold_any_character(tmp_path: Path) -> None:
    program = program_of(FOLDER, "settings", "toolchain").replace("WORK = tempfile.mkdtemp", "WORK = (lambda **_: '/nowhere')")
    names: dict[str, Any] = {}
    exec(program, names)
    place = tmp_path / "outcomes"
    place.write_text(json.dumps(["mark", "a\u2028b\x85c"], ensure_ascii=False) + "\n" + '["mark"\n["other", 1]\n')
    assert names["lines_of"](str(place), "mark") == [["a\u2028b\x85c"]]


def test_a_published_version_of_the_project_is_removed(tmp_path: Path) -> None:
    for path in ("node_modules/@own/words", "node_modules/tool/node_modules/@own/words", "node_modules/@own/other"):
        (tmp_path / path).mkdir(parents=True)
    remove_own_copies(tmp_path, "@own/words")
    assert [path.name for path in sorted((tmp_path / "node_modules" / "@own").iterdir())] == ["other"]
    assert not (tmp_path / "node_modules/tool/node_modules/@own/words").exists()
    remove_own_copies(tmp_path, "..")
    assert (tmp_path / "node_modules").is_dir()
