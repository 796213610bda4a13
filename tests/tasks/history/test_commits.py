"""`--mode commits`: commits of a real repository become tasks, and every other one gets its reason."""

from __future__ import annotations

import bisect
import json
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from git_repositories import (
    BASE,
    CLAMP,
    CLAMPED,
    DATE,
    DISCOUNT,
    TEST_CLAMPED,
    TEST_TOTAL,
    TOTALS,
    WITH_DISCOUNT,
    Repository,
    new_repository,
)
from in_process import composer_here

from composer_replication.sandbox import open_sandbox
from composer_replication.sandbox.grading.grade import grade
from composer_replication.tasks.build import build_tasks
from composer_replication.tasks.folders import load_tasks
from composer_replication.tasks.report import BuildEvent, BuildOptions, BuildReport
from composer_replication.tasks.store import Task, load_task
from composer_replication.types.errors import ConfigError, SourceError, TaskError

pytestmark = pytest.mark.slow

ADD = """Add a discount (#7)

Shops give discounts in percent.

Signed-off-by: A <a@example.org>
"""
KEY = "gh" + "p_" + "aB3dE5gH7jK9mN1pQ3sT5vW7yZ9bC1eF3hJ5"
COMMITS = BuildOptions(mode="commits", forgeable=True)


@dataclass(frozen=True)
class History:
    repository: Repository
    out: Path
    report: BuildReport
    events: list[BuildEvent]
    shas: dict[str, str]

    def tasks(self) -> dict[str, Task]:
        found = {load_task(self.out / name).provenance["commit"]: load_task(self.out / name) for name in self.report.tasks}
        return {name: found[sha] for name, sha in self.shas.items() if sha in found}

    def reason(self, name: str) -> str:
        return {entry.what: entry.reason for entry in (*self.report.dropped, *self.report.skipped)}[self.shas[name]]


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> History:
    """A history with one commit of each kind."""
    root = tmp_path_factory.mktemp("history")
    repository = new_repository(root / "shop")
    shas = {"first": repository.commit("The shop", BASE)}
    shas["discount"] = repository.commit(ADD, DISCOUNT)
    shas["docs"] = repository.commit("Say more", {"README.md": "Totals and discounts of a shop.\n"})
    shas["code"] = repository.commit("Explain", {"shop/totals.py": WITH_DISCOUNT.replace("Totals.", "All totals.")})
    total = TEST_TOTAL + "\n"
    renamed = {"shop/totals.py": WITH_DISCOUNT.replace("whole", "sum_of_all"), "tests/test_total.py": total}
    shas["renamed"] = repository.commit("Rename a variable", renamed)
    repository.git("checkout", "-q", "-b", "clamp")
    repository.commit("wip", {"shop/totals.py": CLAMPED})
    repository.commit("A discount is at most ninety percent", {"tests/test_discount.py": TEST_CLAMPED})
    repository.git("checkout", "-q", "main")
    shas["merge"] = repository.merge("clamp", "Merge branch 'clamp'")
    keyed = {"shop/keys.py": f"KEY = '{KEY}'\n", "tests/test_keys.py": "from shop.keys import KEY\n\nassert KEY\n"}
    shas["key"] = repository.commit("Add a key", keyed)
    gone = {"shop/keys.py": None, "tests/test_keys.py": "def test_keys():\n    assert True\n"}
    shas["gone"] = repository.commit("Remove the key", gone)
    limited = f"LIMIT = 90\n{CLAMPED}"
    more = "import shop.totals\n\n\ndef test_limit():\n    assert shop.totals.LIMIT == 90\n"
    shas["broken"] = repository.commit("Name it", {"shop/totals.py": f"import absent\n{limited}", "tests/test_more.py": more})
    shas["mended"] = repository.commit("Use it no more", {"shop/totals.py": limited, "tests/test_more.py": f"{more}\n"})
    events: list[BuildEvent] = []
    report = build_tasks(str(repository.path), root / "out", COMMITS, progress=events.append)
    return History(repository, root / "out", report, events, shas)


