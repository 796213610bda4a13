"""Whole builds of small projects: real sandbox, real pytest, real grader, real kills."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from composer_replication.sandbox import open_sandbox
from composer_replication.sandbox.grading.grade import grade
from composer_replication.tasks.build import build_tasks
from composer_replication.tasks.files import tree_files
from composer_replication.tasks.folders import load_tasks
from composer_replication.tasks.interpreters import build_python
from composer_replication.tasks.report import BuildEvent, BuildOptions, BuildReport
from composer_replication.tasks.store import Task, load_task
from composer_replication.types import Outcome
from composer_replication.types.errors import ConfigError, SourceError, TaskError

WriteProject = Callable[[Mapping[str, str]], Path]

LONG_BODY = """\
    across, down = first[0] - second[0], first[1] - second[1]
    squares = across * across + down * down
    return squares ** 0.5
"""
MIXED = {
    "src/shop/__init__.py": "",
    "src/shop/basket.py": '''
        def rounded(x):
            """Two places."""
            return round(x, 2)

        class Basket:
            def __init__(self, items):
                self.items = items

            def total(self):
                """What to pay."""
                return rounded(sum(self.items))

            async def count(self):
                return len(self.items)

            @property
            def first(self):
                return self.items[0]

            def unused(self):
                return self.items[-1]
        ''',
    "src/shop/registry.py": """
        KNOWN = {}

        def register(function):
            KNOWN[function.__name__] = function
            return function
        """,
    "src/shop/plugins.py": """
        from shop.registry import register

        @register
        def greet(): return "hi"
        """,
    "src/shop/careful.py": """
        def log(x):
            return str(x)

        def fragile(x):
            return x + 1
        """,
    "src/shop/geometry.py": f"def distance(first, second):\n{LONG_BODY}",
    "docs/geometry.md": f"Distances are measured so:\n\n{LONG_BODY}",
    "setup.cfg": """
        [tool:pytest]
        addopts = -p no:doctest
        markers = easy: none
        """,
    "tests/conftest.py": """
        import pytest
        from shop.basket import Basket

        @pytest.fixture
        def basket():
            return Basket([1.5, 2.25])
        """,
    "tests/test_basket.py": """
        import asyncio
        import pytest
        from shop.basket import Basket, rounded

        @pytest.mark.easy
        def test_total(basket):
            assert basket.total() == 3.75

        @pytest.mark.parametrize("items", [[1], [1, 2]], ids=["one", "tw\\u00f6"])
        def test_totals(items):
            assert Basket(items).total() == sum(items)

        def test_count(basket):
            assert asyncio.run(basket.count()) == 2

        def test_rounded():
            assert rounded(1.005) == 1.0

        class TestFirst:
            def test_first(self, basket):
                assert basket.first == 1.5

        def test_broken():
            assert 1 == 2

        @pytest.mark.skip(reason="no")
        def test_skipped():
            pass

        @pytest.mark.xfail
        def test_expected():
            assert False
        """,
    "tests/test_plugins.py": """
        from shop.plugins import greet
        from shop.registry import KNOWN, register

        def test_register():
            register(len)
            assert KNOWN["len"] is len

        def test_greet():
            assert greet() == "hi"
        """,
    "tests/test_careful.py": """
        import sys
        from shop import careful

        STATE = []

        def test_log():
            try:
                careful.log(1)
            except NotImplementedError:
                pass

        def test_first():
            STATE.append(1)

        def test_needs_the_one_before():
            assert STATE and careful.fragile(1) == 2

        def test_differs_between_runs():
            assert "coverage" in sys.modules
        """,
    "tests/test_geometry.py": """
        from shop.geometry import distance

        def test_distance():
            assert distance((0, 0), (3, 4)) == 5
        """,
}


class Built:
    """A finished build."""

    def __init__(self, project: Path, out: Path, options: BuildOptions) -> None:
        self.project, self.out, self.events = project, out, list[BuildEvent]()
        self.report: BuildReport = build_tasks(str(project), out, options, progress=self.events.append)
        self.tasks = {" ".join(d.qualname for d in t.spec.deleted): t for t in load_tasks(out)}


@pytest.fixture(scope="module")
def mixed(write_project: WriteProject, tmp_path_factory: pytest.TempPathFactory) -> Built:
    out = tmp_path_factory.mktemp("mixed") / "tasks"
    return Built(write_project(MIXED), out, BuildOptions(trivial=True, forgeable=True, group_size=2))


def ids(task: Task) -> set[str]:
    return {test_id.partition("::")[2] for test_id in task.spec.fail_to_pass}


def test_which_functions_became_tasks(mixed: Built) -> None:
    singles = {name for name in mixed.tasks if " " not in name}
    assert singles == {"rounded", "Basket.total", "Basket.count", "Basket.first", "register"}
    assert set(mixed.report.tasks) == {t.spec.task_id for t in mixed.tasks.values()}
    assert len(mixed.tasks) == len(mixed.report.tasks)
    assert "rounded Basket.total" in mixed.tasks


def test_why_the_others_did_not(mixed: Built) -> None:
    reasons = {entry.what: entry.reason for entry in (*mixed.report.dropped, *mixed.report.skipped)}
    assert reasons["src/shop/geometry.py::distance"] == "the deleted code is also in docs/geometry.md"
    assert reasons["src/shop/careful.py::log"] == "no test fails without it"
    assert reasons["src/shop/careful.py::fragile"] == "its tests are flaky"
    assert reasons["src/shop/basket.py::Basket.unused"] == "no passing test runs its body"
    assert reasons["src/shop/basket.py::Basket.__init__"] == "__init__ that only stores its arguments"
    assert reasons["src/shop/plugins.py::greet"] == "body on the line of its signature or docstring"
    assert sum(count for _, count in mixed.report.reasons()) == len(mixed.report.dropped) + len(mixed.report.skipped)


def test_fail_to_pass_and_pass_to_pass(mixed: Built) -> None:
    assert ids(mixed.tasks["Basket.total"]) == {"test_total", "test_totals[one]", "test_totals[tw\\xf6]"}
    assert ids(mixed.tasks["rounded"]) == ids(mixed.tasks["Basket.total"]) | {"test_rounded"}
    assert ids(mixed.tasks["Basket.first"]) == {"TestFirst::test_first"}
    count = mixed.tasks["Basket.count"]
    assert ids(count) == {"test_count"}
    others = {"test_total", "test_totals[one]", "test_totals[tw\\xf6]", "test_rounded", "TestFirst::test_first"}
    assert set(count.spec.pass_to_pass) == {f"tests/test_basket.py::{name}" for name in others}
    assert count.provenance["pass_to_pass_found"] == 5
    assert count.provenance["pass_to_pass_cap"] == 50
    for task in mixed.tasks.values():
        assert task.provenance["pass_to_pass_found"] == len(task.spec.pass_to_pass), "all that were found: the cap is not reached"


def test_pass_to_pass_tests_are_counted_when_they_have_passed(write_project: WriteProject, tmp_path: Path) -> None:
    tests = """
        from shop import slack

        def test_slack():
            assert slack(1) == 2

        def test_nothing_else_is_raised():
            try:
                slack(1)
            except NotImplementedError:
                pass
        """
    project = write_project({"shop.py": "def slack(x):\n    return x + 1\n", "test_shop.py": tests})
    (task,) = Built(project, tmp_path / "tasks", BuildOptions(trivial=True, forgeable=True)).tasks.values()
    assert task.spec.pass_to_pass == ("test_shop.py::test_nothing_else_is_raised",)
    assert (task.provenance["covering_tests"], task.provenance["pass_to_pass_found"]) == (2, 1)


def test_when_a_test_file_cannot_be_imported_all_its_tests_fail(mixed: Built) -> None:
    assert ids(mixed.tasks["register"]) == {"test_register", "test_greet"}


def test_the_baseline_is_told(mixed: Built) -> None:
    assert mixed.report.tests_passing == 12
    assert mixed.report.tests_failing == 1
    assert mixed.report.tests_flaky == 1
    assert mixed.report.failing == ("tests/test_basket.py::test_broken: assert 1 == 2",)
    assert not any("test_broken" in i or "differs" in i for t in mixed.tasks.values() for i in t.spec.pass_to_pass)
    assert [event.stage for event in mixed.events][:3] == ["fetching", "testing", "searching"]
    last = mixed.events[-1]
    assert (last.done, last.total, last.tasks) == (last.total, mixed.report.candidates, len(mixed.report.tasks))
    recorded = json.loads((mixed.out / "build.json").read_text())
    assert recorded["tasks"] == list(mixed.report.tasks)
    assert recorded["isolation"] == open_sandbox().isolation.summary()
    assert build_python(mixed.out) == Path(sys.executable)
    assert build_python(mixed.project) == Path(sys.executable)


def test_oracle_and_empty_patch_grade_as_proven(mixed: Built) -> None:
    task = mixed.tasks["rounded Basket.total"]
    assert [d.qualname for d in task.spec.deleted] == ["rounded", "Basket.total"]
    for changes, expected in ((task.gold_files(), 1.0), ({}, 0.0)):
        report = grade(task.spec, task.repo, changes, sandbox=open_sandbox(), python=Path(sys.executable))
        assert report.reward == expected
        assert all(report.outcomes[i] is Outcome.PASSED for i in task.spec.pass_to_pass)


def test_the_task_tree_is_the_project_without_the_body(mixed: Built) -> None:
    task = mixed.tasks["Basket.count"]
    assert tree_files(task.repo) == tree_files(mixed.project)
    changed = [p for p in tree_files(task.repo) if (task.repo / p).read_bytes() != (mixed.project / p).read_bytes()]
    assert changed == ["src/shop/basket.py"]
    assert task.gold_files() == {changed[0]: (mixed.project / changed[0]).read_bytes()}
    text = (task.repo / changed[0]).read_text()
    assert text.count("raise NotImplementedError") == 1
    assert '"""What to pay."""' in text
    assert task.spec.instruction == "Implement `Basket.count` in src/shop/basket.py: its body was removed. Make its tests pass."
    assert task.spec.python_path == ("src", ".")
    assert task.spec.editable == ("src/shop/*.py",)
    assert list(task.docs()) == ["docs/geometry.md"]


def test_building_again_changes_nothing(mixed: Built) -> None:
    before = contents(mixed.out)
    again = build_tasks(str(mixed.project), mixed.out, BuildOptions(trivial=True, forgeable=True, group_size=2))
    assert again.tasks == mixed.report.tasks
    assert contents(mixed.out) == before


def test_a_damaged_task_is_built_again(mixed: Built, tmp_path: Path) -> None:
    out = tmp_path / "copy"
    shutil.copytree(mixed.out, out)
    before, victim = contents(out), out / mixed.report.tasks[0]
    (victim / "instruction.md").write_text("Solve it.")
    build_tasks(str(mixed.project), out, BuildOptions(trivial=True, forgeable=True, group_size=2))
    load_task(victim)
    assert contents(out) == before


def test_another_build_in_the_same_folder_is_refused(mixed: Built, write_project: WriteProject) -> None:
    with pytest.raises(TaskError, match="other options") as caught:
        build_tasks(str(mixed.project), mixed.out, BuildOptions(trivial=True, forgeable=True, group_size=1))
    assert "(group_size)" in caught.value.message
    assert caught.value.fix == f"choose another --out, or delete {mixed.out}/.build and that build's tasks, {mixed.out}/shop-*"
    with pytest.raises(TaskError, match="holds a build of"):
        build_tasks(
            str(write_project({"shop.py": "", "test_a.py": ""})),
            mixed.out,
            BuildOptions(trivial=True, forgeable=True, group_size=2),
        )
    changed = mixed.project / "docs" / "new.md"
    changed.write_text("new")
    with pytest.raises(TaskError, match="has changed since"):
        build_tasks(str(mixed.project), mixed.out, BuildOptions(trivial=True, forgeable=True, group_size=2))
    changed.unlink()


def test_a_build_that_decided_nothing_binds_its_folder_to_nothing(write_project: WriteProject, tmp_path: Path) -> None:
    tests = "import shop\n\ndef test_slack():\n    assert shop.slack(1) == 2\n"
    project, out = write_project({"shop.py": "def slack(x):\n    return x + 2\n", "test_shop.py": tests}), tmp_path / "out"
    with pytest.raises(SourceError, match="1 fail"):
        build_tasks(str(project), out, BuildOptions(trivial=True, forgeable=True))
    with pytest.raises(SourceError, match="licence"):
        build_tasks(str(project), out, BuildOptions(trivial=True, forgeable=True, licences=("MIT",)))
    (project / "shop.py").write_text("def slack(x):\n    return x + 1\n")
    assert len(build_tasks(str(project), out, BuildOptions(trivial=True, forgeable=True, mode="delete")).tasks) == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    "options", [BuildOptions(trivial=True, forgeable=True), BuildOptions(trivial=True, forgeable=True, mode="delete")]
)
def test_what_was_measured_of_another_source_is_measured_again(
    write_project: WriteProject, tmp_path: Path, options: BuildOptions
) -> None:
    tests = "import shop\n\ndef test_slack():\n    assert shop.slack(1) == 2\n"
    project, out = write_project({"shop.py": "def slack(x): return x + 1\n", "test_shop.py": tests}), tmp_path / "out"
    assert build_tasks(str(project), out, BuildOptions(trivial=True, forgeable=True)).candidates == 0
    (project / "shop.py").write_text("# by one more\ndef slack(x):\n    return x + 1\n")
    assert len(build_tasks(str(project), out, options).tasks) == 1


@pytest.mark.slow
def test_tasks_in_the_source_are_no_part_of_it(write_project: WriteProject) -> None:
    """Their solutions would be copies of what is deleted, and a second folder of tasks a change of the source."""
    project = write_project({**SMALL, "shop.py": f"def f0(first, second):\n{LONG_BODY}"})
    (project / "test_shop.py").write_text("import shop\n\ndef test_0():\n    assert shop.f0((0, 0), (3, 4)) == 5\n")
    first = build_tasks(str(project), project / "one", BuildOptions(trivial=True, forgeable=True))
    second = build_tasks(str(project), project / "made" / "two", BuildOptions(trivial=True, forgeable=True, mode="delete"))
    shutil.copytree(project / "one" / first.tasks[0], project / "kept" / "task")
    again = build_tasks(str(project), project / "one", BuildOptions(trivial=True, forgeable=True))
    assert len(first.tasks) == len(second.tasks) == 1
    assert again.tasks == first.tasks
    assert first.source_digest == second.source_digest == again.source_digest
    for out in (project, project.parent):
        with pytest.raises(ConfigError, match="the source itself"):
            build_tasks(str(project), out, BuildOptions(trivial=True, forgeable=True))


def contents(out: Path) -> dict[str, bytes]:
    """Every task's files."""
    return {p: (out / p).read_bytes() for p in tree_files(out) if not p.startswith(".build/") and p != "build.json"}


