"""What others wrote is shown on the terminal, and never obeyed by it."""

from __future__ import annotations

import ast
import io
import json
import logging
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from in_process import composer_here
from rich.table import Table
from rich.text import Text

import composer_replication
from composer_replication.observe.console import Console
from composer_replication.observe.terminal import Terminal
from composer_replication.tasks.store import Task, write_task
from composer_replication.types import TaskSpec
from composer_replication.types.plain_text import visible

CLIPBOARD = "\x1b]52;c;QUJD\x07"
"""Writes to the clipboard of the reader's machine."""
OBEYED = {
    CLIPBOARD: r"\x1b]52;c;QUJD\x07",
    "\x1b[2J": r"\x1b[2J",
    "\x9b31m": r"\x9b31m",
    "\x7f\x08\r": r"\x7f\x08\r",
    "\u202eevil\u202c": r"\u202eevil\u202c",
    "\u2066\u2069\u200f": r"\u2066\u2069\u200f",
    "\ud800": r"\ud800",
    "\0": r"\x00",
}


@pytest.mark.parametrize("text", OBEYED, ids=range(len(OBEYED)))
def test_everything_that_prints_shows_it_as_escapes(text):
    assert visible(f"a\tb\n{text}é") == f"a\tb\n{OBEYED[text]}é"
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=200, color_system="truecolor")
    table = Table("name")
    table.add_row(Text(text))
    console.print(table)
    console.print(text, style="bold red", markup=False)
    console.log(Text(text))
    console.rule(Text(text))
    terminal = Terminal(console)
    terminal.note(text)
    terminal.table(text, [text], [[text]])
    console.file = io.StringIO()
    said = out.getvalue()
    for obeyed in ("]52", "\x07", "\x1b[2J", "\x9b", "\x7f", "\x08", "\u202e", "\u2066", "\ud800", "\0"):
        assert f"\x1b{obeyed}" not in said if obeyed == "]52" else obeyed not in said
    assert "\x1b[1;31m" in said, "rich's own colours stay"


def test_nothing_in_the_package_prints_otherwise():
    """The one place is `observe.console`: whoever goes round it lets a terminal obey what others wrote."""
    root = Path(composer_replication.__file__).parent
    found = []
    for path in root.rglob("*.py"):
        if "projects" in path.parts or path.name == "console.py":
            continue
        tree = ast.parse(path.read_text())
        for node in ast.walk(tree):
            direct = isinstance(node, ast.ImportFrom) and node.module == "rich.console"
            direct = direct and any(alias.name == "Console" for alias in node.names)
            echoed = isinstance(node, ast.Attribute) and node.attr in ("echo", "secho") and ast.unparse(node.value) == "typer"
            if direct or echoed:
                found.append(f"{path.relative_to(root)}:{node.lineno}")
    assert found == []


