"""The standard streams of our commands: nothing that a library prints of strangers' texts is obeyed by a terminal."""

from __future__ import annotations

import copy
import io
import json
import os
import pty
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import composer_replication
from composer_replication.observe.console import Console
from composer_replication.recipes.verl.plan import PLAN
from composer_replication.tasks.exchange.grader_files import grader_files
from composer_replication.types.guarded_streams import guarded

TITLE = "\x1b]0;owned\x07"
"""Renames the window."""


def ran(code: str, *arguments: object, guard_first: bool = True) -> subprocess.CompletedProcess[str]:
    """Run code behind the guard, in an interpreter of its own."""
    guard = "from composer_replication.types.guarded_streams import guard_streams\nguard_streams()\n"
    code = guard + textwrap.dedent(code) if guard_first else textwrap.dedent(code).replace("GUARD", guard)
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": os.getcwd()}, check=False)


def shown_on_a_terminal(code: str) -> str:
    """Run code whose standard streams are a terminal, and return all that the terminal received."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "PYTHONPATH": os.getcwd(), "TERM": "xterm-256color"}
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)], stdin=theirs, stdout=theirs, stderr=theirs, env=environment
    ) as process:
        os.close(theirs)
        received = b""
        try:
            while piece := os.read(ours, 1 << 16):
                received += piece
        except OSError:  # the other side was closed
            pass
        process.wait()
    os.close(ours)
    return received.decode()


WARN = r"""
import logging, warnings
from transformers.utils import logging as theirs
theirs.set_verbosity_info()
GUARD
theirs.get_logger("transformers.models.x").warning("type \x1b]0;owned\x07")
warnings.warn("warned of \x1b]0;owned\x07 and \x1b[31mred\x1b[0m\x9b2J")
logging.getLogger("y").warning("logged \x1b[2J")
logging.basicConfig()
logging.getLogger("z").error("once more \x1b[2J")
print("printed \x1b[2J \r over")
"""


@pytest.mark.parametrize("guard_first", [True, False])
def test_loggers_of_libraries_and_warnings_are_shown_and_not_obeyed(guard_first):
    done = ran(WARN.replace("GUARD", "") if guard_first else WARN, guard_first=guard_first)
    assert done.returncode == 0, done.stderr
    for words in (r"type \x1b]0;owned\x07", r"warned of \x1b]0;owned\x07 and red\x9b2J", r"logged \x1b[2J", r"once more \x1b[2J"):
        assert words in done.stderr
    assert done.stdout == "printed \\x1b[2J \\r over\n"
    assert not set("\x1b\x07\x9b\r") & set(done.stderr + done.stdout)


@pytest.mark.slow
def test_a_strangers_config_is_shown_and_not_obeyed(tmp_path):
    config = {"model_type": TITLE, "quantization_config": {"quant_method": TITLE}, "architectures": ["X"]}
    (tmp_path / "config.json").write_text(json.dumps(config))
    code = """
    import sys
    from transformers import AutoConfig, Qwen2Config
    Qwen2Config.from_pretrained(sys.argv[1])
    AutoConfig.from_pretrained(sys.argv[1])
    """
    done = ran(code, tmp_path)
    assert done.returncode == 1
    assert done.stderr.count(r"\x1b]0;owned\x07") >= 2, done.stderr
    assert not set("\x1b\x07") & set(done.stderr + done.stdout)


def test_every_program_of_ours_guards_its_streams():
    """But for those whose output is data or goes to a log: in a sandbox, around a server, for data-juicer."""
    root = Path(composer_replication.__file__).parent
    programs = {path for path in root.rglob("*.py") if '__name__ == "__main__"' in path.read_text("utf-8")}
    programs = {path.relative_to(root).as_posix() for path in programs if "projects" not in path.parts} | {"cli/main.py"}
    bare = {name for name in programs if "guard_streams()" not in (root / name).read_text("utf-8")}
    assert bare == {
        "languages/go/ask_driver.py",
        "languages/go/driver.py",
        "languages/java/ask_driver.py",
        "languages/java/driver.py",
        "languages/java/language.py",  # the line that begins the program of an agent's shell
        "languages/java/shell.py",
        "languages/javascript/ask_driver.py",
        "languages/javascript/driver.py",
        "languages/rust/ask_driver.py",
        "languages/rust/driver.py",
        "replaysim/worker.py",
        "sandbox/program.py",
        "sandbox/grading/pytest_driver.py",
        "sandbox/grading/steps/driver.py",
        "tasks/proofs/copies_driver.py",
    }
    assert all("types/guarded_streams.py" in grader_files(name) for name in ("python", "go", "java", "javascript", "rust"))


@pytest.mark.slow
def test_a_server_of_teachers_shows_its_error(tmp_path):
    command = [sys.executable, "-m", "composer_replication.quickstart.serve", f"m={tmp_path}/{TITLE}"]
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
    assert done.returncode != 0
    assert r"\x1b]0;owned\x07" in done.stderr
    assert not set("\x1b\x07") & set(done.stderr + done.stdout)


@pytest.mark.slow
def test_programs_around_those_of_others_show_their_errors(tmp_path):
    entrypoints = tmp_path / "prime_rl" / "entrypoints"
    entrypoints.mkdir(parents=True)
    (entrypoints / "rl.py").write_text(f"raise ModuleNotFoundError({TITLE!r})")
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{os.getcwd()}", PLAN: f"/none/{TITLE}"}
    for module, words in (("prime_rl.launcher", ["rl"]), ("verl.plugin", [])):
        command = [sys.executable, "-m", f"composer_replication.recipes.{module}", *words]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
        assert done.returncode != 0
        assert r"\x1b]0;owned\x07" in done.stderr, module
        assert not set("\x1b\x07") & set(done.stderr + done.stdout), module


def test_tracebacks_of_threads_and_of_the_program_too():
    code = r"""
    import threading
    def fail():
        raise RuntimeError("\rthread \x1b]0;owned\x07")
    one = threading.Thread(target=fail)
    one.start()
    one.join()
    raise RuntimeError("\rmain \x1b]0;owned\x07")
    """
    done = ran(code)
    assert r"RuntimeError: \rthread \x1b]0;owned\x07" in done.stderr
    assert r"RuntimeError: \rmain \x1b]0;owned\x07" in done.stderr
    assert not set("\x1b\x07\r") & set(done.stderr)


@pytest.mark.parametrize("closed", [(0,), (1, 2), (0, 1, 2)])
def test_closed_streams_are_nothing_and_what_is_opened_later_does_not_take_their_place(closed, tmp_path):
    code = """
    import os, subprocess, sys
    from composer_replication.types.guarded_streams import guard_streams
    closed = [int(number) for number in sys.argv[2:]]
    for number in closed:
        os.close(number)
    guard_streams()
    found = [os.readlink(f"/proc/self/fd/{number}") for number in closed]
    theirs, ours = os.pipe()
    listed = subprocess.run(["readlink", *(f"/proc/self/fd/{number}" for number in closed)], stdin=0, stdout=ours)
    with open(sys.argv[1], "w") as file:
        file.write(repr((set(found), theirs > 2, listed.returncode)))
    """
    done = ran(code, tmp_path / "seen", *closed, guard_first=False)
    assert (tmp_path / "seen").read_text() == "({'/dev/null'}, True, 0)", done.stderr


def test_progress_bars_move():
    code = """
    from tqdm import tqdm
    for _ in tqdm(range(2), desc="outer", mininterval=0):
        for _ in tqdm(range(2), desc="inner \\x1b]0;owned\\x07", mininterval=0, leave=False):
            pass
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, check=False).stderr.decode()
    shown = ran(code).stderr.encode().decode()
    assert done.count("\x1b[A") == shown.count("\x1b[A") > 0
    assert "\x1b]0" not in shown
    assert "\x07" not in shown


