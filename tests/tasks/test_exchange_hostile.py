"""Harbor tasks and SWE-bench rows that mean harm: nothing outside their folder is read, and nothing outside `out` written."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from harbor_tasks import foreign
from in_process import composer_here

from composer_replication.sandbox import open_sandbox
from composer_replication.tasks.exchange import foreign_files, import_harbor
from composer_replication.tasks.exchange.swebench_import import build_instances
from composer_replication.tasks.report import BuildOptions
from composer_replication.types.errors import StorageError

PYTHON = Path(sys.executable)
DOCKERFILE = "FROM python:3.13-slim\nWORKDIR /app\n"
SECRET = "only the user may read this"
Spoil = Callable[[Path, Path], None]


def dockerfile(*lines: str) -> Spoil:
    def spoil(task: Path, _outside: Path) -> None:
        (task / "environment" / "Dockerfile").write_text(DOCKERFILE + "".join(f"{line}\n" for line in lines))
        (task / "environment" / "payload.txt").write_text("PWNED")

    return spoil


def link(path: str, to: str = "secret.txt") -> Spoil:
    def spoil(task: Path, outside: Path) -> None:
        (task / path).parent.mkdir(parents=True, exist_ok=True)
        (task / path).unlink(missing_ok=True)
        (task / path).symlink_to(outside / to)

    return spoil


def special(make: Callable[[Path], object], path: str = "environment/src/odd") -> Spoil:
    return lambda task, _outside: make(task / path) and None


def named(name: str) -> Spoil:
    return lambda task, _outside: (task / "task.toml").write_text(f"[task]\nname = {name}\n") and None


def nested(task: Path, _outside: Path) -> None:
    folder = task / "environment" / "src"
    for _ in range(80):
        folder = folder / "x"
    folder.mkdir(parents=True)


def own_spec(**changes: object) -> Spoil:
    """A task that says it is an export of ours."""

    def spoil(task: Path, _outside: Path) -> None:
        spec = {
            "task_id": "t",
            "source": "s",
            "source_digest": "d",
            "instruction": "i",
            "deleted": [],
            "fail_to_pass": ["tests/test_x.py::test_x"],
            "pass_to_pass": [],
            "editable": ["*.py"],
            **changes,
        }
        (task / "tests" / "task.json").write_text(json.dumps(spec))
        (task / "tests" / "repo").mkdir()
        (task / "solution" / "files").mkdir()
        (task / "solution" / "files" / "new.py").write_text("x = 1\n")

    return spoil


def with_file(path: str, text: str) -> Spoil:
    return lambda task, _outside: (task / path).write_text(text) and None


FLOOD = "head -c 100000000 /dev/zero | tee /proc/$PPID/fd/3 >&2\nhead -c 100000000 /dev/urandom\nexit 1\n"
FORGE = """
import json, os, sys, zlib
frame = sys._getframe()
while "nonce" not in frame.f_locals:
    frame = frame.f_back
BODY
answer = frame.f_locals["nonce"].encode() + zlib.compress(body)
while answer:
    answer = answer[os.write(frame.f_locals["channel"], answer):]
