"""The tests of boxes again, as other users and where user namespaces are refused (a stock container)."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from composer_replication.sandbox.opening import available

HERE = Path(__file__).parent
NO_UNSHARE = HERE.parent / "tools" / "no_unshare.py"
NOBODY = ("setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups")
ROOT = os.geteuid() == 0
FILES = ("test_sandbox_containment.py", "test_sandbox_running.py")
SUMMARY = "from composer_replication.sandbox import open_sandbox; print(open_sandbox().isolation.summary())"


def link(source: str, target: str) -> str:
    """A hard link where the file system allows it, else a copy."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
    return target


@pytest.fixture(scope="module")
def elsewhere() -> Iterator[Path]:
    """A folder anybody can read: `bin/python` and its library, `packages` to put on PYTHONPATH, the tests."""
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
    (top / "tools").mkdir()
    for name in ("conftest.py", *FILES):
        shutil.copyfile(HERE / name, top / name)
    shutil.copyfile(NO_UNSHARE, top / "tools" / "no_unshare.py")
    yield top
    shutil.rmtree(top)


SCENARIOS = {"this user without namespaces": (False, False, True)}
"""Name -> (as nobody, with the interpreter anybody can reach, under no_unshare)."""
if ROOT:
    SCENARIOS |= {
        "nobody": (True, True, False),
        "nobody without namespaces": (True, True, True),
        "root without namespaces and a user per box": (False, True, True),
    }


def command(elsewhere: Path, scenario: str, *arguments: str) -> tuple[list[str], dict[str, str]]:
    nobody, reachable, refused = SCENARIOS[scenario]
    python = str(elsewhere / "bin" / "python") if reachable else sys.executable
    argv = [*(NOBODY if nobody else ()), python]
    if refused:
        argv += [str(elsewhere / "tools" / "no_unshare.py"), python]
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(elsewhere / "packages"), "PYTHONDONTWRITEBYTECODE": "1"}
    return [*argv, *arguments], environment


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_auto_picks_the_strongest_left(elsewhere, scenario):
    argv, environment = command(elsewhere, scenario, "-c", SUMMARY)
    done = subprocess.run(argv, env=environment, cwd=elsewhere, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    refused = SCENARIOS[scenario][2]
    if refused or available() == ("landlock",):
        assert done.stdout.startswith("landlock: no sockets")
        assert "namespaces refused: " in done.stdout
        assert "unshare: Operation not permitted" in done.stdout or not refused
        own_uid = SCENARIOS[scenario] == (False, True, True)
        assert ("uid 65534 (one per box" in done.stdout) == own_uid
    else:
        assert done.stdout.startswith(("bubblewrap: no network", "namespaces: no network"))


@pytest.mark.slow
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_every_kind_of_box(elsewhere, scenario):
    options = ("-q", "-p", "no:cacheprovider", "--import-mode=importlib", "-W", "error", f"--rootdir={elsewhere}")
    argv, environment = command(elsewhere, scenario, "-m", "pytest", *options, *(str(elsewhere / name) for name in FILES))
    done = subprocess.run(argv, env=environment, cwd=elsewhere, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert " passed" in done.stdout
    assert "skipped" not in done.stdout
