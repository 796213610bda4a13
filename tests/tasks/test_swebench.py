"""SWE-bench-style rows: a gold patch is reverted, its tests are in place, and only what real runs confirm becomes a task."""

from __future__ import annotations

import json
import random
import string
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from composer_replication.languages.functions import Skipped
from composer_replication.sandbox import open_sandbox
from composer_replication.sandbox.grading.grade import grade
from composer_replication.tasks.exchange.swebench_import import build_instances
from composer_replication.tasks.exchange.swebench_rows import read_instances
from composer_replication.tasks.report import BuildEvent, BuildOptions
from composer_replication.tasks.store import Task, load_task
from composer_replication.types.errors import SourceError

pytestmark = pytest.mark.slow

WriteProject = Callable[[Mapping[str, str]], Path]

BASE = {
    "shop/__init__.py": "",
    "shop/prices.py": "def gross(net):\n    return net\n",
    "tests/test_prices.py": "from shop.prices import gross\n\ndef test_zero():\n    assert gross(0) == 0\n",
    "README.md": "Prices.\n",
}
SOLVED = {
    "shop/prices.py": "from shop.taxes import RATE\n\n\ndef gross(net):\n    return net * RATE\n",
    "shop/taxes.py": "RATE = 2\n",
}
TESTS = {
    "tests/test_prices.py": BASE["tests/test_prices.py"] + "\ndef test_tax():\n    assert gross(1) == 2\n",
    "tests/test_taxes.py": "def test_rate():\n    from shop.taxes import RATE\n    assert RATE == 2\n",
}
LETTERS = random.Random(0).sample(string.ascii_letters + string.digits, 62)
TAX, RATE, ZERO = "tests/test_prices.py::test_tax", "tests/test_taxes.py::test_rate", "tests/test_prices.py::test_zero"


@dataclass(frozen=True)
class Repository:
    """A real git repository with the base commit, and patches made by git."""

    path: Path
    commit: str

    def patch(self, files: Mapping[str, str | None]) -> str:
        for name, text in files.items():
            if text is None:
                (self.path / name).unlink()
            else:
                (self.path / name).write_text(text)
        self.git("add", "-A")
        diff = self.git("diff", "--cached")
        self.git("reset", "-q", "--hard")
        return diff

    def git(self, *arguments: str) -> str:
        identity = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
        return subprocess.run(["git", *identity, *arguments], cwd=self.path, check=True, capture_output=True, text=True).stdout

    def row(self, **changes: object) -> dict[str, Any]:
        return {
            "instance_id": "shop__shop-1",
            "repo": "shop/shop",
            "base_commit": self.commit,
            "patch": self.patch(SOLVED),
            "test_patch": self.patch(TESTS),
            "FAIL_TO_PASS": json.dumps([TAX, RATE]),
            "PASS_TO_PASS": [ZERO],
            "problem_statement": "Prices have no tax.\n",
        } | changes


@pytest.fixture
def repository(write_project: WriteProject) -> Repository:
    path = write_project(BASE)
    found = Repository(path, "")
    found.git("init", "-q")
    found.git("add", "-A")
    found.git("commit", "-q", "-m", "base")
    return Repository(path, found.git("rev-parse", "HEAD").strip())


def ignore(_event: BuildEvent) -> None:
    """Progress that nobody looks at."""


def built(repository: Repository, out: Path, *rows: dict[str, Any], only: str = "") -> tuple[list[Task], list[Skipped]]:
    file = out.with_name(f"{out.name}.jsonl")
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return build_instances(file, out, only=only, checkout=str(repository.path), options=BuildOptions(), progress=ignore)


def test_a_patch_with_a_credential_is_refused(repository: Repository, tmp_path: Path) -> None:
    key = "gh" + "p_" + "".join(LETTERS[:36])
    guess = f"# note\nTOKEN = '{key[4:]}'\n"
    rows = [
        repository.row(instance_id="certain", patch=repository.patch({**SOLVED, "shop/taxes.py": f"RATE = 2  # {key}\n"})),
        repository.row(instance_id="guess", patch=repository.patch({**SOLVED, "shop/taxes.py": f"RATE = 2\n{guess}"})),
        repository.row(instance_id="tests", test_patch=repository.patch({**TESTS, "tests/keys.py": guess})),
    ]
    tasks, dropped = built(repository, tmp_path / "out", *rows)
    assert [task.spec.task_id for task in tasks] == ["tests"]
    assert [entry.reason for entry in dropped] == [
        "the patch of certain holds a credential: shop/taxes.py:1 (GitHub token)",
        "the patch of guess holds a credential: shop/taxes.py:3 (secret in an assignment)",
    ]
    file = tmp_path / "out.jsonl"
    options = BuildOptions(allow_credentials=("shop/*",))
    tasks, dropped = build_instances(
        file, tmp_path / "allowed", only="certain", checkout=str(repository.path), options=options, progress=ignore
    )
    assert (len(tasks), dropped) == (1, [])