def test_a_carriage_return_is_a_bars_only_at_the_start_of_a_line():
    out = io.StringIO(newline="")
    stream = guarded(out)
    for text in ("\r 1%", "\r 2%", "\r", "\n", "error: ", "\rfine\n", "a\rb\n\x1b[A", "\r", "\x1b[A", "\x1b[A\x1b[2J"):
        stream.write(text)
    assert out.getvalue() == "\r 1%\r 2%\r\nerror: \\rfine\na\\rb\n\\x1b[A\\r\\x1b[A\\x1b[A\\x1b[2J"
    with pytest.raises(TypeError):
        stream.write(b"")  # click asks so whether a stream takes bytes
    assert guarded(stream) is stream
    narrow = io.TextIOWrapper(io.BytesIO(), "ascii")
    guarded(narrow).write("é")
    narrow.flush()
    assert narrow.buffer.getvalue() == rb"\xe9"


@pytest.mark.parametrize(
    ("texts", "obeyed"),
    [
        (["\router", "\n", "\rinner", "\x1b[A", "\router", "\n\n", "\rthird", "\x1b[A\x1b[A"], 3),
        (["error: disk full", "\n", "\r", "\x1b[A"], 0),
        (["\rbar", "\n", "\r", "\x1b[A", "\x1b[A"], 1),
        (["\rbar", "\n", "error", "\n", "\r", "\x1b[A"], 0),
        (["\rbar", "\n", "error\n", "\r", "\x1b[A"], 0),
        (["\rbar", "\n", "\n", "\r", "\x1b[A"], 0),
        (["\rbar", "\n", "\r", "\x1b[A\x1b[A"], 0),
        (["\rbar\n", "\r", "\x1b[A"], 0),
    ],
)
def test_bars_go_up_as_far_as_they_went_down_and_never_over_what_was_printed_before(texts, obeyed):
    out = io.StringIO(newline="")
    stream = guarded(out)
    for text in texts:
        stream.write(text)
    assert out.getvalue().count("\x1b[A") == obeyed


