from __future__ import annotations

from pathlib import Path

import typer
from typer.testing import CliRunner

from composer_replication.cli.report_cmd import report as report_command
from composer_replication.observe import RunDir
from composer_replication.types.errors import ConfigError


def test_the_command_rebuilds_the_report_and_prints_its_path(fake_run: RunDir, tmp_path: Path) -> None:
    app = typer.Typer()
    app.command()(report_command)
    done = CliRunner().invoke(app, [str(fake_run.path)])
    assert done.exit_code == 0
    assert done.stdout.strip() == str(fake_run.report_path)
    assert fake_run.report_path.stat().st_size > 100_000
    refused = CliRunner().invoke(app, [str(tmp_path / "nowhere")])
    assert isinstance(refused.exception, ConfigError)
