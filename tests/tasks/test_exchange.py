"""Tasks in other people's formats: what is written works without this package, and what cannot be read is named."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from harbor_tasks import foreign
from in_process import composer_here

from composer_replication.sandbox import open_sandbox
from composer_replication.sandbox.grading.grade import grade
from composer_replication.tasks.build import build_tasks
from composer_replication.tasks.exchange import export_harbor, export_images, export_swebench, import_harbor
from composer_replication.tasks.exchange.images import build_name
from composer_replication.tasks.exchange.pins import pins_of
from composer_replication.tasks.folders import load_tasks
from composer_replication.tasks.report import BuildOptions
from composer_replication.tasks.store import Task, load_task
from composer_replication.types import to_json
from composer_replication.types.errors import TaskError

WriteProject = Callable[[Mapping[str, str]], Path]
PYTHON = Path(sys.executable)
PROJECT = {
    "tide.py": "def slack(x):\n    return x + 1\n\n\ndef ebb(x):\n    return -x\n",
    "tests/test_slack.py": "import tide\n\n\ndef test_slack():\n    assert tide.slack(1) == 2\n",
    "tests/test_ebb.py": (
        "import tide\n\n\ndef test_ebb():\n    assert tide.ebb(1) == -1\n\n\ndef test_both():\n    tide.slack(1)\n"
    ),
    "pyproject.toml": '[project]\nname = "tide"\nversion = "1"\ndependencies = ["hypothesis"]\n',
}


@pytest.fixture(scope="module")
def tasks(write_project: WriteProject, tmp_path_factory: pytest.TempPathFactory) -> list[Task]:
    out = tmp_path_factory.mktemp("exchange") / "tasks"
    build_tasks(str(write_project(PROJECT)), out, BuildOptions(trivial=True, forgeable=True, jobs=1))
    found = load_tasks(out)
    assert len(found) == 2
    return found


@pytest.fixture(scope="module")
def exported(tasks: list[Task], tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return export_harbor(tasks, tmp_path_factory.mktemp("harbor"), pythons=pythons_of(tasks))


def pythons_of(tasks: list[Task]) -> dict[str, Path]:
    return {task.spec.task_id: PYTHON for task in tasks}


def graded(root: Path, workspace: Path, logs: Path) -> subprocess.CompletedProcess[str]:
    """What `tests/test.sh` does, at other paths."""
    tests = root / "tests"
    command = [sys.executable, "-I", "-B", str(tests / "grade.py"), str(tests), str(workspace), str(logs)]
    return subprocess.run(command, capture_output=True, text=True, env={"PATH": os.defpath}, cwd="/")


# --- Harbor out ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_exported_grader_agrees_with_ours(exported: list[Path], tmp_path: Path) -> None:
    for root in exported:
        workspace, logs = tmp_path / root.name, tmp_path / f"{root.name}.logs"
        shutil.copytree(root / "environment" / "repo", workspace)
        assert graded(root, workspace, logs).returncode == 0
        assert (logs / "reward.txt").read_text() == "0\n"
        assert json.loads((logs / "report.json").read_text())["reasons"]
        shutil.copytree(root / "solution" / "files", workspace, dirs_exist_ok=True)
        for test in (workspace / "tests").glob("*.py"):
            test.write_text("")
        assert graded(root, workspace, logs).returncode == 0
        assert (logs / "reward.txt").read_text() == "1\n"
        report = json.loads((logs / "report.json").read_text())
        assert report["rejected"] == ["tests/test_ebb.py", "tests/test_slack.py"]
        assert report["isolation"]


WITHOUT_A_SANDBOX = """
import runpy, sys
sys.path.insert(0, sys.argv[1] + "/grader")
from composer_replication.sandbox.backends import linux, seccomp
linux.no_new_privs()
linux.load_filter(seccomp.compiled({"landlock_create_ruleset": 1}))  # it refuses unshare by itself
sys.argv[:] = [sys.argv[1] + "/grade.py", *sys.argv[1:]]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.mark.slow
def test_without_a_sandbox_there_is_no_reward_unless_that_is_asked_for(exported: list[Path], tmp_path: Path) -> None:
    root, logs = exported[0], tmp_path / "logs"
    command = [
        sys.executable,
        "-I",
        "-B",
        "-c",
        WITHOUT_A_SANDBOX,
        *map(str, (root / "tests", root / "environment" / "repo", logs)),
    ]
    refused = subprocess.run(command, capture_output=True, text=True, env={"PATH": "/nowhere"}, cwd="/")
    assert refused.returncode == 4, refused.stderr
    assert refused.stdout.startswith("no reward: no isolation works on this machine (namespaces refused")
    assert "COMPOSER_SANDBOX=unsafe-subprocess" in refused.stdout
    assert not logs.exists()
    environment = {"PATH": "/nowhere", "COMPOSER_SANDBOX": "unsafe-subprocess"}
    accepted = subprocess.run(command, capture_output=True, text=True, env=environment, cwd="/")
    assert accepted.returncode == 0, accepted.stdout + accepted.stderr
    assert (logs / "reward.txt").read_text() == "0\n"
    assert json.loads((logs / "report.json").read_text())["isolation"].startswith("unsafe-subprocess")


