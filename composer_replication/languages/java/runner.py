"""Runs the tests of a Java project in fresh sandboxes, and reads each id's outcome over the private channel."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, ClassVar

from composer_replication.languages.java.instrument import instrumented
from composer_replication.languages.java.settings import place_of
from composer_replication.languages.java.support import FOLDER, RECORDERS, support_files
from composer_replication.languages.programs import program_of
from composer_replication.languages.runner import LanguageRunner
from composer_replication.languages.tree_files import content_of, files_of
from composer_replication.sandbox.grading.pytest_run import CodeRunner, CoverageByTest, TestRun
from composer_replication.sandbox.protocol import ExecResult, Tree

_TEST_SHARE, _TEST_S = 0.25, 20.0
"""The share of the time for all tests that one may take; and the seconds that it has at least."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JavaRunner(LanguageRunner):
    """Runs the tests of a project. An id is `FILE::method`, with the names of nested classes before the method, and the number of
    a parameterised one behind it: `src/test/java/a/BTest.java::Inner.method[1]`."""

    language: ClassVar[str] = "java"
    least = MappingProxyType({"memory_mb": 3072, "processes": 256, "disk_mb": 1024})

    def run_with_coverage(self, tree: Tree, extra_args: Sequence[str] = ()) -> tuple[TestRun, CoverageByTest]:
        """Run all tests of an instrumented copy. What runs outside of a test counts for all tests of the file."""
        made = instrumented(self.sources(tree))
        run, observed = self.run_observed(replace(tree, changes={**tree.changes, **made.files}), {}, extra_args)
        ids = _ids_of(run.outcomes)
        coverage: dict[str, dict[int, set[str]]] = {}
        for line in observed or ():
            if not (isinstance(line, list) and len(line) == 3 and line[0] == "hits" and isinstance(line[2], list)):
                continue
            for number in line[2]:
                path, lines = made.lines.get(number, ("", ()))
                for row in lines:
                    coverage.setdefault(path, {}).setdefault(row, set()).update(ids.get(line[1], ()))
        return run, {path: {n: frozenset(ids) for n, ids in lines.items() if ids} for path, lines in coverage.items()}

    def run_observed(self, tree: Tree, observer: Mapping[str, Any], extra_args: Sequence[str] = ()) -> tuple[TestRun, Any]:
        """Run all tests of an instrumented tree, and return the records that its code wrote."""
        return CodeRunner.run_observed(self, tree, {"record": True, **observer}, extra_args)

    def sources(self, tree: Tree) -> dict[str, bytes]:
        """Return the code of a tree. Raises SandboxError when the base cannot be read."""
        return {path: content_of(tree, path) for path in files_of(tree) if place_of(path) == "main"}

    def _drive(
        self, tree: Tree, test_ids: Sequence[str], extra_args: Sequence[str] = (), *, mark: str = "", **options: Any
    ) -> tuple[ExecResult, dict[str, Any] | None]:
        record = bool((options.pop("observer", None) or {}).get("record"))
        request = {
            **{"twice": False, "record": record, "mark": mark or secrets.token_hex(8)},
            **{"ids": list(test_ids), "extra": list(extra_args), "support": support_files()},
            **{"recorders": list(RECORDERS) if record else [], "all_s": self.limits.wall_s},
            **{"test_s": max(_TEST_S, self.limits.wall_s * _TEST_SHARE), **options},
        }
        program = program_of(FOLDER, "settings", "toolchain", "driver")
        result, answer = self.ask(tree, program, request, {}, judged=bool(test_ids))
        return result, answer if isinstance(answer, dict) else None


def _ids_of(test_ids: Iterable[str]) -> dict[str, set[str]]:
    """Return ids by themselves, and all of a file by its path."""
    found: dict[str, set[str]] = {}
    for test_id in test_ids:
        for key in (test_id, test_id.partition("::")[0]):
            found.setdefault(key, set()).add(test_id)
    return found