# --- interruption ----------------------------------------------------------------------------------------------------

SMALL = {
    "shop.py": "".join(f"def f{n}(x):\n    return x + {n}\n\n\n" for n in range(5)),
    "test_shop.py": "import shop\n" + "".join(f"def test_{n}():\n    assert shop.f{n}(1) == {n + 1}\n" for n in range(5)),
}
SCRIPT = """
import sys
from pathlib import Path
from composer_replication.tasks import BuildOptions, build_tasks
build_tasks(sys.argv[1], Path(sys.argv[2]), BuildOptions(trivial=True, forgeable=True, jobs=1))
"""


@pytest.fixture(scope="module")
def small(write_project: WriteProject, tmp_path_factory: pytest.TempPathFactory) -> Built:
    return Built(
        write_project(SMALL), tmp_path_factory.mktemp("small") / "tasks", BuildOptions(trivial=True, forgeable=True, jobs=2)
    )


@pytest.mark.parametrize("name", ["source.json", "baseline.json", "hidden.json", "verdicts.jsonl"])
@pytest.mark.parametrize("content", ["{}", "[1]", '{"calls": [{"targets": 1}], "order": 1}'])
def test_what_another_release_left_is_named(small: Built, tmp_path: Path, name: str, content: str) -> None:
    out = tmp_path / "tasks"
    shutil.copytree(small.out, out)
    (out / ".build" / name).write_text(f"{content}\n")
    with pytest.raises(TaskError, match=f"{name} was not written by this release") as caught:
        build_tasks(str(small.project), out, BuildOptions(trivial=True, forgeable=True, jobs=2))
    assert caught.value.fix == f"delete {out / '.build'} and build again"


