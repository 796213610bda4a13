"""The base of runners of languages other than Python."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar

from composer_replication.sandbox.grading.pytest_run import CodeRunner, TestRun
from composer_replication.sandbox.protocol import Tree


@dataclass(frozen=True, slots=True, kw_only=True)
class LanguageRunner(CodeRunner):
    """Runs tests with a tool chain that needs more of a machine than an interpreter, and without audit events."""

    least: ClassVar[Mapping[str, int]] = MappingProxyType({})
    """Limits that the tool chain takes at least, by their names; threads count as processes."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "limits", self.limits.at_least(**self.least))

    def run(self, tree: Tree, test_ids: Sequence[str], extra_args: Sequence[str] = (), *, watched: Sequence[str] = ()) -> TestRun:
        """Run the tests named by `test_ids` (all when empty). `watched` has no meaning here: there are no audit events."""
        del watched
        return CodeRunner.run(self, tree, test_ids, extra_args)

    def why_nothing_ran(self, tree: Tree, extra_args: Sequence[str]) -> list[str]:
        """Return nothing: why code does not compile, or files cannot be loaded, is among the run's errors."""
        del tree, extra_args
        return []
