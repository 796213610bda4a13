"""Runs the tests of a JavaScript project in fresh sandboxes, and reads each id's outcome over the private channel."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, ClassVar

from composer_replication.languages.javascript.instrument import instrumented
from composer_replication.languages.javascript.layout import framework_in, is_source, is_test
from composer_replication.languages.javascript.support import FOLDER, support_files
from composer_replication.languages.programs import program_of
from composer_replication.languages.runner import LanguageRunner
from composer_replication.languages.tree_files import content_of, files_of
from composer_replication.sandbox.grading.pytest_run import CodeRunner, CoverageByTest, TestRun
from composer_replication.sandbox.grading.test_files import below
from composer_replication.sandbox.protocol import ExecResult, Tree

_FILE_SHARE = 0.25
"""Of the time for all tests, what the tests of one file may take."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JavaScriptRunner(LanguageRunner):
    """Runs the tests of a project. An id is `FILE::suite > test`, with a number where tests of a file have the same name."""

    language: ClassVar[str] = "javascript"
    least = MappingProxyType({"memory_mb": 3072, "processes": 256, "disk_mb": 1024})

    def run_with_coverage(self, tree: Tree, extra_args: Sequence[str] = ()) -> tuple[TestRun, CoverageByTest]:
        """Run all tests of an instrumented copy. What runs before any test of a file counts for all of them."""
        made = instrumented(self.sources(tree))
        run, observed = self.run_observed(replace(tree, changes={**tree.changes, **made.files}), {}, extra_args)
        ids = _ids_of(run.outcomes)
        coverage: dict[str, dict[int, set[str]]] = {}
        for line in observed or ():
            if isinstance(line, list) and len(line) == 4 and line[0] == "hit" and line[3] in made.lines:
                path, numbers = made.lines[line[3]]
                for number in numbers:
                    coverage.setdefault(path, {}).setdefault(number, set()).update(ids.get((line[1], line[2]), ()))
        return run, {path: {n: frozenset(ids) for n, ids in lines.items() if ids} for path, lines in coverage.items()}

    def run_observed(self, tree: Tree, observer: Mapping[str, Any], extra_args: Sequence[str] = ()) -> tuple[TestRun, Any]:
        """Run all tests of an instrumented tree, and return the records that its code wrote."""
        return CodeRunner.run_observed(self, tree, {"record": True, **observer}, extra_args)

    def sources(self, tree: Tree) -> dict[str, bytes]:
        """Return the code of a tree. Raises SandboxError when the base cannot be read."""
        return {path: content_of(tree, path) for path in files_of(tree) if is_source(path)}

    def _drive(
        self, tree: Tree, test_ids: Sequence[str], extra_args: Sequence[str] = (), *, mark: str = "", **options: Any
    ) -> tuple[ExecResult, dict[str, Any] | None]:
        record = bool((options.pop("observer", None) or {}).get("record"))
        roots = [root.rstrip("/") for root in extra_args if not root.startswith("-")]
        tests = sorted({i.partition("::")[0] for i in test_ids}) or [
            path for path in files_of(tree) if (below(path, roots) and is_test(path)) or path in roots
        ]
        request = {
            **{"twice": False, "record": record, "mark": mark or secrets.token_hex(8)},
            **{"ids": list(test_ids), "extra": list(extra_args), "files": tests, "framework": framework_in(tree.base, tests)},
            **{"support": support_files(), "all_s": self.limits.wall_s, "file_s": max(5, self.limits.wall_s * _FILE_SHARE)},
            **options,
        }
        program = program_of(FOLDER, "settings", "toolchain", "driver")
        result, answer = self.ask(tree, program, request, {}, judged=bool(test_ids))
        return result, answer if isinstance(answer, dict) else None


def _ids_of(test_ids: Iterable[str]) -> dict[tuple[str, str], set[str]]:
    """Return ids by file and the words of a test's name, and all of a file by no words."""
    found: dict[tuple[str, str], set[str]] = {}
    for test_id in test_ids:
        file, _, name = test_id.partition("::")
        words = re.sub(r" #\d+$", "", name).replace(" > ", " ")
        for key in ((file, ""), (file, words)):
            found.setdefault(key, set()).add(test_id)
    return found