@pytest.mark.slow
@pytest.mark.parametrize("tasks_before_the_kill", [0, 2])
def test_a_killed_build_goes_on_to_the_same_result(small: Built, tmp_path: Path, tasks_before_the_kill: int) -> None:
    out = tmp_path / "tasks"
    command = [sys.executable, "-c", textwrap.dedent(SCRIPT), str(small.project), str(out)]
    process = subprocess.Popen(command, start_new_session=True)
    while process.poll() is None and not is_reached(out, tasks_before_the_kill):
        time.sleep(0.01)
    assert process.poll() is None
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    with pytest.raises(TaskError):
        load_task(out / small.report.tasks[-1])
    with (out / ".build" / "verdicts.jsonl").open("a") as file:
        file.write('{"candidate": "shop.py::f')
    done_before = {p.name: (p / "MANIFEST.sha256").stat().st_mtime_ns for p in out.iterdir() if not p.name.startswith(".")}
    report = build_tasks(str(small.project), out, BuildOptions(trivial=True, forgeable=True, jobs=3))
    assert report.tasks == small.report.tasks
    assert contents(out) == contents(small.out)
    assert len(done_before) >= tasks_before_the_kill
    assert all((out / name / "MANIFEST.sha256").stat().st_mtime_ns == when for name, when in done_before.items())


