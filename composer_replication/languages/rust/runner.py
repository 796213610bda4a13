"""Runs the tests of a Rust project in fresh sandboxes, and reads each id's outcome over the private channel."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar

from composer_replication.languages.programs import program_of
from composer_replication.languages.runner import LanguageRunner
from composer_replication.languages.rust.inline_tests import has_tests
from composer_replication.languages.rust.instrument import InstrumentedCrates, modules_inside, noted, reported, with_own_tests
from composer_replication.sandbox.grading.pytest_run import CodeRunner, CoverageByTest, TestRun
from composer_replication.sandbox.protocol import ExecResult, Tree

FOLDER = Path(__file__).parent
"""Where the texts of programs are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RustRunner(LanguageRunner):
    """Runs the tests of a Rust project. An id is `FILE::module::name`, with the modules of that file."""

    language: ClassVar[str] = "rust"
    least = MappingProxyType({"memory_mb": 4096, "processes": 256, "disk_mb": 2048})

    def run_with_coverage(self, tree: Tree, extra_args: Sequence[str] = ()) -> tuple[TestRun, CoverageByTest]:
        """Run all tests of an instrumented copy, each in a process of its own, and note which blocks each runs."""
        mark = secrets.token_hex(8)
        made = noted(with_own_tests(tree), mark)
        run, observed = CodeRunner.run_observed(self, tree, {"made": made, "mark": mark}, extra_args)
        found: dict[str, dict[int, set[str]]] = {}
        for test_id, numbers in ((observed or {}).get("hits") or {}).items():
            for number in numbers:
                path, lines = made.lines.get(number, ("", ()))
                for line in lines:
                    found.setdefault(path, {}).setdefault(line, set()).add(test_id)
        return run, {path: {line: frozenset(ids) for line, ids in lines.items()} for path, lines in found.items()}

    def run_observed(self, tree: Tree, observer: Mapping[str, Any], extra_args: Sequence[str] = ()) -> tuple[TestRun, Any]:
        """Run all tests of an instrumented project (`made`, with its `mark`), and return what its code wrote down."""
        run, observed = CodeRunner.run_observed(self, tree, observer, extra_args)
        return run, (observed or {}).get("calls")

    def _drive(
        self, tree: Tree, test_ids: Sequence[str], extra_args: Sequence[str] = (), *, mark: str = "", **options: Any
    ) -> tuple[ExecResult, dict[str, Any] | None]:
        observer = options.pop("observer", None) or {}
        mark = str(observer.get("mark") or mark or secrets.token_hex(8))
        made: InstrumentedCrates = observer.get("made") or reported(with_own_tests(tree), mark)
        files = made.project.files
        tested = {path for path, source in files.items() if has_tests(source)}
        request = {
            **{"twice": False, "mark": mark, "ids": list(test_ids), "extra": list(extra_args)},
            "sources": sorted(made.project.sources),
            "files": {crate.root: sorted(tested & modules.keys()) for crate, modules in made.project.crates},
            "modules": {path: modules_inside(source) for path, source in files.items()},
            "crates": ",".join(sorted({crate.name for crate, _ in made.project.crates})) if observer.get("calls") else "",
            **{name: value for name, value in options.items() if name != "coverage"},
        }
        program = program_of(FOLDER, "settings", "toolchain", "driver")
        result, answer = self.ask(made.tree, program, request, {}, judged=bool(test_ids))
        return result, answer if isinstance(answer, dict) else None
