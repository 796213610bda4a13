"""Runs the tests of a Go module, each in a fresh sandbox, and reads each id's outcome over the private channel."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from composer_replication.languages.programs import program_of
from composer_replication.sandbox.grading.pytest_run import CodeRunner, TestRun
from composer_replication.sandbox.protocol import ExecResult, Tree

_ENVIRONMENT = {"CI": "1"}
_MEMORY_MB, _PROCESSES, _DISK_MB = 3072, 128, 1024
"""What compiling takes, at least; threads count as processes."""


FOLDER = Path(__file__).parent
"""Where the texts of programs are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GoRunner(CodeRunner):
    """Runs the tests of a Go module. An id is `FOLDER/FILE_test.go::TestName`; subtests belong to their test."""

    language: ClassVar[str] = "go"

    def __post_init__(self) -> None:
        most = self.limits.at_least(memory_mb=_MEMORY_MB, processes=_PROCESSES, disk_mb=_DISK_MB)
        object.__setattr__(self, "limits", most)

    def run(self, tree: Tree, test_ids: Sequence[str], extra_args: Sequence[str] = (), *, watched: Sequence[str] = ()) -> TestRun:
        """Run the tests named by `test_ids` (all when empty). `watched` has no meaning here: there are no audit events."""
        del watched
        return CodeRunner.run(self, tree, test_ids, extra_args)

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

    def why_nothing_ran(self, tree: Tree, extra_args: Sequence[str]) -> list[str]:
        """Return nothing: what the compiler says of a package is among the run's errors."""
        del tree, extra_args
        return []