@pytest.mark.slow
def test_an_agent_that_empties_the_tests_earns_nothing(exported: list[Path], tmp_path: Path) -> None:
    workspace = tmp_path / "app"
    shutil.copytree(exported[0] / "environment" / "repo", workspace)
    for test in (workspace / "tests").glob("*.py"):
        test.write_text("def test_slack(): pass\ndef test_ebb(): pass\ndef test_both(): pass\n")
    (workspace / "conftest.py").write_text("import os\nos._exit(0)\n")
    assert graded(exported[0], workspace, tmp_path / "logs").returncode == 0
    assert (tmp_path / "logs" / "reward.txt").read_text() == "0\n"


@pytest.mark.slow
def test_the_exported_grader_asks_the_hidden_checks(tasks: list[Task], exported: list[Path], tmp_path: Path) -> None:
    for task, root in zip(tasks, exported, strict=True):
        assert task.spec.hidden.programs
        workspace, logs = tmp_path / root.name, tmp_path / f"{root.name}.logs"
        shutil.copytree(root / "environment" / "repo", workspace)
        (workspace / "tide.py").write_text("def slack(x):\n    return 2\n\n\ndef ebb(x):\n    return -1\n")
        assert graded(root, workspace, logs).returncode == 0
        assert (logs / "reward.txt").read_text() == "0\n"
        report = json.loads((logs / "report.json").read_text())
        assert set(report["outcomes"].values()) == {"passed"}, "what is known by heart passes the visible tests"
        assert report["hidden_broken"]


@pytest.mark.slow
def test_hidden_checks_are_with_the_verifier_only(tasks: list[Task], exported: list[Path], tmp_path: Path) -> None:
    for root in exported:
        files = [path for path in root.rglob("*") if path.is_file()]
        assert {path.relative_to(root).parts[0] for path in files if b"anti_tests" in path.read_bytes()} == {"tests"}
    rows = export_swebench(tasks, tmp_path / "out").read_text()
    assert not [word for word in ("anti_tests", "hidden", "impossible") if word in rows]


@pytest.mark.slow
def test_an_impossible_task_is_no_row_and_comes_back_from_harbor(tasks: list[Task], tmp_path: Path) -> None:
    changed = replace(tasks[0], spec=replace(tasks[0].spec, impossible=True))
    rows = export_swebench([changed, tasks[1]], tmp_path / "rows").read_text().splitlines()
    assert [json.loads(row)["instance_id"] for row in rows] == [tasks[1].spec.task_id]
    with pytest.raises(TaskError, match="every task is impossible"):
        export_swebench([changed], tmp_path / "none")
    export_harbor([changed], tmp_path / "harbor", pythons=pythons_of([changed]))
    back, refused = import_harbor(tmp_path / "harbor", tmp_path / "back", sandbox=open_sandbox(), python=PYTHON)
    assert not refused
    assert [task.spec for task in back] == [changed.spec]