os._exit(0)
"""
BOMB = FORGE.replace("BODY", "body = bytes(600 << 20)")
GARBAGE = FORGE.replace("BODY", "body = b'[' * 1_000_000")

HOSTILE: dict[str, tuple[Spoil, str]] = {
    "target above the root": (dockerfile("COPY payload.txt /app/../../..PWNED.txt"), "not all below one working directory"),
    "target above the tree": (dockerfile("COPY payload.txt ../PWNED.txt"), "not all below one working directory"),
    "target beside the tree": (dockerfile("COPY payload.txt /app/../app2/PWNED.txt"), "not all below one working directory"),
    "workdir above": (dockerfile("WORKDIR ../../x/..", "COPY payload.txt ."), "not all below one working directory"),
    "origin above": (dockerfile("COPY ../../../etc/hostname /app/"), "COPY ../../../etc/hostname leads out of environment/"),
    "origin through a folder": (dockerfile("COPY src/../../tests /app/"), "COPY src/../../tests leads out of environment/"),
    "absolute origin": (dockerfile("COPY /etc/hostname /app/"), "COPY /etc/hostname leads out of environment/"),
    "added": (dockerfile("ADD ../../secret.txt /app/"), "ADD ../../secret.txt leads out of environment/"),
    "a quote that never ends": (dockerfile("COPY 'src /app/"), "cannot be read"),
    "an empty COPY": (dockerfile("COPY"), "cannot be read"),
    "a null character": (dockerfile("COPY s\0rc /app/"), "is missing"),
    "a file that is a link": (link("environment/app/linked"), "environment/app/linked is a link"),
    "a folder that is a link": (link("environment/app", "folder"), "environment/app is a link"),
    "a link within": (lambda task, _: (task / "environment/src/l.py").symlink_to("rates.py"), "environment/src/l.py is a link"),
    "a link of the solution": (link("solution/rates.py"), "solution/rates.py is a link"),
    "a link of the tests": (link("tests/test_rates.py"), "tests/test_rates.py is a link"),
    "a link for instructions": (link("instruction.md"), "instruction.md is a link"),
    "a link for the task": (link("task.toml"), "task.toml is a link"),
    "a pipe": (special(lambda path: os.mkfifo(path) or True), "environment/src/odd is neither a file nor a folder"),
    "too deep": (nested, "nested deeper than 64 folders"),
    "sparse": (lambda task, _: os.truncate(task / "environment/src/rates.py", 1 << 40), "environment/src/rates.py: it is larger"),
    "TOML that nests": (lambda task, _: (task / "task.toml").write_text("a = " + "[" * 5000) and None, "cannot be read"),
    "TOML of other types": (lambda task, _: (task / "task.toml").write_text("task = 3\n") and None, "cannot be read"),
    "a name above": (lambda task, _: (task / "task.toml").write_text('[task]\nname = ".."\n') and None, "is not a name"),
    "a name with a null": (
        lambda task, _: (task / "task.toml").write_text('[task]\nname = "a\\u0000b"\n') and None,
        "is not a name",
    ),
    "a solver that floods": (with_file("solution/solve.sh", FLOOD), "fails without network"),
    "tests that answer with a bomb": (with_file("tests/conftest.py", BOMB), "do not pass with its solution"),
    "tests that answer with garbage": (with_file("tests/conftest.py", GARBAGE), "do not pass with its solution"),
    "own: not a task": (own_spec(task_id=3), "is not a task of this release"),
    "own: JSON that nests": (
        lambda task, _: (task / "tests/task.json").write_text("[" * 100_000) and None,
        "is not a task of this release",
    ),
    "own: garbage": (lambda task, _: (task / "tests/task.json").write_text("\0") and None, "is not a task of this release"),
    "own: a name above": (own_spec(task_id="../../up"), "is not a name"),
    "own: an endless test": (own_spec(test_timeout_s=1e300), "is not a task of this release"),
    "own: no time": (own_spec(test_timeout_s=float("nan")), "is not a task of this release"),
    "own: a pattern without end": (own_spec(editable=["**/" * 40 + "x"]), "is not a task of this release"),
    "own: a broken pattern": (own_spec(editable=["[z-a]"]), "is not a task of this release"),
    "own: a test above": (own_spec(fail_to_pass=["../../../secret.py::test_x"]), "is not a task of this release"),
    "own: an anti-test above": (
        own_spec(hidden={"calls": [], "anti_tests": [{"test": "../../../../secret.py::test_x", "expectation": 0}]}),
        "is not a task of this release",
    ),
    "own: no expectation": (
        own_spec(hidden={"calls": [], "anti_tests": [{"test": "tests/test_x.py::test_x", "expectation": "0"}]}),
        "is not a task of this release",
    ),
    "own: no test": (own_spec(fail_to_pass=[]), "names no test"),
    "own: lone surrogates": (own_spec(instruction="\ud800"), "is not a task of this release"),
}


def first_bytes(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(1 << 20)


def below(folder: Path) -> dict[str, bytes]:
    """The beginning of every file: one of them is sparse and huge."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): first_bytes(path) for path in files}