def test_the_task_is_the_solved_tree_without_the_patch(repository: Repository, tmp_path: Path) -> None:
    ([task], dropped) = built(repository, tmp_path / "out", repository.row())
    assert dropped == []
    assert task.root.name == "shop__shop-1"
    assert (task.repo / "shop/prices.py").read_text() == BASE["shop/prices.py"]
    assert not (task.repo / "shop/taxes.py").exists()
    assert (task.repo / "tests/test_prices.py").read_text() == TESTS["tests/test_prices.py"]
    assert {path: content.decode() for path, content in task.gold_files().items()} == SOLVED
    assert "--- /dev/null\n+++ b/shop/taxes.py" in task.gold_patch()
    assert task.spec.fail_to_pass == (TAX, RATE)
    assert task.spec.pass_to_pass == (ZERO,)
    assert task.spec.instruction == "Prices have no tax."
    assert task.spec.source == f"shop/shop@{repository.commit}"
    assert task.provenance["kind"] == "reversion of a gold patch"
    assert not (task.repo / ".git").exists()
    assert {program.uses for program in task.spec.hidden.programs} == {"shop/prices.py::gross"}
    assert task.provenance["anti_tests"] == len(task.spec.hidden.anti_tests) == 2
    by_heart = {**task.gold_files(), "shop/prices.py": b"def gross(net):\n    return 2 if net else 0\n"}
    for files, reward in ((task.gold_files(), 1.0), ({}, 0.0), (by_heart, 0.0)):
        report = grade(task.spec, task.repo, files, sandbox=open_sandbox(), python=Path(sys.executable))
        assert report.reward == reward


def test_what_a_row_claims_is_confirmed_or_dropped(repository: Repository, tmp_path: Path) -> None:
    rows = [
        repository.row(),
        repository.row(instance_id="a", FAIL_TO_PASS=[ZERO]),
        repository.row(instance_id="b", PASS_TO_PASS=[ZERO, "tests/test_prices.py::test_absent"]),
        repository.row(instance_id="c", patch=repository.patch({"shop/prices.py": None})),
        repository.row(instance_id="d", test_patch=repository.row()["test_patch"].replace("assert gross(0) == 0", "other")),
        repository.row(instance_id="e", patch=""),
        repository.row(instance_id="f", base_commit="0" * 40),
    ]
    tasks, dropped = built(repository, tmp_path / "out", *rows)
    assert [task.spec.task_id for task in tasks] == ["shop__shop-1", "b"]
    assert tasks[1].spec.pass_to_pass == (ZERO,)
    assert tasks[1].provenance["flaky_tests"] == 1
    reasons = {entry.what: entry.reason for entry in dropped}
    assert reasons["a"] == f"instance a does not hold here: {ZERO} passes without its patch"
    assert reasons["c"] == "the patch of c removes shop/prices.py"
    assert "the test patch of d does not apply" in reasons["d"]
    assert reasons["e"] == "the patch of e changes no file"
    assert "cannot be fetched" in reasons["f"]


def test_one_instance_by_its_id_and_none_twice(repository: Repository, tmp_path: Path) -> None:
    rows = [repository.row(), repository.row(instance_id="b")]
    ([task], _) = built(repository, tmp_path / "out", *rows, only="b")
    before = (task.root / "MANIFEST.sha256").stat().st_mtime_ns
    tasks, _ = built(repository, tmp_path / "out", *rows)
    assert len(tasks) == 2
    assert (load_task(tmp_path / "out" / "b").root / "MANIFEST.sha256").stat().st_mtime_ns == before
    with pytest.raises(SourceError, match="has no instance absent"):
        built(repository, tmp_path / "out", *rows, only="absent")


def test_licences_and_benchmarks_keep_rows_out(repository: Repository, tmp_path: Path) -> None:
    same = tmp_path / "same.jsonl"
    changed = "\n".join(f"+    line_{n} = total_{n} + rate_{n} * {n}" for n in range(9))
    same.write_text(json.dumps({"instance_id": "bench__1", "repo": "other/other", "patch": changed}) + "\n")
    ours = tmp_path / "ours.txt"
    ours.write_text("shop/shop\n")
    file = tmp_path / "rows.jsonl"
    body = "".join(f"    line_{n} = total_{n} + rate_{n} * {n}\n" for n in range(9))
    long = repository.patch({**SOLVED, "shop/more.py": f"def more():\n{body}"})
    file.write_text(json.dumps(repository.row(patch=long)) + "\n")
    reasons = {
        "licence": (BuildOptions(licences=("MIT",)), "is unknown, which is not among MIT"),
        "repository": (BuildOptions(benchmarks=(ours,)), "is a repository of a benchmark (ours.txt)"),
        "patch": (BuildOptions(benchmarks=(same,)), "the patch of shop__shop-1 is that of bench__1, of a benchmark"),
    }
    for name, (options, said) in reasons.items():
        tasks, dropped = build_instances(file, tmp_path / name, checkout=str(repository.path), options=options, progress=ignore)
        assert tasks == []
        assert said in dropped[0].reason
    (tasks, dropped) = build_instances(
        file, tmp_path / "out", checkout=str(repository.path), options=BuildOptions(licences=("unknown",)), progress=ignore
    )
    assert dropped == []
    assert tasks[0].provenance["licence"] == "unknown"


@pytest.mark.parametrize("name", ["..", ".", "/", "../../", "---"])
def test_an_id_that_is_no_name_touches_nothing(repository: Repository, tmp_path: Path, name: str) -> None:
    ([kept], _) = built(repository, tmp_path / "out", repository.row())
    tasks, dropped = built(repository, tmp_path / "out", repository.row(instance_id=name))
    assert (tasks, [entry.reason for entry in dropped]) == ([], [f"{name!r} is not a name for a task"])
    assert load_task(kept.root).spec == kept.spec


@pytest.mark.parametrize("line", ["{", "[]", '{"instance_id": "a"}'])
def test_a_row_that_is_no_instance_is_named(tmp_path: Path, line: str) -> None:
    (tmp_path / "rows.jsonl").write_text(f"\n{line}\n")
    (skipped,) = read_instances(tmp_path / "rows.jsonl")
    assert isinstance(skipped, Skipped)
    assert (skipped.what, skipped.reason.partition(" (")[0]) == ("line 2", "it is not an instance")