@pytest.mark.slow
def test_killed_again_and_again_nothing_is_lost_and_nothing_half_written_is_read(small: Built, tmp_path: Path) -> None:
    """After every kill what can be seen is whole, and what was decided is never decided again."""
    out = tmp_path / "tasks"
    verdicts = out / ".build" / "verdicts.jsonl"
    command = [sys.executable, "-c", textwrap.dedent(SCRIPT), str(small.project), str(out)]
    decided: list[bytes] = []
    for wanted in (1, 2, 4):
        process = subprocess.Popen(command, start_new_session=True)
        while process.poll() is None and not (verdicts.exists() and verdicts.read_bytes().count(b"\n") >= wanted):
            time.sleep(0.001)
        os.killpg(process.pid, signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
        lines = [line for line in verdicts.read_bytes().splitlines(keepends=True) if line.endswith(b"\n")]
        assert lines[: len(decided)] == decided
        decided = lines
        for folder in out.iterdir():
            if not folder.name.startswith("."):
                load_task(folder)
    report = build_tasks(str(small.project), out, BuildOptions(trivial=True, forgeable=True, jobs=2))
    assert verdicts.read_bytes().splitlines(keepends=True)[: len(decided)] == decided
    assert len(verdicts.read_bytes().splitlines()) == len(small.report.tasks)
    assert report.tasks == small.report.tasks
    assert contents(out) == contents(small.out)


def is_reached(out: Path, tasks: int) -> bool:
    """The build has fetched its source and published that many tasks."""
    return (out / ".build" / "source.json").exists() and sum(not p.name.startswith(".") for p in out.iterdir()) >= tasks


@pytest.mark.slow
def test_max_stops_and_more_continues(small: Built, tmp_path: Path) -> None:
    out = tmp_path / "tasks"
    first = build_tasks(str(small.project), out, BuildOptions(trivial=True, forgeable=True, max_tasks=2, jobs=3))
    assert (first.tasks, first.stopped) == (small.report.tasks[:2], "max_tasks")
    assert len(load_tasks(out)) == 2
    second = build_tasks(str(small.project), out, BuildOptions(trivial=True, forgeable=True, max_tasks=5))
    assert (second.tasks, second.stopped) == (small.report.tasks, "")
    assert contents(out) == contents(small.out)
    fewer = build_tasks(str(small.project), out, BuildOptions(trivial=True, forgeable=True, max_tasks=1))
    assert (fewer.tasks, fewer.stopped) == (small.report.tasks, ""), "what there is stays in the account"


@pytest.mark.slow
def test_a_spent_budget_stops_and_building_again_continues(small: Built, tmp_path: Path) -> None:
    out = tmp_path / "tasks"
    first = build_tasks(str(small.project), out, BuildOptions(trivial=True, forgeable=True, budget_s=1e-9))
    assert (first.tasks, first.stopped) == ((), "budget")
    assert build_tasks(str(small.project), out, BuildOptions(trivial=True, forgeable=True)).tasks == small.report.tasks


@pytest.mark.slow
def test_another_seed_takes_another_order(small: Built, tmp_path: Path) -> None:
    other = build_tasks(
        str(small.project),
        tmp_path / "tasks",
        BuildOptions(trivial=True, forgeable=True, seed=1, pass_to_pass_cap=2, keep_docstring=False),
    )
    assert other.tasks != small.report.tasks
    assert set(other.tasks) == set(small.report.tasks)
    assert {len(t.spec.pass_to_pass) for t in load_tasks(tmp_path / "tasks")} == {2}
    assert {len(t.spec.pass_to_pass) for t in small.tasks.values()} == {4}


# --- projects that give nothing --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("test", "options", "message", "fix"),
    [
        ("import time\ndef test_a():\n    time.sleep(3600)\n", {"timeout_s": 3.0}, "did not finish within 3 s", "--timeout"),
        (
            "def test_a():\n    assert 1 == 2\n",
            {},
            r"0 of the .* 1 fail[\s\S]*test_a: assert 1 == 2",
            "--tests",
        ),
        ("import absent_lib\n", {}, "No module named 'absent_lib'", "--python PATH, or install them with --install"),
        ("X = 1\n", {}, "no test was found that runs", "--tests"),
        ("def test_a():\n    assert 1\n", {}, "run none of the package's lines", "--package"),
        ("import os, signal\ndef test_a():\n    os.kill(os.getpid(), signal.SIGSEGV)\n", {}, "tests crash", "--tests"),
        ("def test_a():\n    x = bytearray(4 << 30)\n    assert x\n", {}, "more than 1024 MB of memory", "--tests"),
    ],
)
def test_a_project_whose_tests_do_not_work(
    write_project: WriteProject, tmp_path: Path, test: str, options: dict[str, float], message: str, fix: str
) -> None:
    root = write_project({"shop.py": "def f(x):\n    return x\n", "test_a.py": test})
    with pytest.raises(SourceError, match=message) as caught:
        build_tasks(str(root), tmp_path / "out", BuildOptions(trivial=True, forgeable=True, **options))
    assert fix in (caught.value.fix or "")


