"""The environment of a commit: that of newer ones while its tests pass there, and never more than a few others."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from composer_replication.languages.layout import RepositoryLayout
from composer_replication.sandbox import open_sandbox
from composer_replication.sandbox.grading.pytest_run import CodeRunner
from composer_replication.tasks.history import environments
from composer_replication.tasks.history.environments import CommitEnvironments
from composer_replication.tasks.interpreters import interpreters_of
from composer_replication.tasks.proofs.baseline import Baseline, UnhealthyError
from composer_replication.tasks.proofs.fitting import Fitted
from composer_replication.tasks.proofs.proof import NoTaskError
from composer_replication.tasks.report import BuildOptions
from composer_replication.tasks.sources.layout import guess_layout
from composer_replication.tasks.sources.source import PristineTree
from composer_replication.tasks.store import write_task
from composer_replication.types import TaskSpec
from composer_replication.types.errors import SourceError, TaskError

HEALTHY = Baseline(passing=frozenset({"tests/test_shop.py::test"}), flaky=(), failing=(), skipped=0, coverage={})


class World:
    """A build's folder, and what can be installed: a commit's tests pass where the environment has what it requires."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.out, self.root = root / "out", root
        (self.out / ".build").mkdir(parents=True)
        self.holds: dict[Path, set[str]] = {self.out / ".venv" / "bin" / "python": {"new"}}
        self.cannot: set[str] = set()
        self.fitted: list[str] = []
        monkeypatch.setattr(environments, "measure_baseline", self._measure)
        monkeypatch.setattr(environments, "fit_environment", self._fit)
        monkeypatch.setattr(environments, "make_environment", self._make)
        monkeypatch.setattr(environments, "made_for", lambda folder: sorted(self.holds[folder / "bin" / "python"]))
        monkeypatch.setattr(environments, "refuse_copies", lambda *_, **__: None)

    def commit(self, requirement: str) -> PristineTree:
        tree = self.root / f"tree-{requirement}"
        (tree / "tests").mkdir(parents=True, exist_ok=True)
        (tree / "shop.py").write_text("")
        (tree / "tests" / "test_shop.py").write_text("")
        (tree / "pyproject.toml").write_text(f'[project]\nname = "shop"\ndependencies = ["{requirement}"]\n')
        return PristineTree(name="shop", label="folder:shop", digest=requirement, tree=tree)

    def open(self, *, install: bool = True) -> CommitEnvironments:
        newest = self.commit("new")
        runner = CodeRunner(sandbox=open_sandbox("unsafe-subprocess"), python=next(iter(self.holds)))
        options = BuildOptions(mode="commits", install=install)
        return CommitEnvironments(self.out, self.out / ".build", runner, options, newest, guess_layout(newest.tree))

    def python_of(self, opened: CommitEnvironments, number: int, requirement: str) -> str:
        project = self.commit(requirement)
        runner, _ = opened.measure(number, project, guess_layout(project.tree))
        return opened.name_of(runner.python)

    def _measure(self, runner: CodeRunner, tree: Path, **_: object) -> Baseline:
        if tree.name.removeprefix("tree-") not in self.holds[runner.python]:
            raise UnhealthyError("0 of the project's tests pass", fix="--install", lines=[])
        return HEALTHY

    def _fit(
        self,
        project: PristineTree,
        layout: RepositoryLayout,
        folder: Path,
        *,
        runner_of: Callable[[Path], CodeRunner],
        base: object,
    ) -> Fitted:
        self.fitted.append(project.digest)
        if project.digest in self.cannot:
            raise SourceError(f"{project.digest} cannot be installed", fix="--python")
        python = folder / "bin" / "python"
        self.holds[python] = {project.digest}
        return Fitted(runner=runner_of(python), baseline=HEALTHY, notes=())

    def _make(self, folder: Path, tree: Path, name: str, wanted: Iterable[str], **_: object) -> Path:
        self.holds[folder / "bin" / "python"] = set(wanted)
        return folder / "bin" / "python"


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    return World(tmp_path, monkeypatch)


def test_older_commits_take_the_environment_while_their_tests_pass(world: World) -> None:
    opened = world.open()
    commits = ["new", "new", "old", "old"]
    assert [world.python_of(opened, number, name) for number, name in enumerate(commits)] == [
        "",
        "",
        ".venvs/2/bin/python",
        ".venvs/2/bin/python",
    ]
    assert world.fitted == ["old"]


def test_a_build_that_goes_on_finds_the_same(world: World) -> None:
    """Also for commits that are asked about again, and for those that are newer than what was found."""
    opened = world.open()
    assert world.python_of(opened, 2, "old") == ".venvs/2/bin/python"
    world.holds = dict([next(iter(world.holds.items()))])
    again = world.open()
    assert world.python_of(again, 1, "new") == ""
    assert world.python_of(again, 2, "old") == ".venvs/2/bin/python"
    assert world.python_of(again, 3, "old") == ".venvs/2/bin/python"
    assert world.fitted == ["old"]


def test_what_cannot_be_found_is_not_looked_for_twice(world: World) -> None:
    world.cannot = {"old"}
    opened = world.open()
    for number in (1, 2):
        with pytest.raises(NoTaskError) as refused:
            world.python_of(opened, number, "old")
        assert (str(refused.value), refused.value.detail) == (
            "most of its tests fail in the environments there are",
            "old cannot be installed",
        )
    assert world.fitted == ["old"]
    assert world.python_of(opened, 3, "new") == ""


def test_only_a_few_environments_are_looked_for(world: World) -> None:
    opened = world.open()
    for number in range(4):
        assert world.python_of(opened, number, f"x{number}") == f".venvs/{number + 2}/bin/python"
    with pytest.raises(NoTaskError, match="most of its tests fail"):
        world.python_of(opened, 4, "x4")
    assert len(world.fitted) == 4


def test_without_install_there_is_one(world: World) -> None:
    with pytest.raises(NoTaskError, match="most of its tests fail"):
        world.python_of(world.open(install=False), 1, "old")
    assert world.fitted == []


def test_a_record_of_another_release_is_named(world: World) -> None:
    (world.out / ".build" / "environments.json").write_text('[{"number": 1}]')
    with pytest.raises(TaskError, match="was not written by this release"):
        world.open()


def test_a_task_runs_with_its_own_interpreter(tmp_path: Path) -> None:
    """Also in a folder that was moved; one whose interpreter is gone is left out."""
    (tmp_path / "pristine").mkdir()
    facts = {"source": "s", "source_digest": "d", "instruction": "i", "deleted": (), "pass_to_pass": (), "editable": ()}
    specs = [TaskSpec(task_id=name, fail_to_pass=("test_t.py::test",), **facts) for name in "abc"]
    tasks = [write_task(spec, tmp_path / "out" / spec.task_id, pristine=tmp_path / "pristine", deleted={}) for spec in specs]
    for place in (".venv", ".venvs/2"):
        (tmp_path / "out" / place / "bin").mkdir(parents=True)
        (tmp_path / "out" / place / "bin" / "python").touch()
    record = {"python": "/gone/python", "pythons": {"b": ".venvs/2/bin/python", "c": ".venvs/3/bin/python"}}
    (tmp_path / "out" / "build.json").write_text(json.dumps(record))
    assert interpreters_of(tasks) == {
        "a": tmp_path / "out" / ".venv" / "bin" / "python",
        "b": tmp_path / "out" / ".venvs" / "2" / "bin" / "python",
    }