def test_a_hostile_harbor_task_is_refused_and_the_honest_one_beside_it_imported(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    (outside / "folder").mkdir(parents=True)
    (outside / "secret.txt").write_text(SECRET)
    (outside / "folder" / "secret.txt").write_text(SECRET)
    (tmp_path / "secret.txt").write_text(SECRET)
    (tmp_path / "secret.py").write_text(f"def test_x():\n    assert 1 == 1  # {SECRET}\n")
    for number, (spoil, _) in enumerate(HOSTILE.values()):
        spoil(foreign(tmp_path / "many" / f"{number:02}"), outside)
    foreign(tmp_path / "many" / "honest")
    before = below(tmp_path)
    tasks, refused = import_harbor(tmp_path / "many", tmp_path / "out", sandbox=open_sandbox(), python=PYTHON)
    assert [task.root.name for task in tasks] == ["someone__rates"]
    reasons = {refusal.what: refusal.reason for refusal in refused}
    assert sorted(reasons) == [f"{number:02}" for number in range(len(HOSTILE))]
    expected = {name: reason for name, (_, reason) in HOSTILE.items()}
    found = {name: reasons[f"{number:02}"] for number, name in enumerate(HOSTILE)}
    assert {name: reason for name, reason in found.items() if expected[name] not in reason} == {}
    written = below(tmp_path)
    assert {path for path in written if path not in before} == {path for path in written if path.startswith("out/")}
    assert SECRET.encode() not in b"".join(below(tmp_path / "out").values())
    assert not list(Path("/").glob("*PWNED*"))


@pytest.mark.slow
def test_the_command_lists_what_failed_and_its_exit_status_says_so(tmp_path: Path) -> None:
    foreign(tmp_path / "many" / "honest")
    dockerfile("COPY ../../../etc/hostname /app/")(foreign(tmp_path / "many" / "hostile"), tmp_path)
    done = composer_here("tasks", "import", "harbor", tmp_path / "many", "--out", tmp_path / "out")
    refusal, *table, summary = done.stdout.splitlines()
    assert refusal == "not imported: hostile: COPY ../../../etc/hostname leads out of environment/; name files below it"
    assert summary == f"1 of 2 Harbor tasks imported into {tmp_path / 'out'}"
    assert any("strong" in line or "forgeable" in line for line in table)
    assert done.returncode == 1


def test_a_folder_that_is_a_link_is_not_searched(tmp_path: Path) -> None:
    foreign(tmp_path / "elsewhere" / "task")
    foreign(tmp_path / "many" / "honest")
    (tmp_path / "many" / "to").symlink_to(tmp_path / "elsewhere")
    tasks, refused = import_harbor(tmp_path / "many", tmp_path / "out", sandbox=open_sandbox(), python=PYTHON)
    assert (len(tasks), refused) == (1, [])


# --- SWE-bench rows --------------------------------------------------------------------------------------------------


def git(folder: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    return subprocess.run(["git", *identity, *arguments], cwd=folder, check=True, capture_output=True, text=True).stdout


def patch_of(repository: Path, change: Callable[[Path], object]) -> str:
    change(repository)
    git(repository, "add", "-A")
    diff = git(repository, "diff", "--cached")
    git(repository, "reset", "-q", "--hard")
    return diff


def test_hostile_rows_are_dropped_and_the_honest_one_is_built(tmp_path: Path) -> None:
    repository = tmp_path / "repository"
    (repository / "tests").mkdir(parents=True)
    (repository / "shop.py").write_text("def gross(net):\n    return net\n")
    test = "from shop import gross\n\ndef test_tax():\n    assert gross(1) == 2\n"
    (repository / "tests" / "test_shop.py").write_text("def test_nothing():\n    assert True\n")
    git(repository, "init", "-q")
    git(repository, "add", "-A")
    git(repository, "commit", "-q", "-m", "base")
    (tmp_path / "secret.txt").write_text(SECRET)
    row = {
        "instance_id": "honest",
        "repo": "shop/shop",
        "base_commit": git(repository, "rev-parse", "HEAD").strip(),
        "patch": patch_of(repository, lambda tree: (tree / "shop.py").write_text("def gross(net):\n    return net * 2\n")),
        "test_patch": patch_of(repository, lambda tree: (tree / "tests" / "test_shop.py").write_text(test)),
        "FAIL_TO_PASS": ["tests/test_shop.py::test_tax"],
        "PASS_TO_PASS": [],
        "problem_statement": "Tax.",
    }
    linked = patch_of(repository, lambda tree: (tree / "linked.txt").symlink_to(tmp_path / "secret.txt"))
    upwards = row["patch"].replace("shop.py", "../shop.py")
    rows = [
        row | {"instance_id": "link", "patch": row["patch"] + linked},
        row | {"instance_id": "link-in-tests", "test_patch": row["test_patch"] + linked},
        row | {"instance_id": "upwards", "patch": upwards},
        row | {"instance_id": "null", "patch": "\0"},
        row | {"instance_id": "surrogate", "patch": "\ud800"},
        row | {"instance_id": "commit", "base_commit": "--upload-pack=touch PWNED"},
        row | {"instance_id": "types", "patch": 3},
        row | {"instance_id": "ids", "FAIL_TO_PASS": ["../../secret.py::test_x"]},
        "nonsense",
        row,
    ]
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(entry) + "\n" for entry in rows) + "[" * 100_000 + "\n")
    tasks, dropped = build_instances(
        file, tmp_path / "out", only="", checkout=str(repository), options=BuildOptions(trivial=True), progress=lambda _: None
    )
    assert [task.spec.task_id for task in tasks] == ["honest"]
    reasons = {entry.what: entry.reason for entry in dropped}
    assert len(reasons) == len(rows)
    assert "linked.txt is a link" in reasons["link"]
    assert "linked.txt is a link" in reasons["link-in-tests"]
    assert "line 9" in reasons
    assert "line 11" in reasons
    assert SECRET.encode() not in b"".join(below(tmp_path / "out").values())
    assert not list(tmp_path.rglob("PWNED*"))


def test_a_full_disk_is_no_fault_of_the_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task = foreign(tmp_path / "theirs")

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(tmp_path / "copy"))

    monkeypatch.setattr(foreign_files, "_copy_file", full)
    with pytest.raises(StorageError, match="No space left on device") as caught:
        import_harbor(task.parent, tmp_path / "out", sandbox=open_sandbox(), python=PYTHON)
    assert "TMPDIR" in caught.value.fix