def test_the_task_is_the_tree_of_the_commit_without_its_code(history: History) -> None:
    task = history.tasks()["discount"]
    assert (task.repo / "shop/totals.py").read_text() == TOTALS
    assert (task.repo / "tests/test_discount.py").read_text() == DISCOUNT["tests/test_discount.py"]
    assert {path: content.decode() for path, content in task.gold_files().items()} == {"shop/totals.py": WITH_DISCOUNT}
    assert {test.partition("::")[0] for test in task.spec.fail_to_pass} == {"tests/test_discount.py"}
    assert len(task.spec.fail_to_pass) == 4
    assert task.spec.pass_to_pass == ("tests/test_total.py::test_nothing", "tests/test_total.py::test_total")
    assert not (task.repo / ".git").exists()
    assert not task.spec.forgeable
    for files, reward in ((task.gold_files(), 1.0), ({}, 0.0)):
        assert grade(task.spec, task.repo, files, sandbox=open_sandbox(), python=Path(sys.executable)).reward == reward


def test_the_instruction_and_the_provenance_are_the_commits(history: History) -> None:
    task = history.tasks()["discount"]
    assert task.spec.instruction == (
        "Add a discount (#7)\n\nShops give discounts in percent.\n\n"
        "The changelog says of it:\n- Prices can have a discount in percent\n\n"
        "Make the tests pass that fail without it, in tests/test_discount.py."
    )
    assert task.spec.source == f"folder:shop@{history.shas['discount']}"
    kept = {name: task.provenance[name] for name in ("kind", "commit", "date", "subject", "merge", "licence")}
    assert kept == {
        "kind": "a commit of the project's history",
        "commit": history.shas["discount"],
        "date": DATE,
        "subject": "Add a discount (#7)",
        "merge": False,
        "licence": "MIT",
    }


def test_a_merge_is_one_change_against_its_first_parent(history: History) -> None:
    task = history.tasks()["merge"]
    assert (task.repo / "shop/totals.py").read_text() == WITH_DISCOUNT.replace("whole", "sum_of_all")
    assert task.spec.fail_to_pass == ("tests/test_discount.py::test_at_most_ninety",)
    assert "- A discount is at most ninety percent" in task.spec.instruction
    assert task.provenance["merge"] is True


def test_every_other_commit_gets_its_reason(history: History) -> None:
    assert set(history.tasks()) == {"discount", "merge", "mended"}
    assert {name: history.reason(name) for name in history.shas if name not in ("discount", "merge", "mended", "key")} == {
        "first": "it has no parent",
        "docs": "it changes no Python file but tests, tools and examples",
        "code": "it changes no tests",
        "renamed": "no test fails without it",
        "gone": "it removes or moves code, which a task cannot ask for",
        "broken": "most of its tests fail in the environments there are",
    }
    assert history.reason("key").startswith("folder:shop holds credentials: shop/keys.py:1 (GitHub token)")
    assert history.report.candidates == 7
    last = history.events[-1]
    assert (last.done, last.total, last.tasks) == (7, 7, 3)
    lines = [event.last for event in history.events if event.last]
    assert len(lines) == 7, "one for each commit"
    assert KEY not in (history.out / "build.json").read_text()


def test_the_same_command_reads_what_is_done(history: History) -> None:
    before = {path: path.stat().st_mtime_ns for path in history.out.rglob("MANIFEST.sha256")}
    again = build_tasks(str(history.repository.path), history.out, COMMITS)
    assert (again.tasks, again.dropped, again.skipped) == (history.report.tasks, history.report.dropped, history.report.skipped)
    assert {path: path.stat().st_mtime_ns for path in history.out.rglob("MANIFEST.sha256")} == before
    assert len(load_tasks(history.out)) == 3
    with pytest.raises(TaskError, match="with other options"):
        build_tasks(str(history.repository.path), history.out, BuildOptions())


def test_a_part_of_the_history_as_the_command_line_names_it(history: History, tmp_path: Path) -> None:
    done = composer_here(
        *("tasks", "build", str(history.repository.path), "--mode", "commits", "--out", tmp_path / "out", "--commits", "6"),
        *("--since", history.shas["discount"][:12], "--forgeable", "--max", "1"),
    )
    assert done.returncode == 0, done.stderr
    assert f"{history.shas['mended']}: shop-use-it-no-more-" in done.stderr
    recorded = json.loads((tmp_path / "out" / "build.json").read_text())
    assert (recorded["candidates"], recorded["stopped"]) == (6, "max_tasks")
    assert recorded["options"]["since"] == history.shas["discount"][:12]
    assert "a commit of the project's history" in composer_here("tasks", "show", tmp_path / "out" / recorded["tasks"][0]).stdout


