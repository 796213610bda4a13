"""Rows of SWE-Gym, SWE-rebench and SWE-smith are told apart by their columns, and each has an environment."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from git_repositories import BASE, DISCOUNT, TOTALS, WITH_DISCOUNT, Repository, new_repository
from in_process import composer_here

from composer_replication.languages.functions import Skipped
from composer_replication.sandbox import open_sandbox
from composer_replication.tasks.exchange import row_environments
from composer_replication.tasks.exchange.row_environments import RowEnvironments
from composer_replication.tasks.exchange.swebench_import import build_instances
from composer_replication.tasks.exchange.swebench_rows import Instance, RowInstall, read_instances
from composer_replication.tasks.interpreters import interpreters_of
from composer_replication.tasks.proofs.baseline import Baseline
from composer_replication.tasks.proofs.fitting import Fitted
from composer_replication.tasks.report import BuildOptions
from composer_replication.tasks.sources.source import PristineTree
from composer_replication.tasks.store import Task
from composer_replication.types.errors import SourceError

SOLVED = BASE | DISCOUNT
BUG = WITH_DISCOUNT.replace("price - taken", "price + taken")
FAILING = [f"tests/test_discount.py::test_{name}" for name in ("discount", "small_discount")]
PASSING = ["tests/test_total.py::test_total", "tests/test_discount.py::test_negative"]


@dataclass
class Rows:
    """A solved repository, and a row of each kind over it."""

    repository: Repository
    commit: str

    def patch(self, files: dict[str, str]) -> str:
        for name, text in files.items():
            (self.repository.path / name).write_text(text)
        diff = self.repository.git("diff") + "\n"
        self.repository.git("reset", "-q", "--hard")
        return diff

    def smith(self, **changes: object) -> dict[str, Any]:
        return {
            "instance_id": "shop__shop.1.func_pm_op_swap__x1",
            "patch": self.patch({"shop/totals.py": BUG}),
            "FAIL_TO_PASS": FAILING,
            "PASS_TO_PASS": PASSING,
            "image_name": f"swebench/swesmith.x86_64.shop_1776_shop.{self.commit[:8]}",
            "repo": f"swesmith/shop__shop.{self.commit[:8]}",
            "problem_statement": "",
        } | changes

    def rebench(self, **changes: object) -> dict[str, Any]:
        return {
            "instance_id": "shop__shop-1",
            "repo": "shop/shop",
            "base_commit": self.repository.git("rev-parse", "HEAD~1"),
            "patch": self.repository.git("diff", "HEAD~1", "HEAD", "--", "shop") + "\n",
            "test_patch": self.repository.git("diff", "HEAD~1", "HEAD", "--", "tests") + "\n",
            "FAIL_TO_PASS": FAILING,
            "PASS_TO_PASS": PASSING[:1],
            "problem_statement": "Prices need a discount.",
            "install_config": {"python": "", "install": "pip install -e .", "pip_packages": ["pytest"], "test_cmd": "pytest"},
        } | changes


@pytest.fixture
def rows(tmp_path: Path) -> Rows:
    repository = new_repository(tmp_path / "shop")
    repository.commit("The shop", BASE)
    return Rows(repository, repository.commit("Add a discount", DISCOUNT))


def built(rows: Rows, out: Path, *asked: dict[str, Any], install: bool = False) -> tuple[list[Task], list[Skipped]]:
    file = out.with_name(f"{out.name}.jsonl")
    file.write_text("".join(f"{json.dumps(row)}\n" for row in asked))
    options = BuildOptions(install=install)
    return build_instances(file, out, checkout=str(rows.repository.path), options=options, progress=lambda event: None)


def read(tmp_path: Path, row: dict[str, Any]) -> Instance | Skipped:
    (tmp_path / "rows.jsonl").write_text(json.dumps(row))
    (found,) = read_instances(tmp_path / "rows.jsonl")
    return found


@pytest.mark.slow
def test_a_row_of_swe_smith_is_mended_by_the_reverse_of_its_patch(rows: Rows, tmp_path: Path) -> None:
    ([task], dropped) = built(rows, tmp_path / "out", rows.smith())
    assert dropped == []
    assert (task.repo / "shop/totals.py").read_text() == BUG
    assert {path: content.decode() for path, content in task.gold_files().items()} == {"shop/totals.py": WITH_DISCOUNT}
    assert task.spec.fail_to_pass == tuple(sorted(FAILING))
    assert task.spec.source == f"swesmith/shop__shop.{rows.commit[:8]}@{rows.commit[:8]}"
    assert task.spec.instruction == f"Tests of the project fail, such as {', '.join(FAILING)}. Find out why, and mend the code."
    assert task.provenance["kind"] == "reversion of a patch that breaks code"


@pytest.mark.slow
def test_a_patch_that_breaks_by_adding_or_not_at_all_is_dropped(rows: Rows, tmp_path: Path) -> None:
    (rows.repository.path / "shop/more.py").write_text("X = 1\n")
    rows.repository.git("add", "-N", "shop/more.py")
    adds = rows.patch({"shop/totals.py": BUG})
    (rows.repository.path / "shop/more.py").unlink(missing_ok=True)
    _, dropped = built(
        rows, tmp_path / "out", rows.smith(instance_id="a", patch=adds), rows.smith(instance_id="b", FAIL_TO_PASS=PASSING)
    )
    assert [entry.reason for entry in dropped] == [
        "the patch of a adds shop/more.py",
        f"instance b does not hold here: {PASSING[1]} passes without its patch",
    ]


def test_kinds_are_told_by_their_columns(rows: Rows, tmp_path: Path) -> None:
    """SWE-Gym's columns are SWE-bench's; lists of tests come as lists or as JSON."""
    row = rows.rebench()
    gym = {name: value for name, value in row.items() if name != "install_config"} | {"hints_text": "", "version": "1"}
    found = read(tmp_path, gym)
    assert isinstance(found, Instance)
    assert (found.breaks, found.install) == (False, None)
    found = read(tmp_path, row | {"install_config": json.dumps(row["install_config"]), "FAIL_TO_PASS": json.dumps(FAILING)})
    assert isinstance(found, Instance)
    assert found.install == RowInstall(python="", requirements=("pytest",), files=(), not_run=())
    assert found.source("") == f"https://github.com/shop/shop.git@{row['base_commit']}"
    found = read(tmp_path, rows.smith(problem_statement=None))
    assert isinstance(found, Instance)
    assert (found.breaks, found.base_commit, found.problem_statement) == (True, rows.commit[:8], "")
    assert found.source("") == f"https://github.com/swesmith/shop__shop.{rows.commit[:8]}.git", "a copy of that commit alone"
    assert found.source("https://example.org/shop.git") == f"https://example.org/shop.git@{rows.commit[:8]}"
    missing = read(tmp_path, rows.smith(repo="swesmith/shop"))
    assert isinstance(missing, Skipped)
    assert "does not end in the commit that it is a copy of" in missing.reason


def test_what_pip_can_make_of_an_install_config(rows: Rows, tmp_path: Path) -> None:
    config = {
        "env_vars": None,
        "env_yml_path": None,
        "install": "pip install -e .[dev] && pip install -r req/test.txt 'attrs>=20' ; python setup.py build_ext",
        "log_parser": "parse_log_pytest",
        "no_use_env": None,
        "packages": "requirements.txt",
        "pip_packages": ["pytest==7.4", "six"],
        "pre_install": ["apt-get update && apt-get install -y gcc"],
        "python": "3.9",
        "reqs_path": ["req/base.txt", "/etc/passwd", "../up.txt"],
        "test_cmd": "pytest --no-header -rA",
    }
    found = read(tmp_path, rows.rebench(install_config=config))
    assert isinstance(found, Instance)
    assert found.install == RowInstall(
        python="3.9",
        requirements=("pytest==7.4", "six", "attrs>=20"),
        files=("req/base.txt", "req/test.txt"),
        not_run=("apt-get update && apt-get install -y gcc", "python setup.py build_ext"),
    )
    left = found.install.left()
    assert left.startswith(
        "its install_config also asks for `apt-get update && apt-get install -y gcc`, `python setup.py build_ext`"
    )


@dataclass
class Index:
    """Environments that are this interpreter, and what was asked for in each."""

    made: list[tuple[str, list[str]]] = field(default_factory=list)
    searched: list[str] = field(default_factory=list)
    broken: set[str] = field(default_factory=set)

    def make(self, folder: Path, tree: Path, name: str, wanted: Iterable[str], **_: object) -> Path:
        self.made.append((folder.name, sorted(wanted)))
        if found := self.broken & set(wanted):
            raise SourceError(f"No matching distribution found for {min(found)}", fix="--python")
        return Path(sys.executable)

    def fit(self, project: PristineTree, layout: object, folder: Path, *, runner_of: Any, base: Path) -> Fitted:
        self.searched.append(folder.name)
        none = Baseline(passing=frozenset(), flaky=(), failing=(), skipped=0, coverage={})
        return Fitted(runner=runner_of(Path(sys.executable)), baseline=none, notes=())


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch) -> Index:
    found = Index()
    monkeypatch.setattr(row_environments, "make_environment", found.make)
    monkeypatch.setattr(row_environments, "fit_environment", found.fit)
    monkeypatch.setattr(row_environments, "made_for", lambda folder: ["coverage", "pytest"])
    monkeypatch.setattr(row_environments, "refuse_copies", lambda *_, **__: None)
    return found


@pytest.mark.slow
def test_rows_that_ask_for_the_same_share_an_environment(rows: Rows, tmp_path: Path, index: Index) -> None:
    other = {"python": "", "install": "pip install -e .", "pip_packages": ["pytest==7.4"], "pre_install": ["apt-get install gcc"]}
    asked = [
        rows.rebench(),
        rows.rebench(instance_id="b"),
        rows.rebench(instance_id="c", install_config=other),
        rows.rebench(instance_id="d", install_config=other | {"pip_packages": ["absent"]}),
        rows.rebench(instance_id="e", install_config=other | {"python": "2.6"}),
    ]
    tasks, dropped = built(rows, tmp_path / "out", *asked, install=True)
    assert [task.spec.task_id for task in tasks] == ["shop__shop-1", "b", "c", "d"]
    assert [lines for _, lines in index.made] == [
        ["coverage", "pytest"],
        ["coverage", "pytest"],
        ["coverage", "pytest==7.4"],
        ["absent", "coverage", "pytest"],
    ]
    assert len({name for name, _ in index.made}) == 3
    assert [entry.reason for entry in dropped] == [
        "its install_config asks for Python 2.6, and there is no python2.6 on the PATH; "
        "its install_config also asks for `apt-get install gcc`, which is not run here"
    ]
    record = json.loads((tmp_path / "out" / "build.json").read_text())
    assert record["pythons"] == dict.fromkeys(record["tasks"], sys.executable)
    assert interpreters_of(tasks) == dict.fromkeys(record["tasks"], Path(sys.executable))


def test_what_the_tests_found_is_kept_and_what_fails_is_not_tried_twice(rows: Rows, tmp_path: Path, index: Index) -> None:
    (tmp_path / "out" / ".build").mkdir(parents=True)
    project = PristineTree(name="shop", label="folder:shop", digest="0", tree=rows.repository.path)
    sandbox, options = open_sandbox("unsafe-subprocess"), BuildOptions(install=True)
    opened = RowEnvironments(tmp_path / "out", sandbox, options)
    opened.python_for(project, None)
    opened.python_for(project, None)
    RowEnvironments(tmp_path / "out", sandbox, options).python_for(project, None)
    assert len(index.searched) == 1
    assert index.made == [(index.searched[0], ["coverage", "pytest"])] * 2
    index.made.clear()
    index.broken = {"absent"}
    asked = RowInstall(python="", requirements=("absent",), files=(), not_run=())
    for _ in range(2):
        with pytest.raises(SourceError, match="found for absent"):
            opened.python_for(project, asked)
    assert len(index.made) == 1


@pytest.mark.slow
def test_the_command_takes_all_of_them(rows: Rows, tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in (rows.smith(), rows.rebench())))
    words = ("tasks", "revert", tmp_path / "rows.jsonl", "--checkout", rows.repository.path, "--out", tmp_path / "out")
    done = composer_here(*words)
    assert done.returncode == 0, done.stderr
    assert "2 tasks from 2 instances" in done.stdout
    assert "shop__shop-1: a task" in done.stderr
    assert (tmp_path / "out" / "shop__shop-1" / "repo" / "shop" / "totals.py").read_text() == TOTALS
