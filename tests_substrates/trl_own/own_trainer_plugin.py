"""A pytest plugin for TRL's own tests: local data sets in place of the hub's and, with COMPOSER_TRL_TRAINER=ours, our trainer.

It is loaded with `-p`, so that it patches TRL and datasets before the tests import names from them. What each test did goes to
the file that COMPOSER_TRL_OUTCOMES names, a line of JSON for each.
"""

from __future__ import annotations

import functools
import importlib.util
import json
import os
from pathlib import Path
from typing import Any

import datasets
import pytest
import torch
import trl
from local_datasets import TRAIN_ROWS, TRAIN_ROWS_OF, load_local
from trl import import_utils
from trl.trainer import grpo_trainer

_HUB = "trl-internal-testing/"
_load_dataset = datasets.load_dataset
_running = ""
"""The function of the test that runs."""


@functools.wraps(_load_dataset)
def load_dataset(path: str, name: str | None = None, *, split: str | None = None, streaming: bool = False, **rest: Any) -> Any:
    """Return a local data set for names of TRL's test organization, and whatever `datasets` returns for others."""
    if path.startswith(_HUB):
        rows = TRAIN_ROWS_OF.get(_running, TRAIN_ROWS)
        return load_local(path.removeprefix(_HUB), name, split, streaming=streaming, train_rows=rows)
    return _load_dataset(path, name, split=split, streaming=streaming, **rest)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Remember which test asks for a data set."""
    global _running
    _running = getattr(item, "originalname", item.name)


def _replace_trainer() -> None:
    from composer_replication.recipes.trl.composer_trainer import ComposerReplicationTrainer

    for module in (trl, trl.trainer, grpo_trainer):
        module.GRPOTrainer = ComposerReplicationTrainer


def _availability(name: str) -> Any:
    """Answer `trl.import_utils.is_X_available` where the installed TRL has no such function, as other versions have."""
    if name.startswith("is_") and name.endswith("_available"):
        package = name.removeprefix("is_").removesuffix("_available")
        return lambda: importlib.util.find_spec(package) is not None
    raise AttributeError(name)


def pytest_configure(config: pytest.Config) -> None:
    """Patch before the tests are collected."""
    torch.set_num_threads(1)
    datasets.load_dataset = load_dataset
    vars(import_utils)["__getattr__"] = _availability
    if os.environ["COMPOSER_TRL_TRAINER"] == "ours":
        _replace_trainer()
    config.pluginmanager.register(Recorder(Path(os.environ["COMPOSER_TRL_OUTCOMES"])))


class Recorder:
    """Writes the outcome of each test as it ends: passed, failed, skipped or xfailed, and the last line of why."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @pytest.hookimpl
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Write the call, or the phase that kept it from happening."""
        if report.when != "call" and report.passed:
            return
        self._write(report.nodeid, "xfailed" if hasattr(report, "wasxfail") and report.skipped else report.outcome, report)

    @pytest.hookimpl
    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Write a file that cannot be imported as one failed test."""
        if report.failed:
            self._write(report.nodeid, "failed", report)

    def _write(self, test: str, outcome: str, report: pytest.TestReport | pytest.CollectReport) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"test": test, "outcome": outcome, "why": _why(report)}) + "\n")


def _why(report: pytest.TestReport | pytest.CollectReport) -> str:
    if isinstance(report.longrepr, tuple):
        return str(report.longrepr[2]).removeprefix("Skipped: ")
    if crash := getattr(report.longrepr, "reprcrash", None):
        return str(crash.message)
    lines = str(report.longrepr or "").splitlines()
    return next((line.removeprefix("E ").strip() for line in reversed(lines) if line.startswith("E ")), "")