def test_a_conftest_that_does_not_suit_pytest(write_project: WriteProject, tmp_path: Path) -> None:
    hook = "def pytest_ignore_collect(path, config):\n    return False\n"
    root = write_project({"shop.py": "", "conftest.py": hook, "test_a.py": "def test_a():\n    pass\n"})
    with pytest.raises(SourceError, match=r"the tests stopped before the first one: .*path") as caught:
        build_tasks(str(root), tmp_path / "out", BuildOptions(trivial=True, forgeable=True))
    assert "--python" in (caught.value.fix or "")


def test_a_project_that_is_installed_is_refused(write_project: WriteProject, tmp_path: Path) -> None:
    root = write_project({"pluggy/__init__.py": "def f(x):\n    return x\n", "test_a.py": "import pluggy\n"})
    with pytest.raises(SourceError, match="has a copy of pluggy installed") as caught:
        build_tasks(str(root), tmp_path / "out", BuildOptions(trivial=True, forgeable=True))
    assert "--install" in (caught.value.fix or "")


def test_a_project_that_an_installed_one_vendors_is_refused(write_project: WriteProject, tmp_path: Path) -> None:
    packages = tmp_path / "env" / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
    run = subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "env")])
    assert run.returncode == 0
    python = tmp_path / "env" / "bin" / "python"
    tests = "import shop\n\ndef test_slack():\n    assert shop.slack(1) == 2\n"
    root = write_project({"shop.py": "def slack(x):\n    return x + 1\n", "test_shop.py": tests})
    (packages / "big" / "_vendor").mkdir(parents=True)
    (packages / "big" / "_vendor" / "shop.py").write_text((root / "shop.py").read_text())
    with pytest.raises(SourceError, match=r"has a vendored copy of shop \(.*big/_vendor/shop\)") as caught:
        build_tasks(str(root), tmp_path / "out", BuildOptions(trivial=True, forgeable=True, python=python))
    assert "--python" in (caught.value.fix or "")