@pytest.mark.parametrize(
    ("before", "after", "obeyed"),
    [
        (["\router", "\n"], ["\rinner", "\x1b[A"], 0),
        (["\router"], ["\n", "\rinner", "\x1b[A"], 0),
        (["\router", "\n"], ["\rinner", "\n", "\r", "\x1b[A", "\x1b[A"], 1),
    ],
)
@pytest.mark.parametrize("how", ["print", "console"])
def test_a_bar_does_not_go_up_over_what_another_stream_or_our_console_printed(how, before, after, obeyed):
    out, err = guarded(io.StringIO(newline="")), guarded(io.StringIO(newline=""))
    for text in before:
        err.write(text)
    print("disk full", file=out) if how == "print" else Console(file=err).print("disk full")
    for text in after:
        err.write(text)
    assert err.getvalue().count("\x1b[A") == obeyed


def test_a_copy_of_a_stream_is_one():
    out = io.StringIO()
    copy.copy(guarded(out)).write("a\x1b")
    assert out.getvalue() == r"a\x1b"


def test_our_own_colours_and_bars_stay_and_those_of_others_do_not():
    code = r"""
    import warnings
    from composer_replication.observe.console import Console
    from composer_replication.observe.terminal import Terminal
    from composer_replication.types.guarded_streams import guard_streams
    guard_streams()
    console = Console()
    console.print("ours", style="bold red")
    print("\x1b[95mtheirs\x1b[0m \x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\")
    with Terminal(console).phase("working", 2) as phase:
        phase.advance()
        print("\x1b[95mlive\x1b[0m \x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\")
        warnings.warn("warned \x1b]0;owned\x07")
    print("\x1b[2Jafter")
    """
    shown = shown_on_a_terminal(code)
    assert "\x1b[1;31mours" in shown
    assert "\x1b[?25l" in shown, "the cursor is hidden while a bar is drawn"
    assert "working" in shown
    assert "theirs \\x1b]8;;http://x\\x1b\\link" in shown
    assert "live \\x1b]8;;http://x\\x1b\\link" in shown.replace("\r\n", "\n")
    assert r"warned \x1b]0;owned\x07" in shown
    assert r"\x1b[2Jafter" in shown
    for obeyed in ("\x1b]", "\x1b[95m", "\x07", "\x1b[2J"):
        assert obeyed not in shown
