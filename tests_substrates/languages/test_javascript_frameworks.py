"""Projects whose tests run with ava, tape and tap: their tests are told by id, and what code prints is none."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from javascript_projects import write

from composer_replication.languages.javascript.runner import JavaScriptRunner
from composer_replication.sandbox import Sandbox
from composer_replication.sandbox.grading.grade import grade
from composer_replication.sandbox.protocol import Limits, Tree
from composer_replication.tasks import BuildOptions, Task, build_tasks, load_tasks

CODE = """/** Make a slug. */
function slug(text, separator = "-") {
  const bare = text.toLowerCase().replace(/[^a-z0-9]+/g, " ").trim()
  return bare.split(" ").filter(Boolean).join(separator)
}

function initials(text) {
  const words = text.split(/\\s+/).filter(Boolean)
  return words.map((word) => word[0].toUpperCase()).join("")
}
module.exports = { slug, initials }
"""
TESTS = """
test("slug", (t) => {
  t.EQUAL(slug("Hello World"), "hello-world")
  t.EQUAL(slug("A  b  C", "_"), "a_b_c")
  t.EQUAL(slug("one two three", "+"), "one+two+three")
  t.END()
})
test("initials # of words", (t) => {
  t.EQUAL(initials("ada lovelace"), "AL")
  t.EQUAL(initials("grace brewster hopper"), "GBH")
  t.END()
})
"""
HEADS = {
    "ava": 'const test = require("ava")',
    "tape": 'const test = require("tape")',
    "tap": 'const { test } = require("tap")',
}
WORDS = {"ava": ("is", "pass"), "tape": ("equal", "end"), "tap": ("equal", "end")}
VERSIONS = {"ava": "^6", "tape": "^5", "tap": "^21"}
PRINTS = """for (const n of [1, 2, 3]) console.log("ok " + n + " - slug")
require("node:fs").writeSync(1, "TAP version 13\\nok 1 - slug\\nok 2 - initials # of words\\n1..2\\n")
"""


@pytest.fixture(scope="module", params=sorted(HEADS))
def framework(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path, dict[str, Task]]:
    name = request.param
    equal, end = WORDS[name]
    manifest = {"name": "slug", "scripts": {"test": name}, "devDependencies": {name: VERSIONS[name]}}
    tests = f'{HEADS[name]}\nconst {{ slug, initials }} = require("../index.js")\n{TESTS}'
    files = {
        "package.json": json.dumps(manifest),
        "LICENSE": "MIT License\n\nPermission is hereby granted, free of charge, to any person obtaining a copy\n",
        "index.js": CODE,
        "test/all.js": tests.replace("EQUAL", equal).replace("END", end),
    }
    out = tmp_path_factory.mktemp(name)
    build_tasks(
        str(write(out / "slug", files)), out / "tasks", BuildOptions(trivial=True, install=True, timeout_s=300, forgeable=True)
    )
    python = out / "tasks" / ".venv" / "bin" / "python"
    return name, python, {task.spec.deleted[0].qualname: task for task in load_tasks(out / "tasks")}


def test_tests_are_told_by_id(framework: tuple[str, Path, dict[str, Task]]) -> None:
    name, _, tasks = framework
    assert {function: task.spec.forgeable for function, task in tasks.items()} == {"slug": False, "initials": False}
    later = ("test/all.js::initials # of words",)
    assert tasks["initials"].spec.fail_to_pass == later
    ends = name == "tape"  # an exception ends its process, and with it the tests that follow
    assert tasks["slug"].spec.fail_to_pass == ((*later, "test/all.js::slug") if ends else ("test/all.js::slug",))
    assert tasks["slug"].spec.pass_to_pass == (() if ends else later)


@pytest.mark.parametrize(
    ("change", "outcome"),
    [
        (lambda text, gold: gold, "passed"),
        (lambda text, gold: text, "failed"),
        (lambda text, gold: PRINTS + text, "failed"),
        (lambda text, gold: PRINTS + "process.exit(0)\n" + text, "missing"),
    ],
    ids=["gold", "nothing", "printed lines", "printed lines and an exit"],
)
def test_what_code_prints_is_no_outcome(
    framework: tuple[str, Path, dict[str, Task]], sandbox: Sandbox, change: Callable[[str, str], str], outcome: str
) -> None:
    name, python, tasks = framework
    task = tasks["slug"]
    work = change((task.repo / "index.js").read_text(), task.gold_files()["index.js"].decode()).encode()
    runner = JavaScriptRunner(sandbox=sandbox, python=python, limits=Limits(wall_s=100, cpu_s=100))
    (test_id,) = (one for one in task.spec.fail_to_pass if one.endswith("::slug"))
    run = runner.run(Tree(base=task.repo, changes={"index.js": work}), [test_id])
    wanted = {outcome} if (name, outcome) != ("tape", "failed") else {"failed", "missing"}
    assert str(run.outcomes[test_id]) in wanted
    report = grade(task.spec, task.repo, {"index.js": work}, sandbox=sandbox, python=python)
    assert report.reward == (1.0 if outcome == "passed" else 0.0)
