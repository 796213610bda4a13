"""Many repositories in one set: each is built by its own process, none ends the others, every task has its interpreter."""

from __future__ import annotations

import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from in_process import composer_here

from composer_replication.envs.oracle import sound_tasks
from composer_replication.envs.suite import TaskSuite
from composer_replication.sandbox import open_sandbox
from composer_replication.tasks import BuildOptions, build_tasks, load_tasks
from composer_replication.tasks.files import solved_tree
from composer_replication.tasks.folders import builds_in
from composer_replication.tasks.interpreters import interpreters_of
from composer_replication.tasks.sets import build_set as building
from composer_replication.tasks.sets import one_build
from composer_replication.tasks.sets.build_set import build_set
from composer_replication.tasks.sets.duplicates import find_duplicates
from composer_replication.tasks.sets.report import SetReport, SourceOutcome
from composer_replication.tasks.sets.sources_file import folders_of, read_sources
from composer_replication.tasks.store import load_task, write_task
from composer_replication.types.errors import ConfigError, TaskError
from composer_replication.types.held_out_checks import HeldOutChecks, HeldOutProgram

TIDE = {
    "tide.py": "def slack(x):\n    grown = x + 1\n    return grown\n",
    "test_tide.py": "import tide\n\n\ndef test_slack():\n    assert tide.slack(1) == 2\n",
}
MOON = {
    "moon.py": "def phase(day):\n    part = day % 29\n    return part // 7\n",
    "test_moon.py": "import moon\n\n\ndef test_phase():\n    assert moon.phase(15) == 2\n",
}
VENDORED = {
    **MOON,
    "vendored.py": TIDE["tide.py"],
    "test_vendored.py": "import vendored\n\n\ndef test_slack():\n    assert vendored.slack(1) == 2\n",
}
NO_TESTS = {"sea.py": "def deep():\n    return 3\n"}
OPTIONS = BuildOptions(trivial=True, forgeable=True)


def write(folder: Path, files: Mapping[str, str]) -> str:
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(textwrap.dedent(text))
    return str(folder)


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    root = tmp_path_factory.mktemp("projects")
    return [write(root / "tide", TIDE), write(root / "sea", NO_TESTS), write(root / "moon", VENDORED)]


@pytest.fixture(scope="module")
def built(sources: list[str], tmp_path_factory: pytest.TempPathFactory) -> tuple[SetReport, Path, list[SourceOutcome]]:
    out, told = tmp_path_factory.mktemp("set") / "tasks", list[SourceOutcome]()
    return build_set(sources, out, OPTIONS, progress=told.append), out, told


@pytest.fixture
def copied(built: tuple[SetReport, Path, list[SourceOutcome]], tmp_path: Path) -> Path:
    return Path(shutil.copytree(built[1], tmp_path / "tasks", symlinks=True))


def test_a_source_that_cannot_be_built_ends_no_other(
    built: tuple[SetReport, Path, list[SourceOutcome]], sources: list[str]
) -> None:
    report, out, told = built
    tide, sea, moon = report.sources
    assert [outcome.source for outcome in told] == sources
    assert (tide.tasks, sea.tasks, moon.tasks) == (1, 0, 2)
    assert "no tests" in sea.reason
    assert sea.fix
    assert tide.reason == moon.reason == ""
    assert min(tide.cpu_s, moon.cpu_s) > sea.cpu_s > 0.0
    assert len(builds_in(out)) == 2, "a refused source has no build"
    assert json.loads((out / "set.json").read_text())["sources"][1]["reason"] == sea.reason


def test_the_code_of_another_source_is_asked_once(built: tuple[SetReport, Path, list[SourceOutcome]]) -> None:
    """`moon` vendors what `tide` is; builds are compared in order of their folders' names."""
    report, out, _ = built
    (left,) = report.left_out
    assert "slack" in left
    assert "deletes the code that" in report.left_out[left]
    assert sorted(task.spec.deleted[0].qualname for task in load_tasks(out)) == ["phase", "slack"]
    assert report.tasks == 2


def test_what_is_done_is_not_done_again(copied: Path, sources: list[str]) -> None:
    before = {path: path.stat().st_mtime_ns for path in copied.glob("*/*/MANIFEST.sha256")}
    assert [outcome.tasks for outcome in build_set(sources, copied, OPTIONS).sources] == [1, 0, 2]
    assert {path: path.stat().st_mtime_ns for path in copied.glob("*/*/MANIFEST.sha256")} == before


