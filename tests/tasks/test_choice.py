"""Checks are chosen so that they are evidence, or say why they are none: there is no third case."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from composer_replication.languages.python.functions import find_functions
from composer_replication.sandbox import Limits, Tree, open_sandbox
from composer_replication.sandbox.grading.programs import examine_programs, wrong_programs
from composer_replication.sandbox.grading.pytest_run import CodeRunner
from composer_replication.sandbox.grading.test_files import without_tests
from composer_replication.tasks.held_out.book import HiddenBook, ObservedProgram
from composer_replication.tasks.held_out.choice import choose_proven, prove_programs
from composer_replication.types.held_out_checks import HeldOutChecks, HeldOutProgram

GOLD = b"def scale(x):\n    return x * 3 - 1\n"


@pytest.fixture
def runner() -> CodeRunner:
    return CodeRunner(sandbox=open_sandbox(), python=Path(sys.executable), limits=Limits(wall_s=60, cpu_s=60))


def book(runner: CodeRunner, tree: Path, tested: int) -> HiddenBook:
    """Programs that call the function with 0 to 19, of which the tests make the first `tested` calls."""
    steps = [[(0, {"do": "call", "of": ["named", "m:scale"], "args": [number]})] for number in range(20)]
    seen = examine_programs(runner, Tree(base=tree), steps, lines=True)
    calls = [found["calls"]["m.py::scale"] for found in seen if found is not None]
    programs = [
        ObservedProgram(
            steps=program,
            expected=found["answers"],
            entered=frozenset({"m.py::scale"}),
            called=frozenset({"m.py::scale"}),
            lines={"m.py": [line for _, line in found["lines"]]},
            cpu_s=0.01,
            new_calls={"m.py::scale": [answer for _, answer in calls[number]]} if number >= tested else {},
        )
        for number, (program, found) in enumerate(zip(steps, seen, strict=True))
        if found is not None
    ]
    known = {"m.py::scale": [call for one in calls[:tested] for call, _ in one]}
    return HiddenBook(programs=programs, known=known, anti_tests=(), notes=())


def chosen(
    runner: CodeRunner, tree: Path, task: str, *, functions: bool = True, gold: bytes = GOLD, tested: int = 0
) -> HeldOutChecks:
    (tree / "m.py").write_bytes(gold)
    return choose_proven(
        book(runner, tree, tested),
        find_functions("m.py", gold)[0] if functions else [],
        frozenset(),
        runner=runner,
        gold=Tree(base=tree),
        task=Tree(base=tree, changes={"m.py": task.encode()}),
        seed="0",
    )


def test_checks_without_a_program_are_no_evidence() -> None:
    assert HeldOutChecks().weakness == "it has no held-out programs"
    assert HeldOutChecks(weakness="why").weakness == "why"


@pytest.mark.slow
def test_every_line_that_some_program_runs_is_run_by_one_that_is_chosen(tmp_path: Path, runner: CodeRunner) -> None:
    """Two of 20 programs run a branch: one of them is chosen, whatever the order."""
    gold = b"def scale(x):\n    if x > 17:\n        return -x\n    return x * 3 - 1\n"
    checks = chosen(runner, tmp_path, "def scale(x):\n    raise NotImplementedError\n", gold=gold)
    assert checks.weakness == ""
    assert any(f"[{number}]" in program.steps for program in checks.programs for number in (18, 19))
    lazy = Tree(base=tmp_path, changes={"m.py": b"def scale(x):\n    return x * 3 - 1\n"})
    assert wrong_programs(runner, lazy, checks.programs)[0]


@pytest.mark.slow
def test_programs_that_the_task_s_own_tree_satisfies_are_not_chosen(tmp_path: Path, runner: CodeRunner) -> None:
    """What is left was chosen without them, and tells every body."""
    half = "def scale(x):\n    if x % 2:\n        raise ValueError\n    return x * 3 - 1\n"
    checks = chosen(runner, tmp_path, half)
    assert checks.weakness == ""
    assert len(checks.programs) == 10, "those with odd numbers"
    assert len(wrong_programs(runner, Tree(base=tmp_path, changes={"m.py": half.encode()}), checks.programs)[0]) == 10


@pytest.mark.slow
@pytest.mark.parametrize(
    ("task", "functions", "weakness"),
    [
        (GOLD.decode(), True, "no held-out program runs it: scale"),
        ("def scale(x):\n    if x > 17:\n        raise ValueError\n    return x * 3 - 1\n", True, "held-out programs"),
        ("def scale(x):\n    raise ValueError\n", False, "its solution changes no function"),
    ],
    ids=["all satisfied", "most satisfied", "no function"],
)
def test_too_few_are_a_weakness(tmp_path: Path, runner: CodeRunner, task: str, functions: bool, weakness: str) -> None:
    assert weakness in chosen(runner, tmp_path, task, functions=functions).weakness


@pytest.mark.slow
def test_a_joined_task_that_loses_programs_is_weak(tmp_path: Path, runner: CodeRunner) -> None:
    checks = chosen(runner, tmp_path, "def scale(x):\n    raise ValueError\n")
    assert checks.weakness == ""
    at_five = f"def scale(x):\n    if x * 3 - 1 == {_answer(checks)}:\n        return x * 3 - 1\n    raise ValueError\n"
    left = prove_programs(checks, runner, Tree(base=tmp_path, changes={"m.py": at_five.encode()}))
    assert len(left.programs) == len(checks.programs) - 1
    assert left.weakness == "some held-out programs did not hold"


STUB = "def scale(x):\n    raise NotImplementedError\n"


@pytest.mark.slow
def test_a_body_that_only_programs_kill_which_the_stub_satisfies_is_tried_on_others(tmp_path: Path, runner: CodeRunner) -> None:
    gold = b"def scale(x):\n    if x % 4:\n        raise NotImplementedError\n    return x * 3 - 1\n"
    checks = chosen(runner, tmp_path, STUB, gold=gold)
    assert checks.weakness == ""
    assert len(checks.programs) == 5, "those with a number that four divides"


BY_HEART = "the tests' answers by heart satisfy its held-out programs: otherwise "


@pytest.mark.slow
@pytest.mark.parametrize(
    ("gold", "tested", "weakness"),
    [
        (GOLD, 20, BY_HEART + "`return None` in scale"),
        (GOLD, 19, BY_HEART + "`return 56` in scale"),
        (GOLD, 18, BY_HEART + "`return 53` in scale"),
        (b"def scale(x):\n    return x * 3 - 1 if x < 10 else 7\n", 10, BY_HEART + "`return 7` in scale"),
        (b"def scale(x):\n    return x * 3 - 1 if x < 10 else x\n", 10, BY_HEART + "`return x` in scale"),
        (
            b"def scale(x):\n    return [x] if x < 10 else {x // 100}\n",
            10,
            "its held-out programs ask for one answer alone: scale",
        ),
        (
            b"class Odd(Exception):\n    pass\n\n\ndef scale(x):\n    if x > 9:\n        raise Odd\n    return x * 3 - 1\n",
            10,
            BY_HEART + "`raise __import__('m', fromlist=['']).Odd` in scale",
        ),
        (b"def scale(x):\n    if x > 9:\n        raise OSError\n    return x\n", 10, BY_HEART + "`raise OSError` in scale"),
        (b"def scale(x):\n    return x > 3 and x != 15\n", 10, BY_HEART + "`return True` in scale"),
    ],
    ids=[
        "nothing new",
        "one new call",
        "two new calls",
        "one new answer",
        "an argument",
        "one object",
        "an exception of its own",
        "an exception",
        "hardly ever false",
    ],
)
def test_what_can_be_learnt_by_heart_is_weak(tmp_path: Path, runner: CodeRunner, gold: bytes, tested: int, weakness: str) -> None:
    assert chosen(runner, tmp_path, STUB, gold=gold, tested=tested).weakness == weakness


@pytest.mark.slow
@pytest.mark.parametrize("default", ["None", "False", "1", "x", "29", "56"])
def test_a_table_of_all_tested_calls_fails_a_strong_task(tmp_path: Path, runner: CodeRunner, default: str) -> None:
    checks = chosen(runner, tmp_path, STUB, tested=10)
    assert checks.weakness == ""
    assert any(program.new_calls == 0 for program in checks.programs)
    table = f"def scale(x):\n    return x * 3 - 1 if x < 10 else {default}\n"
    assert wrong_programs(runner, Tree(base=tmp_path, changes={"m.py": table.encode()}), checks.programs)[0]


def _answer(checks: HeldOutChecks) -> str:
    return checks.programs[0].expected.removeprefix('[["returns", ').removesuffix("]]")


PROJECT: Mapping[str, str] = {
    "m.py": "",
    "conftest.py": "",
    "test_top.py": "",
    "src/pkg/test_inside.py": "",
    "src/pkg/code.py": "",
    "tests/data/answers.json": "",
    "tests/unit/test_unit.py": "",
    "testing/test/__init__.py": "",
}


@pytest.mark.slow
def test_programs_run_where_no_test_can_be_read(tmp_path: Path, runner: CodeRunner) -> None:
    """A folder that is only called `test`, and holds none, stays."""
    for path, text in PROJECT.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    tree = Tree(base=tmp_path, changes={"m.py": b"import os\ndef there(path):\n    return os.path.exists(path)\n"})
    tree.changes["tests/unit/planted.py"] = b""
    left = without_tests(tree).changes
    assert left == {
        "m.py": tree.changes["m.py"],
        **dict.fromkeys(("conftest.py", "test_top.py", "src/pkg/test_inside.py", "tests")),
    }
    expected = {path for path in PROJECT if path.startswith("tests/")} | left.keys() - {"m.py"}
    programs = [
        HeldOutProgram(
            steps=f'[[0, {{"do": "call", "of": ["named", "m:there"], "args": ["{path}"]}}]]',
            expected=f'[["returns", {str(path not in expected).lower()}]]',
            uses="m.py::there",
            new_calls=1,
        )
        for path in PROJECT
    ]
    assert wrong_programs(runner, tree, programs)[0] == []
