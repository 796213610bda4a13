"""A feature-deletion task."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from composer_replication.types.held_out_checks import HeldOutChecks

InstructionStyle: TypeAlias = Literal["terse", "full", "issue", "ambiguous"]
"""How much an instruction tells: names alone; also signatures, docstrings, tests and pages; the same as a person would write an
issue; or neither names nor signatures."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deletion:
    """One function or method whose body was removed; its name and signature stay."""

    path: str
    """POSIX path relative to the repository root."""
    qualname: str
    """Dotted name inside the module, e.g. `Basket.total`."""
    lines: int
    """Number of source lines removed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSpec:
    """A feature-deletion task: a repository without a feature, and the tests that come back with it."""

    task_id: str
    source: str
    """Origin of the repository: a folder, a version on an index such as `pypi:NAME==VERSION`, or a git URL with its commit."""
    source_digest: str
    """SHA-256 over the pristine tree (paths and contents), which distinguishes two builds."""
    instruction: str
    """The task given to the agent."""
    deleted: tuple[Deletion, ...]
    fail_to_pass: tuple[str, ...]
    """Ids of tests (`path::name`) that fail in the task's tree and pass with the gold code."""
    pass_to_pass: tuple[str, ...]
    """Ids of tests that pass in both; breaking one costs the reward."""
    editable: tuple[str, ...]
    """The allow list: glob patterns of source files that grading copies from a workspace. Never tests, never configuration."""
    python_path: tuple[str, ...] = (".",)
    """Folders, relative to the root, put on `sys.path` for the tests."""
    language: str = "python"
    """Name of the language that knows how to run its tests (`sandbox.grading.languages`)."""
    test_timeout_s: float = 60.0
    """Wall-clock limit of one run of all the task's tests."""
    hidden: HeldOutChecks = field(default_factory=HeldOutChecks)
    """Additional checks of the grader; never shown to the agent."""
    tests_in_sources: bool = False
    """Tests may lie in editable files: the runner of its language takes those of the task's tree, whatever work makes of them."""
    impossible: bool = False
    """A visible test contradicts itself: no work is rewarded, and passing is a cheat alarm. Never shown to the agent."""

    @property
    def forgeable(self) -> bool:
        """Return whether the held-out programs, if there are any, do not tell the feature from a trivial body: what else there is
        are tests that share an interpreter with the code they test."""
        return bool(self.hidden.weakness) and not self.impossible