def test_what_was_refused_for_a_reason_that_lasts_is_not_tried_again_unless_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, ran = "https://user:secret@example.org/o/moon.git@v1", list[str]()
    folder = tmp_path / folders_of([source])[source]
    refusal = {"reason": "2 of 9 tests pass", "fix": "mend them", "lasting": True, "order": one_build.order_of(source, OPTIONS)}

    def build(self: object, asked: str, out: Path) -> int:
        ran.append(asked)
        (out / ".build").mkdir(parents=True, exist_ok=True)
        (out / ".build" / "refused.json").write_text(json.dumps(refusal))
        return 3

    monkeypatch.setattr(building._Builds, "_run", build)
    (first,) = build_set([source], tmp_path, OPTIONS).sources
    (again,) = build_set([source], tmp_path, OPTIONS).sources
    assert ran == [source]
    assert (
        (first.reason, first.fix) == (again.reason, again.fix) == ("2 of 9 tests pass", "mend them; then try again with --retry")
    )
    assert "secret" not in "".join(path.read_text() for path in tmp_path.rglob("*.json")) + str(folder) + str(first)
    build_set([source], tmp_path, OPTIONS, retry=True)
    build_set([source], tmp_path, replace(OPTIONS, timeout_s=900.0))
    refusal["lasting"] = False
    build_set([source], tmp_path, OPTIONS, retry=True)
    build_set([source], tmp_path, OPTIONS)
    assert len(ran) == 5, "asked for, with another time limit, for a reason that need not last"


