"""Runs the tests of a Go module, each in a fresh sandbox, and reads each id's outcome over the private channel."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar

from composer_replication.languages.programs import program_of
from composer_replication.languages.runner import LanguageRunner
from composer_replication.sandbox.grading.pytest_run import CodeRunner, TestRun
from composer_replication.sandbox.protocol import ExecResult, Tree

_ENVIRONMENT = {"CI": "1"}


FOLDER = Path(__file__).parent
"""Where the texts of programs are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GoRunner(LanguageRunner):
    """Runs the tests of a Go module. An id is `FOLDER/FILE_test.go::TestName`; subtests belong to their test."""

    language: ClassVar[str] = "go"
    least = MappingProxyType({"memory_mb": 3072, "processes": 128, "disk_mb": 1024})

    def run_observed(self, tree: Tree, observer: Mapping[str, Any], extra_args: Sequence[str] = ()) -> tuple[TestRun, Any]:
        """Run all tests of an instrumented tree, and return the records that its code wrote."""
        return CodeRunner.run_observed(self, tree, {"record": True, **observer}, extra_args)

    def _drive(
        self, tree: Tree, test_ids: Sequence[str], extra_args: Sequence[str] = (), *, mark: str = "", **options: Any
    ) -> tuple[ExecResult, dict[str, Any] | None]:
        record = bool((options.pop("observer", None) or {}).get("record"))
        request = {
            **{"coverage": False, "twice": False, "record": record, "mark": mark or secrets.token_hex(8)},
            **{"ids": list(test_ids), "extra": list(extra_args), **options},
        }
        program = program_of(FOLDER, "settings", "toolchain", "driver")
        result, answer = self.ask(tree, program, request, _ENVIRONMENT, judged=bool(test_ids))
        return result, answer if isinstance(answer, dict) else None