@pytest.mark.slow
def test_the_exported_grader_needs_the_standard_library_only(exported: list[Path]) -> None:
    """Whoever lets it import more breaks every exported task: containers have pytest and what the tree declares."""
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "import importlib, pkgutil, composer_replication, composer_replication.sandbox as sandbox\n"
        "assert composer_replication.__file__.startswith(sys.argv[1])\n"
        "for module in pkgutil.iter_modules(sandbox.__path__):\n"
        "    if module.name != 'pytest_driver':\n"
        "        importlib.import_module(f'composer_replication.sandbox.{module.name}')\n"
    )
    grader = str(exported[0] / "tests" / "grader")
    done = subprocess.run([sys.executable, "-I", "-S", "-B", "-c", code, grader], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_the_image_pins_what_the_tree_declares(tasks: list[Task], exported: list[Path]) -> None:
    pins = pins_of(tasks[0].spec, tasks[0].repo, PYTHON)
    assert pins.python == "{}.{}".format(*sys.version_info)
    names = [line.partition("==")[0] for line in pins.requirements]
    assert {"pytest", "hypothesis", "pluggy"} <= set(names)
    assert "torch" not in names
    assert all(version for _, _, version in (line.partition("==") for line in pins.requirements))
    dockerfile = (exported[0] / "environment" / "Dockerfile").read_text()
    assert f"FROM python:{pins.python}-slim\n" in dockerfile
    assert all(line in dockerfile for line in pins.requirements)


@pytest.mark.slow
def test_the_tasks_of_a_build_share_an_image(tasks: list[Task], exported: list[Path], tmp_path: Path) -> None:
    written = composer_here("tasks", "export", tasks[0].root.parent, "--format", "docker", "--out", tmp_path)
    assert written.stdout == f"docker build --tag composer-tasks/tasks {tmp_path / 'tasks'}\n"
    (folder,) = tmp_path.iterdir()
    assert [path.name for path in folder.iterdir()] == ["Dockerfile"]
    with_the_tree = (exported[0] / "environment" / "Dockerfile").read_text()
    assert with_the_tree == (folder / "Dockerfile").read_text() + "COPY repo /app\nWORKDIR /app\n"


@pytest.mark.parametrize(
    ("folder", "name"), [("PyYAML-6.0", "pyyaml-6.0"), ("my__Tasks.", "my-tasks"), ("tasks", "tasks"), ("___", "tasks")]
)
def test_a_build_gives_an_image_a_name_that_registries_take(folder: str, name: str) -> None:
    assert build_name(Path(folder)) == name


@pytest.mark.slow
def test_builds_whose_images_would_be_called_alike_are_named(tasks: list[Task], tmp_path: Path) -> None:
    found = []
    for name in ("one.tasks", "One.Tasks"):
        shutil.copytree(tasks[0].root, tmp_path / name / tasks[0].root.name)
        found += load_tasks(tmp_path / name)
    with pytest.raises(TaskError, match=r"both be called one\.tasks"):
        export_images(found, tmp_path / "images", pythons=pythons_of(found))


@pytest.mark.slow
def test_nothing_of_the_solution_is_where_the_agent_works(tasks: list[Task], exported: list[Path]) -> None:
    for task, root in zip(tasks, exported, strict=True):
        for path, gold in task.gold_files().items():
            assert (root / "environment" / "repo" / path).read_bytes() != gold
        assert not list((root / "environment").rglob("gold*"))


# --- SWE-bench out ---------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_swebench_rows_do_what_they_say(tasks: list[Task], tmp_path: Path) -> None:
    rows = [json.loads(line) for line in export_swebench(tasks, tmp_path / "out").read_text().splitlines()]
    assert [row["instance_id"] for row in rows] == [task.spec.task_id for task in tasks]
    for row, task in zip(rows, tasks, strict=True):
        clone = tmp_path / row["instance_id"]
        git("clone", "--quiet", str(tmp_path / "out" / row["repository_bundle"]), str(clone))
        assert git("-C", str(clone), "rev-list", "--all").split() == [row["base_commit"]]
        wanted = json.loads(row["FAIL_TO_PASS"])
        assert wanted == list(task.spec.fail_to_pass)
        assert json.loads(row["PASS_TO_PASS"]) == list(task.spec.pass_to_pass)
        assert not any((clone / test.partition("::")[0]).exists() for test in wanted)
        apply(clone, row["test_patch"])
        assert outcome(clone, wanted) != 0
        apply(clone, row["patch"])
        assert outcome(clone, [*wanted, *json.loads(row["PASS_TO_PASS"])]) == 0


@pytest.mark.slow
def test_equal_tasks_have_equal_rows(tasks: list[Task], tmp_path: Path) -> None:
    assert export_swebench(tasks, tmp_path / "a").read_text() == export_swebench(tasks, tmp_path / "b").read_text()


def git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], capture_output=True, text=True, check=True).stdout


def apply(clone: Path, patch: str) -> None:
    subprocess.run(["git", "-C", str(clone), "apply", "-"], input=patch, text=True, check=True)