def test_what_is_missing_is_built_again(copied: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a source that cannot have changed, what is there is enough only if all of it is there."""
    moon, _ = builds_in(copied)
    source, ran = "pypi:moon==1.0", list[str]()
    shutil.copytree(moon, tmp_path / "set" / "moon-1.0")
    (tmp_path / "set" / "set.json").write_text('{"left_out": {"moon-1.0/x": "a reason"}}')
    monkeypatch.setattr(building._Builds, "_run", lambda self, asked, out: ran.append(asked) or 0)
    assert build_set([source], tmp_path / "set", OPTIONS).sources[0].tasks == 2
    build_set([source], tmp_path / "set", replace(OPTIONS, seed=1))
    assert ran == [source], "other options make other tasks"
    next((tmp_path / "set" / "moon-1.0").glob("moon-phase-*/MANIFEST.sha256")).unlink()
    build_set([source], tmp_path / "set", OPTIONS)
    assert ran == [source, source]


def test_a_set_inside_its_source_is_no_part_of_it(tmp_path: Path) -> None:
    source = write(tmp_path / "tide", TIDE)
    out = tmp_path / "tide" / "tasks"
    (first,) = build_set([source], out, OPTIONS).sources
    assert (first.tasks, first.reason) == (1, "")
    pristine = out / first.folder / ".build" / "pristine"
    assert {path.name for path in pristine.rglob("*")} == set(TIDE)
    (again,) = build_set([source], out, OPTIONS).sources
    assert (again.tasks, again.reason) == (1, "")


def test_a_strong_task_is_kept_rather_than_its_forgeable_twin(copied: Path) -> None:
    moon, tide = builds_in(copied)
    (twin,) = moon.glob("moon-slack-*")
    task = load_task(twin)
    spec = replace(task.spec, hidden=HeldOutChecks(weakness="a trivial body passes"))
    files = {path: (task.repo / path).read_bytes() for path in task.gold_files()}
    with solved_tree(task.repo, task.gold_files()) as solved:
        write_task(spec, twin, pristine=solved, deleted=files, provenance=task.provenance)
    assert list(find_duplicates(copied)) == [f"{moon.name}/{twin.name}"]
    report = SetReport(sources=(SourceOutcome(source="x", folder=tide.name, tasks=1),), left_out=find_duplicates(copied))
    assert report.tasks == 1, "those of other lists are not counted"


def test_a_folder_of_one_build_is_no_place_for_a_set(copied: Path, sources: list[str], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="holds the tasks of one build"):
        build_set(sources, builds_in(copied)[0], OPTIONS)
    with pytest.raises(ConfigError, match="holds the source"):
        build_set(sources, Path(sources[0]).parent, OPTIONS)


def test_damaged_and_doubled_tasks_are_left_out_aloud(copied: Path, caplog: pytest.LogCaptureFixture) -> None:
    moon, _ = builds_in(copied)
    (damaged,) = moon.glob("moon-phase-*")
    (damaged / "MANIFEST.sha256").unlink()
    shutil.copytree(moon, copied / "zwilling")
    shutil.copytree(next(moon.glob("moon-slack-*")), copied / "stray")
    (copied / "zwilling" / "build.json").unlink()  # as of tasks that were imported
    with caplog.at_level(logging.WARNING):
        (task,) = load_tasks(copied)
    assert task.spec.deleted[0].qualname == "slack"
    assert "5 of 6 tasks" in caplog.text
    assert "stray lies beside the builds" in caplog.text
    (copied / "set.json").write_text("[]")
    with pytest.raises(TaskError, match="not a valid record of a set"):
        load_tasks(copied)


def test_a_set_without_any_task_names_the_reason(copied: Path) -> None:
    for path in copied.glob("*/*/MANIFEST.sha256"):
        path.write_text("")
    with pytest.raises(TaskError, match=r"set without tasks: .* is missing|set without tasks: .* does not belong"):
        load_tasks(copied)


def test_every_task_has_the_interpreter_of_its_build(copied: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    moon, tide = builds_in(copied)
    elsewhere = tmp_path / "python"
    elsewhere.symlink_to(sys.executable)
    record = json.loads((moon / "build.json").read_text())
    (moon / "build.json").write_text(json.dumps({**record, "python": str(elsewhere)}))
    (copied / "set.json").unlink()  # builds that were put side by side by hand are a set, too
    tasks = load_tasks(copied)
    found = interpreters_of(tasks)
    assert [found[task.spec.task_id] for task in tasks] == [elsewhere, elsewhere, Path(sys.executable)]
    assert set(interpreters_of(tasks, elsewhere).values()) == {elsewhere}

    elsewhere.unlink()
    with caplog.at_level(logging.WARNING):
        suite = TaskSuite(copied, forgeable=True)
    assert len(suite.tasks) == 1, "what cannot run is left out"
    assert "which is gone" in caplog.text
    (task,) = suite.tasks
    assert suite.env(task).grade().reward == 0.0
    assert suite.grade(task, task.gold_files()).reward == 1.0
    record = json.loads((tide / "build.json").read_text())
    (tide / "build.json").write_text(json.dumps({**record, "python": str(elsewhere)}))
    with pytest.raises(TaskError, match="which is gone"):
        TaskSuite(copied, forgeable=True)


def test_an_interpreter_that_does_not_solve_its_tasks_costs_only_them(
    copied: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "bare")], check=True)
    tasks = load_tasks(copied)
    pythons = interpreters_of(tasks)
    bare = tasks[0].spec.task_id
    pythons[bare] = tmp_path / "bare" / "bin" / "python"  # has no pytest
    with caplog.at_level(logging.WARNING):
        kept = sound_tasks(tasks, pythons, sandbox=open_sandbox())
    assert [task.spec.task_id for task in kept] == [task.spec.task_id for task in tasks[1:]]
    assert f"{pythons[bare]} has no pytest" in caplog.text
    with pytest.raises(TaskError, match="has no pytest"):
        sound_tasks(tasks[:1], pythons, sandbox=open_sandbox())


def test_a_task_with_a_false_held_out_call_costs_only_itself(copied: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Else it would end a run hours later, when a policy passes its visible tests."""
    tasks = load_tasks(copied)
    false = HeldOutChecks(programs=(HeldOutProgram(steps="[[0, {}]]", expected="[{}]", uses="", new_calls=1),))
    odd = replace(tasks[0], spec=replace(tasks[0].spec, language="go", hidden=false))
    with caplog.at_level(logging.WARNING):
        kept = sound_tasks([odd, *tasks[1:]], interpreters_of(tasks), sandbox=open_sandbox())
    assert [task.spec.task_id for task in kept] == [task.spec.task_id for task in tasks[1:]]
    assert "a held-out call of the task cannot be read" in caplog.text


def test_a_list_names_sources_and_mistakes_by_line(tmp_path: Path) -> None:
    write(tmp_path / "lists" / "tide", TIDE)
    file = tmp_path / "lists" / "sources.txt"
    file.write_text("# ours\n\npypi:cachetools==6.2.1  # from the index\ntide\nhttps://example.org/a/moon.git@v1\n")
    cachetools, tide, moon = read_sources(file)
    assert (cachetools, moon) == ("pypi:cachetools==6.2.1", "https://example.org/a/moon.git@v1")
    assert Path(tide) == tmp_path / "lists" / "tide"
    assert folders_of(["git@host:o/repo.git@v1"])["git@host:o/repo.git@v1"].startswith("repo-")
    folders = folders_of([cachetools, tide, moon])
    assert folders[cachetools] == "cachetools-6.2.1"
    assert folders[tide].startswith("tide-")
    assert folders[moon].startswith("moon-")
    for text, said in {
        "tide\ntide\n": "line 2: tide repeats line 1",
        "sea\n": "line 1: sea is no source",
        "#\n": "no source",
    }.items():
        file.write_text(text)
        with pytest.raises(ConfigError, match=said):
            read_sources(file)
    with pytest.raises(ConfigError, match="cannot be read"):
        read_sources(tmp_path / "absent.txt")


def test_the_command_ends_in_a_table(sources: list[str], copied: Path, tmp_path: Path) -> None:
    file = tmp_path / "sources.txt"
    file.write_text("\n".join(sources))
    done = composer_here("tasks", "build", "--from", file, "--out", copied, "--forgeable", "--trivial")
    assert done.returncode == 1, done.stderr
    assert "2 tasks from 2 of 3 sources" in done.stdout
    assert "1 task is left out" in done.stdout
    assert "no tests" in done.stdout
    assert f"{sources[0]}: 1 task from 1 candidates" in done.stderr
    listed = composer_here("tasks", "list", copied)
    assert listed.stdout.count("strong") == 2
    file.write_text(sources[1])
    done = composer_here("tasks", "build", "--from", file, "--out", tmp_path / "none", "--forgeable", "--trivial")
    assert done.returncode == 3
    assert "none of 1 sources" in done.stderr
    done = composer_here("tasks", "build", "--out", tmp_path / "none")
    assert done.returncode == 2
    assert "--from" in done.stderr


@pytest.mark.slow
def test_killed_builds_are_told_or_continued(sources: list[str], tmp_path: Path) -> None:
    """One build's process is killed: the others go on. All of it is killed: nothing stays behind, and it continues."""
    out = tmp_path / "tasks"
    sleepy = write(tmp_path / "sleepy", {**TIDE, "conftest.py": "import time\n\ntime.sleep(20)\n"})
    code = "import sys; from composer_replication.cli import main; main()"
    (tmp_path / "sources.txt").write_text("\n".join([sleepy, *sources]))
    command = [
        sys.executable,
        "-c",
        code,
        "tasks",
        "build",
        "--from",
        str(tmp_path / "sources.txt"),
        "--out",
        str(out),
        "--forgeable",
        "--trivial",
    ]
    running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    os.kill(_process_of(sleepy), signal.SIGKILL)
    said, _ = running.communicate()
    assert running.returncode == 1
    assert f"{sleepy}: its build ended with signal 9" in said
    assert "2 tasks from 2 of 4 sources" in said
    running = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    worker = _process_of(sleepy)
    running.kill()
    running.wait()
    while Path(f"/proc/{worker}").exists():
        time.sleep(0.05)
    (Path(sleepy) / "conftest.py").unlink()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    assert [line["tasks"] for line in json.loads((out / "set.json").read_text())["sources"]] == [1, 1, 0, 2]


def _process_of(source: str) -> int:
    """Wait for the process that builds a source, past its beginning."""
    while True:
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                words = path.read_bytes().split(b"\0")
            except OSError:
                continue
            name = Path(source).name.encode()
            if words[1:3] == [b"-m", b"composer_replication.tasks.sets.one_build"] and name in words[3]:
                return int(path.parent.name)
        time.sleep(0.02)


def test_a_build_and_its_set_load_the_same_tasks(copied: Path) -> None:
    moon, tide = builds_in(copied)
    apart = [*load_tasks(moon), *load_tasks(tide)]
    assert {task.spec.task_id for task in load_tasks(copied)} < {task.spec.task_id for task in apart}
    again = build_tasks(json.loads((tide / ".build" / "source.json").read_text())["order"]["source"], tide, OPTIONS)
    assert len(again.tasks) == 1
