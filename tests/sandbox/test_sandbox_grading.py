"""From a workspace to a verdict, and the cache that gives it once."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import sys
import textwrap
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from composer_replication.sandbox import Ending, ExecResult, Installation, Isolation, Tree, open_sandbox
from composer_replication.sandbox.grading.grade import GradeCache, grade
from composer_replication.sandbox.grading.programs import seen_failing, wrong_programs
from composer_replication.sandbox.grading.pytest_run import CodeRunner
from composer_replication.types import Deletion, Outcome, TaskSpec, Unscored
from composer_replication.types.errors import SandboxError, StorageError, TaskError
from composer_replication.types.held_out_checks import HeldOutChecks, HeldOutProgram

PYTHON = Path(sys.executable)
STUB = """
def add(a, b):
    raise NotImplementedError

def sub(a, b):
    return a - b
"""
GOLD = STUB.replace("raise NotImplementedError", "return a + b")
TESTS = """
from calc import add, sub

def test_add():
    assert add(2, 3) == 5

def test_sub():
    assert sub(5, 3) == 2
"""
F = "tests/test_calc.py"
TASK = TaskSpec(
    task_id="calc-add",
    source="folder",
    source_digest="0" * 64,
    instruction="bring add back",
    deleted=(Deletion(path="src/calc.py", qualname="add", lines=1),),
    fail_to_pass=(f"{F}::test_add",),
    pass_to_pass=(f"{F}::test_sub",),
    editable=("src/**/*.py",),
    python_path=("src",),
    test_timeout_s=20.0,
)


def make(folder: Path, files: dict[str, str]) -> Path:
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(textwrap.dedent(text))
    return folder


@pytest.fixture
def pristine(tmp_path) -> Path:
    return make(tmp_path / "pristine", {"src/calc.py": STUB, F: TESTS, "README.md": "calc"})


@pytest.fixture(scope="module")
def sandbox():
    return open_sandbox()


class Counting:
    """A sandbox that counts its runs, and answers with `results` first; None is the real one's answer."""

    def __init__(self, *results: ExecResult | SandboxError | None) -> None:
        self.inner = open_sandbox()
        self.results = list(results)
        self.runs = 0
        self.lock = threading.Lock()

    @property
    def isolation(self) -> Isolation:
        return self.inner.isolation

    def installation(self, python) -> Installation:
        return self.inner.installation(python)

    def run(self, tree, command) -> ExecResult:
        with self.lock:
            self.runs += 1
            planned = self.results.pop(0) if self.results else None
        if isinstance(planned, SandboxError):
            raise planned
        return planned or self.inner.run(tree, command)


def died(ending: Ending, returncode: int) -> ExecResult:
    return ExecResult(ending=ending, returncode=returncode, stdout=b"", stderr=b"", channel=b"", wall_s=0.1, cpu_s=0.1)


def judge(pristine, workspace, sandbox, task=TASK, **options):
    if isinstance(workspace, dict):
        workspace = {p: c if c is None else textwrap.dedent(c).encode() for p, c in workspace.items()}
    return grade(task, pristine, workspace, sandbox=sandbox, python=PYTHON, **options)


def test_gold_is_one_and_nothing_is_zero(pristine, sandbox):
    gold = judge(pristine, {"src/calc.py": GOLD}, sandbox)
    assert (gold.reward, gold.reasons, gold.rejected, gold.cached) == (1.0, (), (), False)
    assert gold.outcomes == {f"{F}::test_add": Outcome.PASSED, f"{F}::test_sub": Outcome.PASSED}
    assert gold.isolation == sandbox.isolation.summary()
    nothing = judge(pristine, {}, sandbox)
    assert nothing.reward == 0.0
    assert nothing.outcomes == {f"{F}::test_add": Outcome.FAILED, f"{F}::test_sub": Outcome.PASSED}
    assert nothing.reasons == ("1 of 1 fail-to-pass tests did not pass", f"{F}::test_add: failed (NotImplementedError)")


def test_breaking_what_passed_costs_the_reward(pristine, sandbox):
    report = judge(pristine, {"src/calc.py": GOLD.replace("a - b", "a * b")}, sandbox)
    assert report.reward == 0.0
    assert report.reasons == ("1 of 1 pass-to-pass tests did not pass", f"{F}::test_sub: failed (assert 15 == 2)")


