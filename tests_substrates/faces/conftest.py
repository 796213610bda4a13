"""Tasks built here, for every framework; and other libraries may warn about themselves."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from composer_replication.tasks.build import build_tasks
from composer_replication.tasks.folders import load_tasks
from composer_replication.tasks.report import BuildOptions

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
ROOT = Path(__file__).resolve().parents[2]
PROJECT = ROOT / "composer_replication" / "quickstart" / "projects" / "orchard"
DOCS = ROOT / "docs"


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("filterwarnings", "default")


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """A folder of three tasks."""
    out = tmp_path_factory.mktemp("built") / "tasks"
    report = build_tasks(str(PROJECT), out, BuildOptions(trivial=True, max_tasks=3, packages=("orchard/grafts.py",), jobs=1))
    assert len(report.tasks) == 3
    return out


@pytest.fixture(scope="session")
def tasks(folder):
    return load_tasks(folder)


@pytest.fixture
def documented():
    """The Python that docs/environments.md shows first below a heading."""

    def below(heading):
        section = (DOCS / "environments.md").read_text("utf-8").partition(f"\n## {heading}\n")[2]
        return textwrap.dedent(re.search(r"(?:^(?: {4}.*)?\n)*^ {4}.*\n", section, re.MULTILINE)[0])

    return below


@pytest.fixture
def resumes(tmp_path):
    """Train a run file of three steps, and again, killed after the first checkpoint and resumed: the same last step."""
    from composer_replication.api.runs import load_run  # these need torch, which the environment of Harbor does without
    from composer_replication.loss.forward.models import save_policy
    from composer_replication.quickstart.policy import tiny_model, tiny_tokenizer

    tokenizer = tiny_tokenizer()
    save_policy(tiny_model(tokenizer, 0, hidden=32, layers=1), tokenizer, tmp_path / "policy")

    def both(run_file, *options):
        command = [sys.executable, "-c", "from composer_replication.cli import main; main()", "train", str(run_file)]
        command += [
            "--model.path",
            str(tmp_path / "policy"),
            "--model.device",
            "cpu",
            "--out",
            str(tmp_path),
            "--threads",
            "1",
            *options,
        ]
        subprocess.run([*command, "--name", "whole"], check=True, capture_output=True)
        with subprocess.Popen([*command, "--name", "part"], stdout=subprocess.DEVNULL) as killed:
            while not (tmp_path / "part" / "ckpt" / "main" / "step_00001" / "MANIFEST.sha256").exists():
                assert killed.poll() is None
            killed.kill()
        assert killed.returncode == -signal.SIGKILL, "it had ended by itself"
        subprocess.run([*command, "--name", "part", "--resume"], check=True, capture_output=True)
        runs = [load_run(tmp_path / name) for name in ("whole", "part")]
        assert [max(row["step"] for row in run.metrics) for run in runs] == [3, 3]
        turns = [[row["trajectory"].turns for row in run.trajectories(step=3)] for run in runs]
        assert turns[0] == turns[1]

    return both