def outcome(clone: Path, ids: list[str]) -> int:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *ids]
    return subprocess.run(command, cwd=clone, capture_output=True, env={**os.environ, "PYTHONPATH": str(clone)}).returncode


# --- Harbor in -------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_what_was_exported_comes_back_as_it_was(tasks: list[Task], exported: list[Path], tmp_path: Path) -> None:
    back, refused = import_harbor(exported[0].parent, tmp_path, sandbox=open_sandbox(), python=PYTHON)
    assert refused == []
    for ours, theirs in zip(tasks, back, strict=True):
        assert to_json(replace(theirs.spec, hidden=ours.spec.hidden)) == to_json(ours.spec)
        assert {program.steps for program in theirs.spec.hidden.programs} >= {
            program.steps for program in ours.spec.hidden.programs
        }
        assert not theirs.spec.forgeable, "found here, whatever the task says"
    assert [task.gold_files() for task in back] == [task.gold_files() for task in tasks]
    assert [load_task(task.root).spec for task in back] == [task.spec for task in back]


@pytest.mark.slow
def test_how_strong_a_foreign_task_is_is_not_for_its_author_to_say(exported: list[Path], tmp_path: Path) -> None:
    """One that comes with no program, and one with code that no program can tell from a constant, both called strong."""
    for name, solution in (("strong", ""), ("weak", "\n\ndef slack(x):\n    return 2\n")):
        root = tmp_path / "many" / name
        shutil.copytree(next(path for path in exported if "slack" in path.name), root)
        described = json.loads((root / "tests" / "task.json").read_text())
        described |= {"task_id": name, "hidden": described["hidden"] | {"programs": [], "anti_tests": [], "weakness": ""}}
        (root / "tests" / "task.json").write_text(json.dumps(described))
        gold = root / "solution" / "files" / "tide.py"
        gold.write_text(gold.read_text() + solution)
    back, refused = import_harbor(tmp_path / "many", tmp_path / "out", sandbox=open_sandbox(), python=PYTHON)
    assert refused == []
    assert {task.spec.task_id: task.spec.forgeable for task in back} == {"strong": False, "weak": True}


def test_a_foreign_task_that_can_be_expressed(tmp_path: Path) -> None:
    (task,), refused = import_harbor(foreign(tmp_path / "rates"), tmp_path / "out", sandbox=open_sandbox(), python=PYTHON)
    assert refused == []
    assert task.spec.instruction == "Convert rates, and write the summary."
    assert {test_id.partition("::")[2] for test_id in task.spec.fail_to_pass} == {"test_convert", "test_summary"}
    assert {test_id.partition("::")[2] for test_id in task.spec.pass_to_pass} == {"test_same"}
    assert set(task.gold_files()) == {"rates.py", "summary.py"}
    assert (task.repo / "summary.py").read_bytes() == b""
    assert load_task(task.root).spec == task.spec
    assert {program.uses for program in task.spec.hidden.programs} == {"rates.py::convert"}
    assert task.provenance["held_out_programs"] == len(task.spec.hidden.programs)
    by_heart = b"def convert(x):\n    return 4\n\n\ndef same(x):\n    return x\n"
    report = grade(task.spec, task.repo, {**task.gold_files(), "rates.py": by_heart}, sandbox=open_sandbox(), python=PYTHON)
    assert (report.reward, bool(report.hidden_broken)) == (0.0, True)


def test_what_helps_foreign_tests_is_no_part_of_the_work(tmp_path: Path) -> None:
    tests = {
        "tests/helpers.py": "def check(found, wanted):\n    assert found == wanted\n",
        "tests/test_rates.py": "from helpers import check\nfrom rates import convert\n\n\ndef test_convert():\n"
        "    check(convert(2), 4)\n",
    }
    (task,), _ = import_harbor(foreign(tmp_path / "rates", tests), tmp_path / "out", sandbox=open_sandbox(), python=PYTHON)
    cheat = {"harbor_tests/helpers.py": b"def check(found, wanted):\n    pass\n", "rates.py": b"def convert(x):\n    return x\n"}
    report = grade(task.spec, task.repo, cheat, sandbox=open_sandbox(), python=PYTHON)
    assert (report.reward, report.rejected) == (0.0, ("harbor_tests/helpers.py",))
    assert grade(task.spec, task.repo, task.gold_files(), sandbox=open_sandbox(), python=PYTHON).reward == 1.0


