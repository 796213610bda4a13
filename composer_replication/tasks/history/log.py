"""The commits of a branch, newest first, and which of them change code together with tests."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from composer_replication.languages.functions import Skipped
from composer_replication.sandbox.grading.test_files import below
from composer_replication.tasks.report import BuildOptions
from composer_replication.tasks.sources.layout import is_among_tests, is_example
from composer_replication.tasks.sources.run_git import Git, git_for
from composer_replication.types.errors import ConfigError, SourceError

_FORMAT = "%x00%H%x00%P%x00%cI%x00%B%x00"
"""Id, parents, date and message, each between zero bytes, which none of them holds; the names of files follow."""
_FIELDS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryCommit:
    """A commit against its first parent, so that the merge of a pull request is one change."""

    number: int
    """How many commits of the branch are newer."""
    sha: str
    parents: tuple[str, ...]
    date: str
    """When it was committed, in ISO 8601."""
    message: str
    paths: tuple[str, ...]
    """Files that it adds, changes or removes."""

    @property
    def key(self) -> str:
        """Its id."""
        return self.sha

    @property
    def subject(self) -> str:
        """The first line of its message."""
        return self.message.strip().partition("\n")[0].strip()


def read_history(repository: Path, options: BuildOptions) -> tuple[list[HistoryCommit], list[Skipped]]:
    """Return the commits from the clone's newest back along first parents that change code and tests, newest first, and why the
    others are no candidates.

    Args:
        options: of these, `commits`, `since`, `packages` and `tests` count.

    Raises:
        ConfigError: there is no revision `since`.
        SourceError: git cannot read the clone.
    """
    git = git_for(str(repository), str(repository), repository)
    span = f"{_resolved(git, options.since)}..HEAD" if options.since else "HEAD"
    most = () if options.commits is None else (f"--max-count={options.commits}",)
    how = ("--first-parent", "-m", "--no-renames", "--name-only", "--no-show-signature", "--no-color", "--encoding=UTF-8")
    said = git.run("-c", "core.quotePath=false", "log", *how, *most, f"--format={_FORMAT}", span, "--")
    candidates: list[HistoryCommit] = []
    skipped: list[Skipped] = []
    for commit in _commits(said):
        reason = _no_candidate(commit, options)
        if reason:
            skipped.append(Skipped(commit.sha, reason))
        else:
            candidates.append(commit)
    return candidates, skipped


def merged_subjects(repository: Path, commit: HistoryCommit) -> list[str]:
    """Return the subjects of the commits that a merge brings, oldest first; none of any other commit. Raises SourceError."""
    if len(commit.parents) < 2:
        return []
    git = git_for(str(repository), str(repository), repository)
    span = f"{commit.parents[0]}..{commit.sha}^2"
    how = ("--no-merges", "--reverse", "--no-show-signature", "--no-color", "--encoding=UTF-8", "--format=%s")
    return git.run("log", *how, span, "--").splitlines()


def _commits(said: str) -> Iterator[HistoryCommit]:
    """Yield what `git log` prints in `_FORMAT`."""
    fields = said.split("\0")[1:]
    for number, at in enumerate(range(0, len(fields) - _FIELDS + 1, _FIELDS)):
        sha, parents, date, message, names = fields[at : at + _FIELDS]
        paths = tuple(name for name in names.split("\n") if name)
        yield HistoryCommit(number=number, sha=sha, parents=tuple(parents.split()), date=date, message=message, paths=paths)


def _no_candidate(commit: HistoryCommit, options: BuildOptions) -> str:
    """Return why a commit is no candidate, by the names of its files; empty where it is one."""
    if not commit.parents:
        return "it has no parent"
    code = [path for path in commit.paths if path.endswith(".py") and not is_example(path, options.tests)]
    if not any(below(path, options.packages) if options.packages else True for path in code):
        return "it changes no Python file but tests, tools and examples"
    if not any(is_among_tests(path, options.tests) for path in commit.paths):
        return "it changes no tests"
    return ""


def _resolved(git: Git, revision: str) -> str:
    try:
        return git.run("rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}").strip()
    except SourceError as error:
        raise ConfigError(
            f"the history has no revision {revision!r}", fix="give --since a tag or a commit's id; no other branch is fetched"
        ) from error