@pytest.mark.slow
def test_a_test_that_hangs_without_the_feature_is_dropped(write_project: WriteProject, tmp_path: Path) -> None:
    test = """
        import shop

        def test_step():
            while True:
                try:
                    return shop.step(1)
                except NotImplementedError:
                    pass

        def test_easy():
            assert shop.easy(1) == 2
        """
    root = write_project({"shop.py": "def step(x):\n    return\n\ndef easy(x):\n    return x + 1\n", "test_a.py": test})
    (root / "shop.py").write_text("def step(x):\n    print(x)\n\n\ndef easy(x):\n    return x + 1\n")
    report = build_tasks(str(root), tmp_path / "out", BuildOptions(trivial=True, forgeable=True, task_timeout_s=15.0))
    assert [entry.reason for entry in report.dropped] == ["its tests do not finish within 15 s (--task-timeout)"]
    assert len(report.tasks) == 1


@pytest.mark.parametrize(
    "wrong",
    [{"group_size": -1}, {"min_group_size": -1}, {"jobs": 0}, {"max_tasks": 0}, {"timeout_s": 0.0}, {"pass_to_pass_cap": -1}],
)
def test_wrong_options_are_named(wrong: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match=f"{next(iter(wrong))} is"):
        BuildOptions(trivial=True, forgeable=True, **wrong)  # type: ignore[arg-type]  # one wrong value by name


