"""A framework's program and all that it starts end: with it, on demand, and when who asked for it is killed."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from composer_replication.recipes.prime_rl import substrate
from composer_replication.sandbox.backends import linux
from composer_replication.sandbox.program import RunningProgram

STUBBORN = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"
STARTS_ONE = f"""
import pathlib, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", {STUBBORN!r}], start_new_session=True, stdout=subprocess.PIPE)
child.stdout.readline()
pathlib.Path("pid.part").write_text(str(child.pid))
pathlib.Path("pid.part").rename("pid")
"""


def until(condition):
    began = time.monotonic()
    while not (found := condition()):
        assert time.monotonic() - began < 120, "a hang"
        time.sleep(0.02)
    return found


def is_gone(pid: int) -> bool:
    """Ended, whether or not it was collected."""
    stat = Path(f"/proc/{pid}/stat")
    try:
        return stat.read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


@pytest.fixture
def started(tmp_path):
    """`started()` is the process that a program in the test's folder started and of its own session."""
    found = []

    def pid():
        found.append(int(until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text())))
        return found[-1]

    yield pid
    for one in found:
        if not is_gone(one):
            os.kill(one, signal.SIGKILL)


def program(folder, text, patience_s=0.5):
    command, environment = [sys.executable, "-c", text], {"SAID": "yes"}
    return RunningProgram(
        command, log=folder / "log", environment=environment, folder=folder, without=("HOME",), patience_s=patience_s
    )


@pytest.mark.parametrize(("text", "code"), [("raise SystemExit(3)", 3), ("import os; os.kill(os.getpid(), 9)", 137), ("", 0)])
def test_its_status_is_told(tmp_path, text, code):
    with program(tmp_path, text) as running:
        assert asyncio.run(running.wait()) == code


def test_it_has_the_environment_and_its_words_are_kept(tmp_path):
    with program(tmp_path, "import os; print(os.environ['SAID'], 'HOME' in os.environ, os.getcwd())") as running:
        assert asyncio.run(running.wait()) == 0
    assert (tmp_path / "log").read_text() == f"yes False {tmp_path}\n"


def test_what_it_left_behind_ends_with_it(tmp_path, started):
    with program(tmp_path, STARTS_ONE) as running:
        assert asyncio.run(running.wait()) == 0
        assert is_gone(started())


@pytest.mark.slow
def test_it_is_ended_with_what_it_started(tmp_path, started):
    with program(tmp_path, STARTS_ONE + "time.sleep(600)"):
        left = started()
        assert not is_gone(left)
    assert is_gone(left)


def prime_rl(folder: Path) -> list[str]:
    """Where a PRIME-RL is found whose `rl` starts one process and waits."""
    (folder / "prime_rl/entrypoints").mkdir(parents=True)
    for path in ("prime_rl/__init__.py", "prime_rl/entrypoints/__init__.py"):
        (folder / path).touch()
    text = STARTS_ONE.replace('"pid', f'"{folder}/pid').replace("signal.SIG_IGN", "signal.SIG_DFL")  # it need not be killed
    (folder / "prime_rl/entrypoints/rl.py").write_text(f"def main():\n    exec({text + 'time.sleep(600)'!r}, {{}})\n")
    return [str(folder)]


@pytest.mark.slow
def test_prime_rl_ends_when_the_run_is_killed(tmp_path, started):
    search = prime_rl(tmp_path)
    code = "import asyncio, pathlib, sys; from composer_replication.recipes.prime_rl import substrate\n"
    code += "asyncio.run(substrate._run(pathlib.Path(sys.argv[1]), sys.argv[2:]))"
    run = subprocess.Popen([sys.executable, "-c", code, tmp_path / "rl.toml", *search])
    try:
        left = started()
    finally:
        run.kill()
        run.wait()
    until(lambda: is_gone(left))


@pytest.mark.slow
def test_prime_rl_ends_when_the_run_is_cancelled(tmp_path, started):
    search = prime_rl(tmp_path)

    async def cancelled():
        run = asyncio.create_task(substrate._run(tmp_path / "rl.toml", search))
        left = await asyncio.to_thread(started)
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run
        return left

    assert is_gone(asyncio.run(cancelled()))


def test_the_signal_of_a_parents_death_is_the_one_asked_for():
    def asked(*sent):
        def told():
            linux.die_with_parent(*sent)

        code = "import ctypes; n = ctypes.c_int(); ctypes.CDLL(None).prctl(2, ctypes.byref(n)); print(n.value)"
        return int(subprocess.run([sys.executable, "-c", code], preexec_fn=told, capture_output=True, check=True).stdout)

    assert (asked(), asked(signal.SIGTERM)) == (signal.SIGKILL, signal.SIGTERM)


def test_a_library_that_crashes_in_forked_processes_is_no_matter(tmp_path):
    """Some set handlers for forks, or hold locks in other threads."""
    code = f"""
import os, signal, sys, time
from pathlib import Path
os.register_at_fork(after_in_child=lambda: os.kill(os.getpid(), signal.SIGSEGV))
from composer_replication.sandbox.program import RunningProgram
with RunningProgram([sys.executable, "-c", "print('here')"], log=Path({str(tmp_path / "log")!r}), environment={{}}) as program:
    while (code := program.poll()) is None:
        time.sleep(0.05)
sys.exit(code)
"""
    done = subprocess.run([sys.executable, "-c", code], check=False, cwd=Path(__file__).parents[2])
    assert (done.returncode, (tmp_path / "log").read_text()) == (0, "here\n")


def test_nothing_starts_for_a_process_that_has_ended(tmp_path):
    guard = [sys.executable, "-m", "composer_replication.sandbox.program", "1", "1"]
    ended = subprocess.run([*guard, sys.executable, "-c", f"open({str(tmp_path / 'sign')!r}, 'w')"], check=False)
    assert ended.returncode == 128 + signal.SIGTERM
    assert not (tmp_path / "sign").exists()
