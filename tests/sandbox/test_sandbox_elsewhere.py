"""The tests of boxes again: with and without root, with and without bubblewrap, and where user namespaces are refused (a stock
container)."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from composer_replication.sandbox.opening import available

HERE = Path(__file__).parent
NO_UNSHARE, SYSTEM_CALLS = (HERE.parent / "tools" / name for name in ("no_unshare.py", "system_calls.py"))
NOBODY = ("setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups")
ROOT = os.geteuid() == 0
FILES = ("test_sandbox_containment.py", "test_sandbox_kernel.py", "test_sandbox_running.py")
SUMMARY = """
from composer_replication.sandbox import open_sandbox
from composer_replication.sandbox.opening import available
print(*available())
print(open_sandbox().isolation.summary())
"""


def link(source: str, target: str) -> str:
    """A hard link where the file system allows it, else a copy."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
    return target


@pytest.fixture(scope="module")
def elsewhere() -> Iterator[Path]:
    """A folder anybody can read: `bin/python` and its library, `packages` to put on PYTHONPATH, the tests, and two to be PATH."""
    top = Path(tempfile.mkdtemp(prefix="composer-elsewhere-"))
    top.chmod(0o755)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    (top / "bin").mkdir()
    link(os.path.realpath(sys.executable), str(top / "bin" / "python"))
    unneeded = shutil.ignore_patterns("site-packages", "dist-packages", "test", "idlelib", "tkinter", "ensurepip")
    shutil.copytree(Path(sys.base_prefix, "lib", version), top / "lib" / version, ignore=unneeded, copy_function=link)
    for name in ("pytest", "_pytest", "pluggy", "iniconfig", "packaging", "pygments", "composer_replication"):
        found = Path(importlib.util.find_spec(name).origin).parent
        ignored = shutil.ignore_patterns("__pycache__", "projects")
        shutil.copytree(found, top / "packages" / name, ignore=ignored, copy_function=shutil.copyfile)
    shutil.copyfile(importlib.util.find_spec("py").origin, top / "packages" / "py.py")
    shutil.copyfile(SYSTEM_CALLS, top / "packages" / SYSTEM_CALLS.name)
    (top / "tools").mkdir()
    for name in ("conftest.py", *FILES):
        shutil.copyfile(HERE / name, top / name)
    shutil.copyfile(NO_UNSHARE, top / "tools" / "no_unshare.py")
    for folder, programs in (("with-bwrap", ("setpriv", "bwrap")), ("without-bwrap", ("setpriv",))):
        (top / folder).mkdir()
        for program in filter(shutil.which, programs):
            (top / folder / program).symlink_to(shutil.which(program))
    yield top
    shutil.rmtree(top)


class Scenario(NamedTuple):
    nobody: bool
    refused: bool
    """User namespaces are."""
    bwrap: bool
    """It is on PATH."""
    reachable: bool
    """The interpreter is one that anybody can reach."""

    @property
    def name(self) -> str:
        user = "nobody" if self.nobody else "root and a user per box" if ROOT and self.reachable else "this user"
        lacking = [what for what, lacks in (("namespaces", self.refused), ("bwrap", not self.bwrap)) if lacks]
        return user + (f" without {' and '.join(lacking)}" if lacking else "")


SCENARIOS = [
    Scenario(nobody, refused, bwrap, reachable=nobody)
    for nobody in ((False, True) if ROOT else (False,))
    for refused in (False, True)
    for bwrap in ((False, True) if shutil.which("bwrap") else (False,))
    if nobody or refused or bwrap != bool(shutil.which("bwrap"))  # the rest is what the files test by themselves
]
if ROOT:
    SCENARIOS.append(Scenario(nobody=False, refused=True, bwrap=False, reachable=True))


def in_gate(scenario: Scenario) -> bool:
    """Whether it is tried before each merge: of nobody's the one with most kinds of boxes, of root's the one with fewest."""
    most = not scenario.refused and scenario.bwrap == bool(shutil.which("bwrap"))
    return not ROOT or (most if scenario.nobody else scenario.reachable)


everywhere = pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)


def command(elsewhere: Path, scenario: Scenario, *arguments: str) -> tuple[list[str], dict[str, str]]:
    python = str(elsewhere / "bin" / "python") if scenario.reachable else sys.executable
    argv = [*(NOBODY if scenario.nobody else ()), python]
    if scenario.refused:
        argv += [str(elsewhere / "tools" / "no_unshare.py"), python]
    path = str(elsewhere / ("with-bwrap" if scenario.bwrap else "without-bwrap"))
    environment = {"PATH": path, "PYTHONPATH": str(elsewhere / "packages"), "PYTHONDONTWRITEBYTECODE": "1"}
    return [*argv, *arguments], environment


@everywhere
def test_auto_picks_the_strongest_left(elsewhere, scenario):
    argv, environment = command(elsewhere, scenario, "-c", SUMMARY)
    done = subprocess.run(argv, env=environment, cwd=elsewhere, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    kinds, summary = done.stdout.splitlines()
    gone = {"namespaces": scenario.refused, "bubblewrap": scenario.refused or not scenario.bwrap, "landlock": False}
    assert kinds.split() == [kind for kind in available() if not gone[kind]]
    assert summary.startswith(f"{kinds.split()[0]}: no ")
    if scenario.refused:
        assert "namespaces refused: " in summary
        assert "unshare: Operation not permitted" in summary
        assert ("bubblewrap refused: bwrap is not installed" in summary) != scenario.bwrap
        if scenario.reachable:
            assert ("uid 65534 (one per sandbox" in summary) != scenario.nobody


@pytest.mark.slow
@pytest.mark.parametrize(
    "scenario",
    [pytest.param(it, id=it.name, marks=() if in_gate(it) else pytest.mark.nightly) for it in SCENARIOS],
)
@pytest.mark.long
def test_every_kind_of_box(elsewhere, scenario):
    options = (
        "-q",
        "-p",
        "no:cacheprovider",
        "--import-mode=importlib",
        "-W",
        "error",
        "-o",
        "markers=slow",
        f"--rootdir={elsewhere}",
    )
    argv, environment = command(elsewhere, scenario, "-m", "pytest", *options, *(str(elsewhere / name) for name in FILES))
    done = subprocess.run(argv, env=environment, cwd=elsewhere, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert " passed" in done.stdout
    assert "skipped" not in done.stdout