def test_a_folder_is_graded_like_its_changes(pristine, sandbox, tmp_path):
    workspace = make(
        tmp_path / "ws", {"src/calc.py": GOLD, "src/extra/new.py": "x = 1", F: "def test_add(): pass", "notes.txt": "hi"}
    )
    report = judge(pristine, workspace, sandbox)
    assert report.reward == 1.0
    assert report.rejected == ("README.md", "notes.txt", F)


def test_deleting_an_editable_file_counts(pristine, sandbox):
    report = judge(pristine, {"src/calc.py": None}, sandbox)
    assert report.reward == 0.0
    assert set(report.outcomes.values()) == {Outcome.ERROR}


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("while True: pass", "timed out after 3 s"),
        ("x = []\nwhile True: x.append(bytearray(1 << 23))", "ran out of memory"),
        ("import os\nopen('f', 'wb').write(bytes(300 << 20))", "No space left|used up their disk|File too large"),
        ("import os\nos._exit(0)", "ended without a result"),
        ("import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)", "died of SIGSEGV"),
        ("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)", "died of SIGKILL"),
    ],
)
def test_what_the_code_does_to_itself_is_a_zero(pristine, sandbox, code, reason):
    task = dataclasses.replace(TASK, test_timeout_s=3.0 if "timed" in reason else 60.0)
    report = judge(pristine, {"src/calc.py": code}, sandbox, task)
    assert report.reward == 0.0
    assert any(part in " ".join(report.reasons) for part in reason.split("|")), report.reasons


def test_a_broken_box_is_tried_again_and_then_unscored(pristine):
    once = Counting(SandboxError("no space"))
    assert judge(pristine, {"src/calc.py": GOLD}, once).reward == 1.0
    assert once.runs == 2
    twice = Counting(SandboxError("no space"), SandboxError("no space"))
    report = judge(pristine, {"src/calc.py": GOLD}, twice)
    assert report.reward == Unscored("the sandbox failed: no space")
    assert set(report.outcomes.values()) == {Outcome.MISSING}


def test_an_unexplained_kill_is_tried_again(pristine):
    killed = Counting(died(Ending.KILLED, -signal.SIGKILL))
    assert judge(pristine, {"src/calc.py": GOLD}, killed).reward == 1.0
    assert killed.runs == 2


HIDDEN = HeldOutChecks(
    programs=tuple(
        HeldOutProgram(
            steps=json.dumps([[0, {"do": "call", "of": ["named", "calc:add"], "args": [number, 2]}]]),
            expected=json.dumps([["returns", number + 2]]),
            uses="src/calc.py::add",
            new_calls=1,
        )
        for number in range(4)
    )
)


def test_an_unexplained_kill_of_held_out_programs_is_tried_again_once(pristine):
    task = dataclasses.replace(TASK, hidden=HIDDEN)
    killed = died(Ending.KILLED, -signal.SIGKILL)
    assert judge(pristine, {"src/calc.py": GOLD}, Counting(), task).reward == 1.0
    sandbox = Counting(None, killed)
    assert judge(pristine, {"src/calc.py": GOLD}, sandbox, task).reward == 1.0
    assert sandbox.runs == 4, "the tests too: what is judged is one attempt"
    report = judge(pristine, {"src/calc.py": GOLD}, Counting(None, killed, None, killed), task)
    assert report.reward == 0.0, "work that kills itself"
    assert "the held-out programs ended early (killed)" in report.reasons[0]


def test_checks_that_a_dead_sandbox_does_not_answer_are_not_proven(pristine):
    """For a grade that is wrong work; for a build it says nothing of a check."""
    for ending in (Ending.KILLED, Ending.TIMEOUT, Ending.OUT_OF_MEMORY):
        runner = CodeRunner(sandbox=Counting(died(ending, -9)), python=PYTHON, python_path=("src",))
        assert seen_failing(runner, Tree(base=pristine), HIDDEN.programs) == []
        runner = CodeRunner(sandbox=Counting(died(ending, -9)), python=PYTHON, python_path=("src",))
        assert wrong_programs(runner, Tree(base=pristine), HIDDEN.programs) == ([0, 1, 2, 3], ending)