def test_tracebacks_and_logs_show_it_too():
    code = (
        "import logging\n"
        "from composer_replication.types.guarded_streams import guard_streams\n"
        "guard_streams()\n"
        "logging.getLogger('x').warning('teacher said %s', '\\x1b[2J')\n"
        "raise RuntimeError('\\x1b]52;c;QUJD\\x07')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert r"teacher said \x1b[2J" in done.stderr
    assert r"RuntimeError: \x1b]52;c;QUJD\x07" in done.stderr
    assert "\x1b" not in done.stderr
    assert logging.lastResort is not None


def made_task(folder: Path, stub: bytes) -> tuple[Task, Path]:
    """A task in which `calc.py` begins as a stub, and a workspace as it begins."""
    solved = folder / "solved"
    solved.mkdir()
    (solved / "calc.py").write_text("def add(a, b):\n    return a + b\n")
    (solved / "test_calc.py").write_text("from calc import add\n\ndef test_add():\n    assert add(2, 3) == 5\n")
    spec = TaskSpec(
        task_id="t",
        source="s",
        source_digest="d",
        instruction="i",
        deleted=(),
        fail_to_pass=("test_calc.py::test_add",),
        pass_to_pass=(),
        editable=("calc.py",),
    )
    task = write_task(spec, folder / "task", pristine=solved, deleted={"calc.py": stub})
    workspace = folder / "ws"
    workspace.mkdir()
    for name in ("calc.py", "test_calc.py"):
        (workspace / name).write_bytes((task.repo / name).read_bytes())
    return task, workspace


@pytest.mark.slow
def test_a_failing_test_and_a_file_name_do_not_reach_the_terminal_of_grade(tmp_path):
    task, workspace = made_task(tmp_path, f"def add(a, b):\n    raise NotImplementedError({CLIPBOARD!r})\n".encode())
    (workspace / f"{CLIPBOARD}.txt").write_text("x")
    done = composer_here("grade", task.root, "--workspace", workspace)
    assert done.returncode == 10, done.stderr
    assert "\x1b" not in done.stdout
    assert "\x07" not in done.stdout
    assert done.stdout.count(r"\x1b]52;c;QUJD") == 2
    report = composer_here("grade", task.root, "--workspace", workspace, "--json")
    assert "\x1b" not in report.stdout
    assert json.loads(report.stdout)["reward"] == 0.0


def test_markup_of_others_is_text() -> None:
    """In lines and in tables: names of tasks and of arms come from strangers."""
    written = io.StringIO()
    console = Console(file=written, force_terminal=True, color_system="standard", width=120)
    hostile = "[link=https://example.org][blink]a[/y]"
    table = Table("[red]head")
    table.add_row(hostile)
    console.print(hostile, highlight=False)
    console.print(table)
    shown = written.getvalue()
    assert shown.count(hostile) == 2
    assert "[red]head" in shown
    assert "\x1b]8" not in shown


@pytest.mark.slow
@pytest.mark.parametrize("words", [["--version"], ["--help"], ["tasks", "list", "missing"], ["traces", "--help"]], ids=" ".join)
def test_output_that_cannot_be_written_is_an_error_of_every_command(words):
    env = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    unbuffered = ["-u"] if "--version" in words else []
    run = [sys.executable, *unbuffered, "-c", "from composer_replication.cli import main; main()", *words]
    with open("/dev/full", "wb") as full:
        done = subprocess.run(run, stdout=full, stderr=subprocess.PIPE, text=True, env=env, check=False)
        assert subprocess.run(run, stdout=full, stderr=full, check=False).returncode != 0
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr
    if "missing" in words:  # it prints nothing
        assert (done.returncode, "standard output" in done.stderr) == (3, False)
    else:
        assert done.returncode == 7
        assert done.stderr == ("error: standard output cannot be written (No space left on device)\n  fix: send it elsewhere\n")
    ours, theirs = os.pipe()
    os.close(ours)
    with open(theirs, "wb") as unread:
        done = subprocess.run(run, stdout=unread, stderr=subprocess.PIPE, text=True, env=env, check=False)
    assert done.returncode == (3 if "missing" in words else 1)
    assert "Traceback" not in done.stderr
    assert "standard output" not in done.stderr


COMPOSER = [sys.executable, "-c", "from composer_replication.cli import main; main()"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "status"), [(["tasks", "show", "/nonexistent"], 3), (["nonsense"], 2), (["train", "--nope"], 2)]
)
def test_an_error_that_cannot_be_printed_still_has_its_exit_code(words, status):
    with open("/dev/full", "wb") as full:
        done = subprocess.run([*COMPOSER, *words], stdout=subprocess.PIPE, stderr=full, check=False)
        assert (done.returncode, done.stdout) == (status, b"")
        assert subprocess.run([*COMPOSER, *words], stdout=full, stderr=full, check=False).returncode == status
    ours, theirs = os.pipe()
    os.close(ours)
    with open(theirs, "wb") as unread:
        assert subprocess.run([*COMPOSER, *words], stderr=unread, check=False).returncode == status


@pytest.mark.slow
@pytest.mark.parametrize("closed", ["<&- >&-", "<&- 2>&-", ">&- 2>&-", "<&- >&- 2>&-"])
def test_closed_streams_change_no_grade(tmp_path, closed):
    task, workspace = made_task(tmp_path, b"def add(a, b):\n    return 0\n")
    command = shlex.join([*COMPOSER, "grade", str(task.root), "--workspace", str(workspace)])
    assert subprocess.run(["bash", "-c", f"{command} {closed}"], capture_output=True, check=False).returncode == 10
    (workspace / "calc.py").write_text("def add(a, b):\n    return a + b\n")
    assert subprocess.run(["bash", "-c", f"{command} {closed}"], capture_output=True, check=False).returncode == 0
