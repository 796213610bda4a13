"""Work that lies about itself in its output, its ending or its answer: a verdict, never an error and never a reward."""

from __future__ import annotations

import json
import sys
import tracemalloc
import zlib
from pathlib import Path

import pytest

from composer_replication.envs import CodingEnv
from composer_replication.sandbox import Ending, ExecResult, Limits, open_sandbox
from composer_replication.sandbox.grading.grade import grade
from composer_replication.sandbox.grading.pytest_run import CodeRunner, read_answer
from composer_replication.sandbox.protocol import Tree
from composer_replication.tasks.store import Task
from composer_replication.types import TaskSpec, ToolCall, Unscored, to_json

PYTHON = Path(sys.executable)
STUB = "def add(a, b):\n    raise NotImplementedError\n"
TESTS = "from calc import add\n\ndef test_add():\n    assert add(2, 3) == 5\n"
IDS = ("tests/test_calc.py::test_add",)
FORGE = """
import json, os, sys, zlib
frame = sys._getframe()
while "nonce" not in frame.f_locals:
    frame = frame.f_back
nonce, channel = frame.f_locals["nonce"], frame.f_locals["channel"]
answer = nonce.encode() + BODY
while answer:
    answer = answer[os.write(channel, answer):]
os._exit(0)
"""
"""Sends BODY in the driver's name."""
SAY = """
import os
for fd in range(3, 64):
    try:
        os.write(fd, TEXT)
    except OSError:
        pass
os.write(1, TEXT)
os.write(2, TEXT)
os._exit(STATUS)
"""


def answer(**changed: object) -> str:
    return f"zlib.compress({json.dumps({**HONEST, **changed})!r}.encode())"


def computed(changed: str) -> str:
    return f"zlib.compress(json.dumps({{**{HONEST!r}, {changed}}}).encode())"


HONEST = {
    "status": 0,
    "collected": [*IDS],
    "outcomes": {IDS[0]: "failed"},
    "earlier": {},
    "failures": {},
    "collect_errors": [],
    "tampered": False,
    "coverage": None,
    "observed": None,
}
BODIES = {
    "garbage": "b'garbage'",
    "not json": "zlib.compress(b'{')",
    "not utf-8": "zlib.compress(bytes(range(256)))",
    "nested": "zlib.compress(b'[' * 1_000_000)",
    "nested within": "zlib.compress(b'{\"a\":' * 200_000 + b'1' + b'}' * 200_000)",
    "a bomb": "zlib.compress(bytes(64 << 20))",
    "a number": "zlib.compress(b'1' * 5000)",
    "a list": "zlib.compress(b'[]')",
    "nan": "zlib.compress(b'NaN')",
    "outcomes of another kind": answer(outcomes=[1]),
    "an outcome that is a list": answer(outcomes={IDS[0]: []}),
    "an outcome of no kind": answer(outcomes={IDS[0]: "perfect"}),
    "failures of another kind": answer(failures=3),
    "errors of another kind": answer(collect_errors=3),
    "a status of another kind": answer(status={"a": 1}),
    "status nan": 'zlib.compress(b\'{"status": NaN, "outcomes": {}, "failures": {}, "collect_errors": [], "tampered": 0}\')',
    "errors without end": computed("'collect_errors': ['x' * 50] * 100_000"),
    "a long error": computed("'collect_errors': ['x' * 10_000_000]"),
    "errors that are letters": computed("'collect_errors': 'x' * 1_000_000"),
    "failures without end": computed("'failures': {str(n): 'x' * 20 for n in range(200_000)}"),
    "half a surrogate": answer(collect_errors=["\ud800 \udfff"], failures={IDS[0]: "\udc80"}),
    "control characters": answer(collect_errors=["\x1b]52;c;QUJD\x07 \x9b31m \u202e"], failures={IDS[0]: "\x1b[2J"}),
    "ids without end": computed("'outcomes': {str(n): 'failed' for n in range(300_000)}"),
    "the same key twice": 'zlib.compress(b\'{"outcomes": {}, "outcomes": 3, "failures": {}, "tampered": false}\')',
}
PROGRAMS = {
    "no pytest": SAY.replace("TEXT", r"b'''Traceback\nModuleNotFoundError: No module named 'pytest'\n'''").replace("STATUS", "1"),
    "no coverage": SAY.replace("TEXT", r"b'''ModuleNotFoundError: No module named 'coverage'\n'''").replace("STATUS", "1"),
    "not utf-8": SAY.replace("TEXT", "bytes(range(256)) * 1000").replace("STATUS", "3"),
    "usage error": SAY.replace("TEXT", "b'\\xff' * 100_000").replace("STATUS", "4"),
    **{f"signal {number}": f"import os\nos.kill(os.getpid(), {number})\n" for number in (1, 11, 16, 31, 34, 35, 50, 64)},
    **{f"status {status}": f"import os\nos._exit({status})\n" for status in (0, 2, 5, 70, 127, 137, 163, 255)},
    **{name: FORGE.replace("BODY", body) for name, body in BODIES.items()},
}