def test_identical_trees_are_graded_once(pristine, tmp_path):
    sandbox, cache = Counting(), GradeCache()
    first = judge(pristine, {"src/calc.py": GOLD}, sandbox, cache=cache)
    again = judge(pristine, {"src/calc.py": GOLD, "notes.txt": "ignored"}, sandbox, cache=cache)
    folder = make(tmp_path / "ws", {"src/calc.py": GOLD, F: TESTS, "README.md": "calc"})
    third = judge(pristine, folder, sandbox, cache=cache)
    other = judge(pristine, {"src/calc.py": GOLD + "\n"}, sandbox, cache=cache)
    assert [r.cached for r in (first, again, third, other)] == [False, True, True, False]
    assert again.rejected == ("notes.txt",)
    assert (sandbox.runs, len(cache)) == (2, 2)


def test_another_task_or_interpreter_is_another_verdict(pristine):
    sandbox, cache = Counting(), GradeCache()
    judge(pristine, {"src/calc.py": GOLD}, sandbox, cache=cache)
    strict = dataclasses.replace(TASK, pass_to_pass=(f"{F}::test_gone",))
    report = judge(pristine, {"src/calc.py": GOLD}, sandbox, strict, cache=cache)
    assert (report.reward, report.cached, sandbox.runs) == (0.0, False, 2)
    assert report.outcomes[f"{F}::test_gone"] is Outcome.MISSING


def test_unscored_is_not_kept(pristine):
    faults = [SandboxError("broken"), SandboxError("broken")]
    sandbox, cache = Counting(*faults), GradeCache()
    assert isinstance(judge(pristine, {"src/calc.py": GOLD}, sandbox, cache=cache).reward, Unscored)
    assert judge(pristine, {"src/calc.py": GOLD}, sandbox, cache=cache).reward == 1.0


def test_identical_gradings_at_the_same_time_wait_for_one(pristine):
    sandbox, cache = Counting(), GradeCache()
    with ThreadPoolExecutor(6) as pool:
        reports = list(pool.map(lambda _: judge(pristine, {"src/calc.py": GOLD}, sandbox, cache=cache), range(6)))
    assert sandbox.runs == 1
    assert sorted(r.cached for r in reports) == [False] + [True] * 5
    assert {r.reward for r in reports} == {1.0}


def test_the_cache_file_survives_a_killed_writer(pristine, tmp_path):
    path = tmp_path / "run" / "grades.jsonl"
    sandbox = Counting()
    first = judge(pristine, {"src/calc.py": GOLD}, sandbox, cache=GradeCache(path))
    with path.open("ab") as file:
        file.write(b'{"key": "torn", "rep')
    reopened = GradeCache(path)
    assert len(reopened) == 1
    again = judge(pristine, {"src/calc.py": GOLD}, sandbox, cache=reopened)
    judge(pristine, {}, sandbox, cache=reopened)
    assert (again.cached, again.outcomes, again.reward) == (True, first.outcomes, 1.0)
    assert sandbox.runs == 2
    assert len(GradeCache(path)) == 2
    assert [json.loads(line)["key"] for line in path.read_text().splitlines() if not line.startswith('{"key": "torn')]


def test_a_cache_that_cannot_be_written_is_a_storage_error(tmp_path):
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(StorageError, match="grade cache"):
        GradeCache(tmp_path / "file" / "grades.jsonl")


def test_tasks_without_tests_or_tree_are_task_errors(pristine, sandbox, tmp_path):
    with pytest.raises(TaskError, match="names no test"):
        judge(pristine, {}, sandbox, dataclasses.replace(TASK, fail_to_pass=(), pass_to_pass=()))
    with pytest.raises(TaskError, match="no tree at"):
        judge(tmp_path / "nowhere", {}, sandbox)
    with pytest.raises(TaskError, match="cannot be read"):
        judge(pristine, tmp_path / "nowhere", sandbox)
    assert os.path.isdir(pristine)


def test_an_interpreter_with_the_answer_installed_is_refused(pristine, sandbox):
    """It could be imported past the tree. `packaging` is what pytest itself needs."""
    named = dataclasses.replace(TASK, deleted=(Deletion(path="src/packaging/version.py", qualname="parse", lines=1),))
    with pytest.raises(TaskError, match="has a copy of packaging installed"):
        judge(pristine, {}, sandbox, named)


def test_a_task_that_every_box_can_read_is_refused(sandbox):
    with pytest.raises(TaskError, match="where the code under test can read the solution") as refused:
        grade(TASK, Path(sys.prefix) / "tasks" / "calc-add" / "repo", {}, sandbox=sandbox, python=PYTHON)
    assert "--python PATH" in refused.value.fix
