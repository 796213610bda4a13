"""Tasks that are pushed as a dataset and pulled again: by the Hub's own client, from a server that speaks its protocol."""

from __future__ import annotations

import gzip
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from in_process import composer_here

from composer_replication.sandbox import open_sandbox
from composer_replication.sandbox.grading.grade import grade
from composer_replication.tasks.build import build_tasks
from composer_replication.tasks.exchange import archive as archives
from composer_replication.tasks.exchange.archive import unpack
from composer_replication.tasks.exchange.card import PackedBuild, card, index_lines
from composer_replication.tasks.exchange.dataset import install_requirements, read_dataset, write_dataset
from composer_replication.tasks.exchange.pins import Pins
from composer_replication.tasks.files import tree_files
from composer_replication.tasks.folders import load_tasks
from composer_replication.tasks.interpreters import interpreters_of
from composer_replication.tasks.report import BuildOptions
from composer_replication.tasks.store import Task
from composer_replication.types.errors import TaskError

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests_substrates" / "shared"))
from hub_server import TOKEN, HubServer

WriteProject = Callable[[Mapping[str, str]], Path]
PROJECT = {
    "tide.py": "def slack(x):\n    return x + 1\n\n\ndef ebb(x):\n    return -x\n",
    "tests/test_slack.py": "import tide\n\n\ndef test_slack():\n    assert tide.slack(1) == 2\n",
    "tests/test_ebb.py": "import tide\n\n\ndef test_ebb():\n    assert tide.ebb(1) == -1\n",
    "run.sh": "#!/bin/sh\n",
    "pyproject.toml": '[project]\nname = "tide"\nversion = "1"\nlicense = "MIT"\n',
}
NAME = "tester/tides"


