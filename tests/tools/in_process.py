"""`composer` in the process of the tests, which has paid for importing torch already; one that runs a model takes a process."""

from __future__ import annotations

import contextlib
import io
import sys
from pathlib import Path
from subprocess import CompletedProcess
from unittest.mock import patch

from click.testing import Result
from typer import Typer
from typer.testing import CliRunner

from composer_replication.cli import main


def composer_here(*words: str | Path, cwd: Path | None = None) -> CompletedProcess[str]:
    """What `subprocess.run(["composer", *words])` would return."""
    command = ["composer", *map(str, words)]
    out, err = io.StringIO(), io.StringIO()
    code = 0
    with (
        contextlib.chdir(cwd or "."),
        patch.object(sys, "argv", command),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            main()
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    return CompletedProcess(command, code, out.getvalue(), err.getvalue())


def invoke(app: Typer, *words: object) -> Result:
    """Run a command of `app` and return what it printed and its exit code; an error is raised before `main` words it."""
    result = CliRunner().invoke(app, [str(word) for word in words])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result