@pytest.fixture(scope="module")
def task(tmp_path_factory) -> Task:
    root = tmp_path_factory.mktemp("task")
    (root / "repo" / "tests").mkdir(parents=True)
    (root / "repo" / "calc.py").write_text(STUB)
    (root / "repo" / "tests" / "test_calc.py").write_text(TESTS)
    spec = TaskSpec(
        task_id="t",
        source="s",
        source_digest="d",
        instruction="i",
        deleted=(),
        fail_to_pass=IDS,
        pass_to_pass=(),
        editable=("*.py",),
        test_timeout_s=60.0,
    )
    return Task(spec, root)


@pytest.fixture(scope="module")
def sandbox():
    return open_sandbox()


@pytest.mark.slow
@pytest.mark.parametrize("name", PROGRAMS)
def test_whatever_work_says_of_itself_is_a_verdict(task, sandbox, name):
    """By the grader and by the tool that runs tests, whose words are short, and can be written and shown."""
    work = PROGRAMS[name] + STUB
    report = grade(task.spec, task.repo, {"calc.py": work.encode()}, sandbox=sandbox, python=PYTHON)
    env = CodingEnv(task, sandbox=sandbox, python=PYTHON)
    env.reset()
    env.step(ToolCall(call_id="1", name="write_file", arguments={"path": "calc.py", "content": work}))
    result = env.step(ToolCall(call_id="2", name="run_tests", arguments={}))
    assert isinstance(report.reward, Unscored) or report.reward == 0.0
    assert result.status in ("tests_failed", "timeout", "out_of_memory")
    shown = "\n".join([*report.reasons, result.content])
    assert len(shown) < 20_000
    shown.encode()
    assert all(character.isprintable() or character == "\n" for character in shown)
    assert len(json.dumps(to_json(report))) < 50_000


@pytest.mark.slow
@pytest.mark.parametrize("number", [9, 11, 34, 35, 64])
def test_a_command_may_die_of_any_signal(task, sandbox, number):
    env = CodingEnv(task, sandbox=sandbox, python=PYTHON, toolset="shell")
    env.reset()
    result = env.step(ToolCall(call_id="1", name="bash", arguments={"command": f"kill -{number} $$"}))
    assert result.status == "command_failed"


@pytest.mark.slow
@pytest.mark.parametrize(
    "command", ["for i in $(seq 1200); do : > f$i; done", "for i in $(seq 300); do mkdir -p $i/$i/$i; : > $i/$i/$i/f; done"]
)
def test_a_command_that_fills_its_sandbox_does_not_break_the_next(task, sandbox, command):
    """Otherwise a policy that expects a bad verdict could have none instead."""
    env = CodingEnv(task, sandbox=sandbox, python=PYTHON, toolset="shell", limits=Limits(wall_s=60, disk_mb=8))
    env.reset()
    for name, arguments in (
        ("bash", {"command": command}),
        ("write_file", {"path": "one.py", "content": "x = 1\n"}),
        ("write_file", {"path": "two.py", "content": "#" * (4 << 20)}),
        ("write_file", {"path": "three.py", "content": "#" * (4 << 20)}),
        ("bash", {"command": "true"}),
        ("run_tests", {}),
    ):
        result = env.step(ToolCall(call_id="1", name=name, arguments=arguments))
    assert result.status == "tests_failed"
    assert env.grade().reward == 0.0


def ended(channel: bytes) -> ExecResult:
    return ExecResult(ending=Ending.EXITED, returncode=0, stdout=b"", stderr=b"", channel=channel, wall_s=0.0, cpu_s=0.0)


def test_an_answer_is_limited_before_it_is_unpacked():
    bomb = zlib.compress(bytes(64 << 20))
    assert len(bomb) < 70_000
    tracemalloc.start()
    assert read_answer(ended(b"n" * 32 + bomb), "n" * 32, 1 << 20) is None
    assert tracemalloc.get_traced_memory()[1] < 4 << 20
    tracemalloc.stop()
    assert read_answer(ended(b"n" * 32 + zlib.compress(b"[1]")), "n" * 32, 1 << 20) == [1]


@pytest.mark.slow
@pytest.mark.parametrize(
    "coverage", [3, [], {"tests": 3}, {"tests": [], "files": {"a": {"x": 1}}}, {"tests": [["a"]], "files": []}]
)
def test_coverage_of_another_shape_is_none(task, sandbox, coverage):
    work = FORGE.replace("BODY", answer(coverage=coverage))
    runner = CodeRunner(sandbox=sandbox, python=PYTHON, limits=Limits(wall_s=60))
    _, lines = runner.run_with_coverage(Tree(base=task.repo, changes={"calc.py": work.encode()}))
    assert lines == {}
