"""Options, progress and report of a build."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, TypeAlias

from composer_replication.languages.functions import Skipped
from composer_replication.sandbox import SandboxKind
from composer_replication.tasks.sources.credentials import Credential
from composer_replication.types import InstructionStyle
from composer_replication.types.errors import ConfigError

_FEATURE_SIZES = (2, 12)
BUILD_REPORT = "build.json"
"""The file of a build's folder that holds its `BuildReport`."""
BuildMode: TypeAlias = Literal["stub", "delete", "feature", "commits"]
_NOT_OF_COMMITS = (
    *("min_group_size", "group_size", "min_difficulty", "max_difficulty", "trivial", "instruction"),
    *("mutants", "kill_rate", "impossible", "keep_docstring"),
)
"""Options that say how features are deleted: a commit's task has none of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildOptions:
    """Options of a build."""

    max_tasks: int | None = None
    """Stop after this many validated tasks; a later build with more continues, and one with fewer keeps those there are."""
    mode: BuildMode = "stub"
    """`stub` replaces bodies; `delete` removes functions with their imports; `feature` removes in this way a function with those
    that it uses and only its tests reach; `commits` undoes what commits of a git source changed in the code, not in the tests."""
    commits: int | None = None
    """With mode `commits`: how many to look at, from the newest along first parents; all by default."""
    since: str = ""
    """With mode `commits`: look at none that this revision, a tag or a commit's id, already has."""
    min_group_size: int = 0
    group_size: int = 0
    """Fewest and most functions deleted together; sizes between them alternate. 0 stands for 1, and with `feature` for 2 and
    12."""
    min_difficulty: float = 0.0
    max_difficulty: float = 1.0
    """Bounds of the estimate (`difficulty_of`)."""
    trivial: bool = False
    """Keep also deletions of at most three lines without a branch, and of functions that have a twin in the code that stays: the
    same body but for a word or two."""
    instruction: InstructionStyle = "terse"
    mutants: int = 0
    """Wrong versions of a task's gold code that its tests are tried on."""
    kill_rate: float = 0.5
    """The share of them that the tests must tell from it."""
    licences: tuple[str, ...] = ()
    """SPDX expressions a project may be under; empty allows all."""
    benchmarks: tuple[Path, ...] = ()
    """Files that name repositories and patches to keep clear of (`Benchmarks`)."""
    allow_credentials: tuple[str, ...] = ()
    """Patterns of paths whose credentials are made up."""
    seed: int = 0
    """Seeds the candidates' order and the samples of pass-to-pass tests."""
    python: Path | None = None
    """The interpreter for the tests; this process's own by default."""
    install: bool = False
    """Make an environment with the project's declared dependencies in OUT/.venv and use that. What has no wheel is built in the
    sandbox, without network."""
    jobs: int = 2
    """Candidates validated at once."""
    timeout_s: float = 300.0
    """Limit of one run of the whole intact test suite, in seconds."""
    task_timeout_s: float = 60.0
    """Limit of one run of a task's tests, in seconds."""
    budget_s: float | None = None
    """No candidate is begun after this many seconds; building again continues."""
    pass_to_pass_cap: int = 50
    impossible: float = 0.0
    """Share of the tasks that are made impossible, as an alarm against cheating; 0.01 is enough."""
    forgeable: bool = False
    """Keep candidates whose held-out programs a trivial body satisfies, or that have none: a program written for the grader can
    forge their verdict."""
    keep_docstring: bool = True
    language: str = ""
    """The language to build tasks in, by name; by default that of the package index, or what the files show."""
    packages: tuple[str, ...] = ()
    """Paths of packages or modules to delete from; guessed when empty."""
    tests: tuple[str, ...] = ()
    """Paths of tests; guessed when empty."""
    sandbox: SandboxKind = "auto"

    def __post_init__(self) -> None:
        fewest, most = _FEATURE_SIZES if self.mode == "feature" else (1, 1)
        object.__setattr__(self, "min_group_size", self.min_group_size or min(fewest, self.group_size or fewest))
        object.__setattr__(self, "group_size", self.group_size or max(most, self.min_group_size))
        self._check_mode()
        for name in ("min_group_size", "group_size", "jobs", "max_tasks", "commits"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{name} is {value}", fix="give a number of at least 1")
        for name in ("timeout_s", "task_timeout_s", "budget_s"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ConfigError(f"{name} is {value}", fix="give a number of seconds above 0")
        if self.min_group_size > self.group_size:
            raise ConfigError(
                f"min_group_size is {self.min_group_size} and group_size {self.group_size}", fix="give the smaller number first"
            )
        if not 0 <= self.min_difficulty <= self.max_difficulty <= 1:
            raise ConfigError(
                f"the difficulty is to lie between {self.min_difficulty} and {self.max_difficulty}",
                fix="give two numbers between 0 and 1, the smaller first",
            )
        for name in ("pass_to_pass_cap", "mutants"):
            if getattr(self, name) < 0:
                raise ConfigError(f"{name} is {getattr(self, name)}", fix="give 0 or more")
        if not 0 <= self.kill_rate <= 1:
            raise ConfigError(f"kill_rate is {self.kill_rate}", fix="give a share between 0 and 1")
        if not 0 <= self.impossible <= 1:
            raise ConfigError(f"impossible is {self.impossible}", fix="give a share between 0 and 1")

    @property
    def runs_programs(self) -> bool:
        """Whether pip or git runs also where the source is a folder."""
        return self.install or self.mode == "commits"

    def _check_mode(self) -> None:
        """Raise ConfigError for options that the mode does not take."""
        if self.mode != "commits":
            if self.commits is not None or self.since:
                name = "since" if self.since else "commits"
                raise ConfigError(f"{name} says which commits are undone, and the mode is {self.mode}", fix="set mode = commits")
            return
        defaults = {field.name: field.default for field in fields(self)} | {"min_group_size": 1, "group_size": 1}
        for name in _NOT_OF_COMMITS:
            if getattr(self, name) != defaults[name]:
                raise ConfigError(f"{name} says how features are deleted, and the mode is commits", fix=f"leave {name} out")

    @property
    def shaping(self) -> dict[str, Any]:
        """The options that determine the tasks."""
        free = {"max_tasks", "jobs", "budget_s", "sandbox", "timeout_s"}
        free |= set() if self.mode == "commits" else {"commits", "since"}
        return {name: value for name, value in asdict(self).items() if name not in free}


@dataclass(frozen=True, slots=True)
class BuildEvent:
    """Progress: a stage began or moved on."""

    stage: str
    """`fetching`, `installing`, `testing`, `searching`, `validating`."""
    done: int = 0
    total: int = 0
    """Candidates decided and in all; 0 where the stage has no parts. Fewer are needed when `wanted` tasks come first."""
    tasks: int = 0
    wanted: int | None = None
    dropped: int = 0
    last: str = ""
    """The candidate decided last, and the task's id or why it is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildReport:
    """The result of a build. `OUT/build.json` (`BUILD_REPORT`) holds the same."""

    source: str
    source_digest: str
    licence: str
    """`licence_of` the project."""
    python: str
    """The interpreter of the tests, but for those of `pythons`."""
    isolation: str
    tasks: tuple[str, ...]
    """Ids in order of candidates; each is a folder of OUT."""
    dropped: tuple[Skipped, ...]
    """Candidates that were tried and are not tasks, and why."""
    skipped: tuple[Skipped, ...]
    """Functions that were not tried, and why."""
    candidates: int
    """All there are; a build that stopped early has not tried every one."""
    tests_passing: int
    tests_failing: int
    tests_flaky: int
    stopped: str
    """Why candidates are left: `max_tasks`, `budget`, or empty."""
    forgeable: int
    """Number of tasks whose reward can be forged."""
    impossible: int
    """Number of tasks that were made impossible. It is less than the share asked for where no test of a task can contradict
    itself."""
    seconds: float
    """Wall-clock seconds of this call."""
    pythons: Mapping[str, str] = field(default_factory=dict)
    """By id, interpreters of tasks that have another one: paths, relative to OUT where they lie there."""
    credentials: tuple[Credential, ...] = ()
    """Places in the project's files that look like credentials, and are therefore in every task's tree."""
    failing: tuple[str, ...] = ()
    """The project's tests that fail before anything is deleted, as `id: why`."""
    notes: tuple[str, ...] = ()
    """What is missing of the hidden checks of all tasks, and why."""
    not_confined: str = ""
    """What was left open to the programs that fetched the source and installed its dependencies."""
    options: dict[str, Any] = field(default_factory=dict)

    def reasons(self) -> list[tuple[str, int]]:
        """Count the candidates and functions dropped or skipped for each reason, most frequent first."""
        return Counter(entry.reason for entry in (*self.dropped, *self.skipped)).most_common()


Progress: TypeAlias = Callable[[BuildEvent], None]