UNSTEADY = """
from datetime import date
import pytest
from shop import total

@pytest.mark.parametrize(("number", "day", "function"), {(number, date(2000, 1, 1 + number), len) for number in range(12)})
def test_in_any_order(number, day, function):
    assert total([number]) == number

@pytest.mark.parametrize("number", range(40))
def test_in_order(number):
    assert total([number, 1]) == number + 1
"""


@pytest.fixture
def same_addresses() -> Iterator[None]:
    """Have the kernel give every process the same addresses, where it lets us: some machines that build are set to that."""
    libc, no_randomizing = ctypes.CDLL(None), 0x0040000
    before = libc.personality(0xFFFFFFFF)
    libc.personality(before | no_randomizing)
    yield
    libc.personality(before)


@pytest.mark.slow
@pytest.mark.usefixtures("same_addresses")
def test_an_id_that_hangs_on_an_address_proves_nothing(write_project: WriteProject, tmp_path: Path) -> None:
    """The set has another order in the next interpreter, and pytest numbers its days by it: `5-day3-len`."""
    shop = "def total(prices):\n    found = 0\n    for price in prices:\n        found += price\n    return found\n"
    root = write_project({"shop.py": shop, "test_shop.py": UNSTEADY})
    report = build_tasks(str(root), tmp_path / "out", BuildOptions(trivial=True, forgeable=True))
    [task] = load_tasks(tmp_path / "out")
    assert report.tests_flaky > 0
    assert {test_id.partition("[")[0] for test_id in task.spec.fail_to_pass} == {"test_shop.py::test_in_order"}