REFUSALS = {
    "several containers": {"environment/docker-compose.yaml": "services: {}\n"},
    "image registry.invalid/x": {
        "environment/Dockerfile": None,
        "task.toml": '[environment]\ndocker_image = "registry.invalid/x"\n',
    },
    "built by commands (RUN git clone": {
        "environment/Dockerfile": "FROM python:3.13\nWORKDIR /app\nRUN git clone https://example.invalid/x .\n"
    },
    "files from elsewhere": {"environment/Dockerfile": "FROM x\nWORKDIR /app\nCOPY --from=other /x .\n"},
    "not all below one working directory": {"environment/Dockerfile": "FROM x\nWORKDIR /app\nCOPY src /data\n"},
    "which the image copies, is missing": {"environment/Dockerfile": "FROM x\nWORKDIR /app\nCOPY absent .\n"},
    "not pytest": {"tests/test.sh": "cmp /app/out.txt /tests/out.txt\n"},
    "no solution/solve.sh": {"solution/solve.sh": None},
    "names absolute paths": {"tests/test_rates.py": "def test_x():\n    assert open('/app/rates.py')\n"},
    "fails without network": {"solution/solve.sh": "curl -sf http://192.0.2.1/ || exit 7\n"},
    "changes no file": {"solution/solve.sh": "true\n"},
    "deletes files": {"solution/solve.sh": "rm /app/rates.py\n"},
    "do not pass with its solution": {"tests/test_rates.py": "def test_x():\n    assert False\n"},
    "its untouched tree scores 1": {"tests/test_rates.py": "def test_x():\n    assert True\n"},
    "which no submission may": {
        "solution/solve.sh": "cp /solution/rates.py /app/\ncd /app\necho 'TOTAL = 3' > summary.py\necho > conftest.py\n"
    },
    "several steps": {"task.toml": "[[steps]]\nname = 'one'\n"},
    "cannot be read": {"task.toml": "["},
}


def test_what_cannot_be_expressed_is_named_with_the_reason(tmp_path: Path) -> None:
    for number, changed in enumerate(REFUSALS.values()):
        foreign(tmp_path / "many" / f"{number:02}", changed)
    tasks, refused = import_harbor(tmp_path / "many", tmp_path / "out", sandbox=open_sandbox(), python=PYTHON)
    assert tasks == []
    assert [refusal.what for refusal in refused] == [f"{number:02}" for number in range(len(REFUSALS))]
    for refusal, reason in zip(refused, REFUSALS, strict=True):
        assert reason in refusal.reason, refusal
    assert not (tmp_path / "out").exists()
    (tmp_path / "out").mkdir()
    with pytest.raises(TaskError, match="holds no Harbor task"):
        import_harbor(tmp_path / "out", tmp_path, sandbox=open_sandbox(), python=PYTHON)


# --- the commands ----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_export_and_import_from_the_command_line(tasks: list[Task], tmp_path: Path) -> None:
    folder = tasks[0].root.parent
    rows = composer_here("tasks", "export", folder, "--format", "swebench", "--out", tmp_path / "rows")
    assert rows.stdout == f"2 SWE-bench rows in {tmp_path / 'rows' / 'tasks.jsonl'}\n", rows.stderr
    harbor = composer_here("tasks", "export", folder, "--format", "harbor", "--out", tmp_path / "harbor")
    assert harbor.stdout == f"2 Harbor tasks in {tmp_path / 'harbor'}\n", harbor.stderr
    foreign(tmp_path / "harbor" / "strange")
    (tmp_path / "harbor" / "strange" / "solution" / "solve.sh").unlink()
    back = composer_here("tasks", "import", "harbor", tmp_path / "harbor", "--out", tmp_path / "back")
    assert back.returncode == 1, back.stderr
    refusal, *table, summary = back.stdout.splitlines()
    assert refusal == "not imported: strange: it has no solution/solve.sh to prove it with"
    assert summary == f"2 of 3 Harbor tasks imported into {tmp_path / 'back'}"
    assert sum(line.rstrip().endswith("strong") for line in table) == 2
    none = composer_here("tasks", "import", "harbor", tmp_path / "harbor" / "strange", "--out", tmp_path / "none")
    assert none.returncode == 3
    assert "none of 1 Harbor tasks" in none.stderr
