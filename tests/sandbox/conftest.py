"""Boxes to try things in: `box` is every isolating kind this machine allows, `any_box` the unsafe one as well."""

from __future__ import annotations

import json
import sys
import textwrap
from pathlib import Path

import pytest

from composer_replication.sandbox import Command, Ending, ExecResult, Limits, Sandbox, Tree, open_sandbox
from composer_replication.sandbox.opening import available
from composer_replication.sandbox.request import WARM_FLAGS

PYTHON = Path(sys.executable)
ISOLATING = available()
EVERY = (*ISOLATING, "unsafe-subprocess")


@pytest.fixture(params=ISOLATING)
def box(request) -> Sandbox:
    return open_sandbox(request.param)


@pytest.fixture(params=EVERY)
def any_box(request) -> Sandbox:
    return open_sandbox(request.param)


@pytest.fixture
def base(tmp_path) -> Path:
    folder = tmp_path / "base"
    (folder / "pkg").mkdir(parents=True)
    (folder / "pkg" / "old.py").write_text("old")
    (folder / "keep.txt").write_text("keep")
    (folder / "script.sh").write_text("#!/bin/sh\necho ran\n")
    (folder / "script.sh").chmod(0o755)
    return folder


def run_code(
    sandbox: Sandbox, base: Path, code: str, *arguments: str, changes=None, python: Path = PYTHON, warm=False, **limits
) -> ExecResult:
    flags = WARM_FLAGS if warm else ("-B", "-S" if python == PYTHON else "-s", "-c")
    argv = (str(python), *flags, textwrap.dedent(code), *arguments)
    limits = {"wall_s": 60.0, "disk_mb": 32, **limits}
    return sandbox.run(Tree(base=base, changes=changes or {}), Command(argv=argv, python=python, limits=Limits(**limits)))


def run_for_answer(sandbox: Sandbox, base: Path, code: str, *arguments: str, **options):
    """What the program writes to the channel as JSON."""
    result = run_code(sandbox, base, code, *arguments, **options)
    assert (result.ending, result.returncode) == (Ending.EXITED, 0), result
    return json.loads(result.channel)


@pytest.fixture
def execute():
    """`execute(sandbox, base, code, *arguments, changes=, python=, warm=, **limits)` runs Python code in a box."""
    return run_code


@pytest.fixture
def answer():
    """`execute`, for what the program writes to the channel as JSON."""
    return run_for_answer