@pytest.fixture(scope="module")
def folder(write_project: WriteProject, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A set of two builds."""
    root = tmp_path_factory.mktemp("shared") / "set"
    source = write_project(PROJECT)
    (source / "run.sh").chmod(0o755)
    build_tasks(str(source), root / "one-1.0", BuildOptions(trivial=True, forgeable=True, jobs=1))
    build_tasks(str(source), root / "Two", BuildOptions(trivial=True, forgeable=True, jobs=1, mode="delete"))
    found = json.loads((root / "Two" / "build.json").read_text())["tasks"]
    left = {f"Two/{task}": "it deletes what another one deletes" for task in found if (root / "one-1.0" / task).exists()}
    (root / "set.json").write_text(json.dumps({"left_out": left}))
    return root


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[HubServer]:
    server = HubServer()
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", server.url)
    template = f"{server.url}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
    monkeypatch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    yield server
    server.close()


def contents(task: Task) -> dict[str, tuple[bytes, int]]:
    return {path: ((task.root / path).read_bytes(), (task.root / path).stat().st_mode & 0o111) for path in tree_files(task.root)}


# --- there and back --------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_what_is_pushed_is_pulled_again(folder: Path, hub: HubServer, tmp_path: Path) -> None:
    tasks = load_tasks(folder)
    done = composer_here("tasks", "push", folder, NAME)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{len(tasks)} of {len(tasks)} tasks of 2 repositories in {hub.url}/datasets/{NAME}\n"
    repository = hub.datasets[NAME]
    assert repository.private
    assert sorted(repository.files) == ["README.md", "builds/one-1.0.tar.gz", "builds/two.tar.gz", "tasks.jsonl"]

    out = tmp_path / "pulled"
    done = composer_here("tasks", "pull", NAME, out)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{len(tasks)} tasks of 2 repositories in {out}, of the commit {repository.head}\n"
    pulled = {task.spec.task_id: task for task in load_tasks(out)}
    assert pulled.keys() == {task.spec.task_id for task in tasks}
    for task in tasks:
        assert contents(pulled[task.spec.task_id]) == contents(task)
        assert pulled[task.spec.task_id].provenance == task.provenance
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cache", "pulled"]
    assert composer_here("tasks", "list", out, "--check").returncode == 0
    first = next(iter(pulled.values()))
    report = grade(
        first.spec, first.repo, first.gold_files(), sandbox=open_sandbox(), python=interpreters_of([first])[first.spec.task_id]
    )
    assert report.reward == 1


@pytest.mark.slow
def test_pushing_again_changes_what_has_changed_and_removes_what_is_gone(folder: Path, hub: HubServer, tmp_path: Path) -> None:
    copy = tmp_path / "set"
    shutil.copytree(folder, copy)
    assert composer_here("tasks", "push", copy, NAME).returncode == 0
    before = hub.datasets[NAME].files["builds/one-1.0.tar.gz"]
    head = hub.datasets[NAME].head
    assert composer_here("tasks", "push", copy, NAME).returncode == 0
    assert hub.datasets[NAME].head == head  # nothing has changed
    shutil.rmtree(copy / "Two")
    assert composer_here("tasks", "push", copy, NAME).returncode == 0
    assert hub.datasets[NAME].files.keys() == {"README.md", "tasks.jsonl", "builds/one-1.0.tar.gz"}
    assert hub.datasets[NAME].files["builds/one-1.0.tar.gz"] == before
    assert composer_here("tasks", "pull", NAME, tmp_path / "old", "--revision", head).returncode == 0
    assert {path.name for path in (tmp_path / "old").iterdir()} == {"one-1.0", "two"}


@pytest.mark.slow
def test_nobody_sees_it_who_is_not_meant_to(folder: Path, hub: HubServer) -> None:
    assert composer_here("tasks", "push", folder, NAME).returncode == 0
    assert composer_here("tasks", "push", folder, NAME, "--public").returncode == 0
    assert not hub.datasets[NAME].private
    head = hub.datasets[NAME].head
    refused = composer_here("tasks", "push", folder, NAME)
    assert refused.returncode == 2
    assert f"{NAME} is public" in refused.stderr
    assert hub.datasets[NAME].head == head


@pytest.mark.slow
def test_what_the_hub_answers_is_told(folder: Path, hub: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    missing = composer_here("tasks", "pull", NAME, tmp_path / "out")
    assert missing.returncode == 2
    assert "refuses the request (404)" in missing.stderr
    for name in ("tides", "a/b/c", "../x", "tester/..", "tester/"):
        assert "is no name of a dataset" in composer_here("tasks", "pull", name, tmp_path / "out").stderr
    monkeypatch.setenv("HF_TOKEN", "hf_other")
    refused = composer_here("tasks", "push", folder, NAME)
    assert refused.returncode == 2
    assert "a token that may write to this namespace" in refused.stderr
    hub.out_of_order = True
    failed = composer_here("tasks", "pull", NAME, tmp_path / "out")
    assert failed.returncode == 11
    assert "the data center is on fire" in failed.stderr
    assert not (tmp_path / "out").exists()


def test_without_the_client_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    done = composer_here("tasks", "pull", NAME, tmp_path / "out")
    assert done.returncode == 2
    assert "pip install 'composer-replication[hf]'" in done.stderr


@pytest.mark.parametrize("words", [[], [NAME, "--to", "there"]])
def test_one_place_is_named(tmp_path: Path, words: list[str]) -> None:
    assert "push needs one place" in composer_here("tasks", "push", tmp_path, *words).stderr


# --- what is in it ---------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_folder_is_written_and_nothing_uploaded(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "dataset"
    done = composer_here("tasks", "push", folder, "--to", out)
    assert done.returncode == 0, done.stderr
    assert {path.relative_to(out).as_posix() for path in out.rglob("*") if path.is_file()} == {
        "README.md",
        "tasks.jsonl",
        "builds/one-1.0.tar.gz",
        "builds/two.tar.gz",
    }
    assert "OWNER/dataset" in (out / "README.md").read_text()
    assert "holds something" in composer_here("tasks", "push", folder, "--to", out).stderr
    assert "lie in one another" in composer_here("tasks", "push", folder, "--to", folder / "x").stderr


@pytest.mark.slow
def test_neither_card_nor_index_gives_a_solution_away(folder: Path, tmp_path: Path) -> None:
    tasks = load_tasks(folder)
    write_dataset(tasks, tmp_path, repo_id=NAME, pythons=interpreters_of(tasks))
    shown = (tmp_path / "README.md").read_text() + (tmp_path / "tasks.jsonl").read_text()
    assert "return x + 1" not in shown
    assert "return -x" not in shown
    assert os.fspath(tmp_path.parent) not in shown
    impossible = replace(tasks[0], spec=replace(tasks[0].spec, impossible=True))
    assert "impossible" not in index_lines([impossible])
    rows = [json.loads(line) for line in (tmp_path / "tasks.jsonl").read_text().splitlines()]
    assert [row["task_id"] for row in rows] == [task.spec.task_id for task in tasks]
    assert rows[0]["licence"] == "MIT"
    assert rows[0]["source"] == "folder:shop"
    assert rows[0]["strength"] in ("strong", f"forgeable: {tasks[0].spec.hidden.weakness}")
    assert rows[0]["deleted"][0].startswith("tide.py::")


@pytest.mark.slow
def test_the_card_has_a_header_that_the_hub_reads(folder: Path) -> None:
    hub = pytest.importorskip("huggingface_hub")
    tasks = load_tasks(folder)
    odd = replace(tasks[0], provenance={**tasks[0].provenance, "licence": "EUPL-9.9 |<b>", "instruction_by": "a model"})
    text = card([PackedBuild("one", [*tasks, odd], Pins("3.11", ()))], NAME)
    header = yaml.safe_load(text.split("---\n")[1])
    assert header["license"] == ["mit", "other"]
    assert header["size_categories"] == ["n<1K"]
    assert header["configs"] == [{"config_name": "default", "data_files": [{"split": "train", "path": "tasks.jsonl"}]}]
    assert hub.DatasetCard(text).data.to_dict()["license"] == ["mit", "other"]
    assert r"EUPL-9.9 \|\<b>, MIT" in text
    assert "The mode of deletion is `delete` or `stub`." in text
    assert "Instructions were written by `a model`." in text


@pytest.mark.slow
def test_tasks_that_nobody_may_pass_on_are_refused_unless_that_is_asked_for(folder: Path, tmp_path: Path) -> None:
    first, *others = load_tasks(folder)
    pythons = interpreters_of([first, *others])
    for licence in ("unknown", None, "LicenseRef-Proprietary", "CC-BY-ND-4.0"):
        held = replace(first, provenance={**first.provenance, "licence": licence})
        with pytest.raises(TaskError, match=f"folder:shop \\({licence or 'unknown'}\\) may be passed on") as caught:
            write_dataset([held, *others], tmp_path / "refused", repo_id=NAME, pythons=pythons)
        assert "--unlicensed leave-out" in str(caught.value.fix)
        assert not (tmp_path / "refused").exists()
    left = write_dataset([held, *others], tmp_path / "left", repo_id=NAME, pythons=pythons, unlicensed="leave-out")
    assert sum(len(build.tasks) for build in left) == len(others)
    every = write_dataset([held, *others], tmp_path / "every", repo_id=NAME, pythons=pythons, unlicensed="push")
    assert sum(len(build.tasks) for build in every) == len(others) + 1
    with pytest.raises(TaskError, match="may be passed on"):
        write_dataset([held], tmp_path / "none", repo_id=NAME, pythons=pythons, unlicensed="leave-out")


@pytest.mark.slow
def test_tasks_are_the_same_bytes_twice_and_share_what_they_have_in_common(folder: Path, tmp_path: Path) -> None:
    tasks = load_tasks(folder / "one-1.0")
    for name in ("a", "b"):
        archives.pack(tasks, {}, tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    unpack(tmp_path / "a", tmp_path / "out")
    one, two = (tmp_path / "out" / task.root.name / "repo" / "pyproject.toml" for task in tasks[:2])
    assert one.samefile(two)


# --- the interpreter -------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_what_the_tests_need_comes_along(folder: Path, tmp_path: Path, wheels: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tasks = load_tasks(folder / "one-1.0")
    needs = Pins("{}.{}".format(*sys.version_info), ("pytest==9.0",))  # as the index of the tests has it
    monkeypatch.setattr("composer_replication.tasks.exchange.dataset.pins_of", lambda *_: needs)
    write_dataset(tasks, tmp_path / "dataset", repo_id=NAME, pythons=interpreters_of(tasks))
    ((build,), _) = read_dataset(tmp_path / "dataset", tmp_path / "pulled")
    assert (build.ready, build.pins) == (False, needs)
    assert (build.folder / "requirements.txt").read_text() == "pytest==9.0\n"
    with pytest.raises(TaskError, match=r"was built with .*one-1\.0/\.venv/bin/python, which is gone"):
        interpreters_of(load_tasks(tmp_path / "pulled"))
    install_requirements(build, open_sandbox())
    found = interpreters_of(load_tasks(tmp_path / "pulled"))
    assert set(found.values()) == {build.folder / ".venv" / "bin" / "python"}
    subprocess.run([*set(found.values()), "-c", "import pytest"], check=True)


# --- from a stranger -------------------------------------------------------------------------------------------------


def written(path: Path, *members: tuple[tarfile.TarInfo, bytes]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w:gz") as tar:
        for member, content in members:
            member.size = len(content) if member.isreg() else 0
            tar.addfile(member, io.BytesIO(content))
    return path


def member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.type, made.linkname = kind, link
    return made


@pytest.mark.parametrize(
    "odd",
    [
        member("../outside.py"),
        member("/absolute.py"),
        member("task/../../outside.py"),
        member(".venv/bin/python"),
        member(".build/index.jsonl"),
        member("README.md"),
        member("task//x"),
        member("task/./x"),
        member("task/" + "d/" * 90 + "x"),
        member("task/x", tarfile.SYMTYPE, "/etc/passwd"),
        member("task/x", tarfile.LNKTYPE, "/etc/passwd"),
        member("task/x", tarfile.LNKTYPE, "task/absent"),
        member("task/x", tarfile.LNKTYPE, "build.json"),
        member("build.json", tarfile.LNKTYPE, "task/known"),
        member("task/x", tarfile.FIFOTYPE),
        member("task/x", tarfile.CHRTYPE),
        member("task", tarfile.DIRTYPE),
        member("task/known"),
        member("task/known/below"),
    ],
    ids=lambda made: f"{made.name[:30]} {made.type.decode()} {made.linkname}",
)
def test_an_archive_makes_nothing_but_files_of_tasks(odd: tarfile.TarInfo, tmp_path: Path) -> None:
    archive = written(tmp_path / "one.tar.gz", (member("build.json"), b"{}"), (member("task/known"), b"x"), (odd, b"y"))
    with pytest.raises(TaskError, match=r"one\.tar\.gz is no archive of tasks"):
        unpack(archive, tmp_path / "in" / "target")
    assert {path.name for path in tmp_path.iterdir()} == {"one.tar.gz", "in"}
    assert {path.relative_to(tmp_path / "in").as_posix() for path in (tmp_path / "in").rglob("*")} <= {
        "target",
        "target/task",
        "target/task/known",
    }


def pax(size: int) -> bytes:
    """A header that claims that so many bytes of further headers follow."""
    made = tarfile.TarInfo("x")
    made.type, made.size = tarfile.XHDTYPE, size
    return made.tobuf()


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"no archive", id="none"),
        pytest.param(gzip.compress(b"x" * 2000), id="no tar"),
        pytest.param(gzip.compress(member("task/x").tobuf())[:40], id="torn"),
        pytest.param(gzip.compress(pax(1 << 33) + bytes(1 << 20)), id="large header"),
        pytest.param(gzip.compress(pax(0) * 3000), id="chain of headers"),
        pytest.param(gzip.compress(bytes(1024)), id="empty"),
    ],
)
def test_a_false_archive_is_refused(content: bytes, tmp_path: Path) -> None:
    archive = tmp_path / "one.tar.gz"
    archive.write_bytes(content)
    with pytest.raises(TaskError, match=r"one\.tar\.gz is no archive of tasks"):
        unpack(archive, tmp_path / "target")


def test_an_archive_that_is_too_large_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = written(
        tmp_path / "one.tar.gz", (member("build.json"), b"{}"), *((member(f"task/{n}"), bytes(100)) for n in range(3))
    )
    monkeypatch.setattr(archives, "_MOST_BYTES", 250)
    with pytest.raises(TaskError, match="too large"):
        unpack(archive, tmp_path / "a")
    monkeypatch.setattr(archives, "_MOST_BYTES", 1000)
    monkeypatch.setattr(archives, "_MOST_FILES", 3)
    with pytest.raises(TaskError, match="after too many"):
        unpack(archive, tmp_path / "b")


@pytest.mark.slow
def test_a_task_that_is_not_what_its_manifest_says_is_left_out(folder: Path, tmp_path: Path) -> None:
    tasks = load_tasks(folder / "one-1.0")
    write_dataset(tasks, tmp_path / "dataset", repo_id=NAME, pythons=interpreters_of(tasks))
    archive = tmp_path / "dataset" / "builds" / "one-1.0.tar.gz"
    record = unpack(archive, tmp_path / "loose")
    name = tasks[0].root.name
    files = {f"{name}/{path}": (tmp_path / "loose" / name / path).read_bytes() for path in tree_files(tmp_path / "loose" / name)}

    def pull(changed: Mapping[str, bytes], **facts: object) -> str:
        head = (member("build.json"), json.dumps({**record, **facts}).encode())
        written(archive, head, *((member(path), content) for path, content in {**files, **changed}.items()))
        with pytest.raises(TaskError) as caught:
            read_dataset(tmp_path / "dataset", tmp_path / "out")
        assert not list((tmp_path / "out").glob("*"))
        assert not (tmp_path / ".out.pull").exists()
        return caught.value.message

    assert "was changed after" in pull({f"{name}/repo/tide.py": b"import os\n"})
    assert "does not belong to it" in pull({f"{name}/repo/more.py": b""})
    assert "which Python" in pull({}, python="/bin/sh")
    assert "what its tests need" in pull({}, requirements="pytest")
    assert "its name is" in pull({}, requirements=["--index-url=http://example.invalid", "x @ file:///etc==1"])
    others = {f"other/{path.partition('/')[2]}": content for path, content in files.items()}
    spoilt = {**others, "other/repo/tide.py": b"import os\n", "third/file": b""}
    head = (member("build.json"), json.dumps(record).encode())
    written(archive, head, *((member(path), content) for path, content in {**files, **spoilt}.items()))
    shutil.copy(archive, archive.with_name("UP.tar.gz"))
    archive.with_name("torn.tar.gz").write_bytes(archive.read_bytes()[:100])
    (build,), refused = read_dataset(tmp_path / "dataset", tmp_path / "out")
    assert (build.tasks, [task.root.name for task in load_tasks(tmp_path / "out" / "one-1.0")]) == (1, [name])
    told = {one.what: one.reason for one in refused}
    assert "was changed after" in told.pop("one-1.0.tar.gz: other")
    assert "holds no complete task" in told.pop("one-1.0.tar.gz: third")
    assert told.pop("UP.tar.gz") == "that is no name of a build"
    assert "is no archive of tasks" in told.pop("torn.tar.gz")
    assert not told
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"one-1.0"}
    with pytest.raises(TaskError, match="has no builds"):
        read_dataset(tmp_path / "loose", tmp_path / "out")