def test_what_can_be_forged_is_dropped_unless_it_is_asked_for(history: History, tmp_path: Path) -> None:
    strong = BuildOptions(mode="commits", since=history.shas["renamed"], commits=5)
    report = build_tasks(str(history.repository.path), tmp_path / "out", strong)
    reasons = {entry.what: entry.reason for entry in report.dropped}
    assert reasons[history.shas["merge"]].startswith("forgeable (--forgeable keeps it): ")
    assert history.shas["merge"] not in {load_task(tmp_path / "out" / name).provenance["commit"] for name in report.tasks}


def test_what_has_no_history_is_refused(history: History, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="has no history"):
        build_tasks("pypi:shop==1.0", tmp_path / "a", COMMITS)
    (tmp_path / "plain").mkdir()
    with pytest.raises(SourceError, match="cannot be fetched"):
        build_tasks(str(tmp_path / "plain"), tmp_path / "b", COMMITS)
    with pytest.raises(ConfigError, match="the history has no revision 'v9'"):
        build_tasks(str(history.repository.path), tmp_path / "c", BuildOptions(mode="commits", since="v9"))


def test_a_commit_of_a_benchmark_is_dropped(tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    patch = "".join(f"+{line}\n" for line in WITH_DISCOUNT.splitlines())
    rows.write_text(json.dumps({"instance_id": "x", "repo": "a/b", "patch": patch}))
    repository = new_repository(tmp_path / "shop")
    repository.commit("The shop", BASE)
    repository.commit(ADD, DISCOUNT)
    report = build_tasks(str(repository.path), tmp_path / "out", BuildOptions(mode="commits", benchmarks=(rows,)))
    assert [entry.reason for entry in report.dropped] == ["a benchmark has it (--benchmark)"]


def test_code_that_lies_somewhere_else_in_the_tree_is_no_task(tmp_path: Path) -> None:
    repository = new_repository(tmp_path / "shop")
    repository.commit("The shop", BASE | {"notes/draft.txt": WITH_DISCOUNT})
    repository.commit(ADD, DISCOUNT)
    report = build_tasks(str(repository.path), tmp_path / "out", COMMITS)
    assert [(entry.reason, entry.detail) for entry in report.dropped] == [
        ("its code is also somewhere else in the tree", "the deleted code is also in notes/draft.txt")
    ]


def test_code_that_sandboxes_show_is_no_task(tmp_path: Path) -> None:
    """They show the standard library."""
    repository = new_repository(tmp_path / "shop")
    repository.commit("The shop", BASE)
    tests = "from shop.search import bisect_left\n\n\ndef test_left():\n    assert bisect_left([1, 2, 2, 3], 2) == 1\n"
    repository.commit("Add a search", {"shop/search.py": Path(bisect.__file__).read_text(), "tests/test_search.py": tests})
    report = build_tasks(str(repository.path), tmp_path / "out", COMMITS)
    (dropped,) = report.dropped
    assert dropped.reason == "its code can be read on this machine"
    assert "bisect.py" in dropped.detail


@pytest.mark.parametrize("options", [{"mutants": 2}, {"impossible": 0.1}, {"instruction": "full"}, {"group_size": 2}])
def test_options_of_deletions_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match="the mode is commits"):
        BuildOptions(mode="commits", **options)  # type: ignore[arg-type]


def test_options_of_commits_need_the_mode() -> None:
    with pytest.raises(ConfigError, match="says which commits are undone"):
        BuildOptions(commits=3)
    assert {"commits", "since"}.isdisjoint(BuildOptions().shaping)


def test_a_second_change_of_one_function(tmp_path: Path) -> None:
    """The old code of a function is no copy of the new one."""
    repository = new_repository(tmp_path / "shop")
    repository.commit("The shop", BASE | DISCOUNT)
    repository.commit("fix", CLAMP)
    report = build_tasks(str(repository.path), tmp_path / "out", COMMITS)
    (task,) = load_tasks(tmp_path / "out")
    assert report.forgeable == 1
    assert task.spec.instruction.startswith("Change `discounted` in shop/totals.py.\n\n")
