"""A verifiers taskset (its v1 interface, verifiers 0.4): any harness works in any runtime, and our grader judges what is left.

The tree of the task is put into the runtime's working directory, the harness runs its agent there, and the tree that is found
afterwards is graded in a sandbox of ours: fresh tree, allow-listed files only. verifiers' `subprocess` runtime is no isolation
at all: the AGENT's commands run as the user who evaluates, and can read the host's files, the tasks' solutions among them. Use
it for agents you trust, and a container runtime (`docker`, `podman`, `prime`, ...) for others.
"""

from __future__ import annotations

import asyncio
import io
import tarfile
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from composer_replication.envs.coding import SYSTEM_PROMPT
from composer_replication.envs.suite import TaskSuite, shared_suite
from composer_replication.errors import MissingExtraError, SandboxError
from composer_replication.sandbox import SandboxKind
from composer_replication.sandbox.changes import LITTER
from composer_replication.sandbox.grading import grade
from composer_replication.tasks.files import tree_files
from composer_replication.tasks.store import Task
from composer_replication.types import Unscored

try:
    import verifiers.v1 as vf
except ModuleNotFoundError as error:
    raise MissingExtraError(
        "the verifiers face needs verifiers, which is not installed", fix="pip install 'composer-replication[verifiers]'"
    ) from error

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["CodingTaskset"]

_ARCHIVE = ".composer-tree.tar"
_MOST_BYTES = 256 << 20
_LARGEST_FILE = 4 << 20


class CodingTaskConfig(vf.TaskConfig):
    """`--env.taskset.task.*`."""

    sandbox: SandboxKind = "auto"
    """Where the tests run while a workspace is graded."""
    python: Path | None = None
    """Runs the tests; the interpreter the tasks were built with when None."""


class CodingTasksetConfig(vf.TasksetConfig):
    """`--env.taskset.*`."""

    tasks: Path = Path("tasks")
    """Folder of tasks, as `composer tasks build` writes it."""
    task: CodingTaskConfig = CodingTaskConfig()


class CodingData(vf.TaskData):
    """What travels with a rollout."""

    folder: str
    task_id: str


class CodingTask(vf.Task[CodingData, vf.State, CodingTaskConfig]):
    """One task: its tree in, the harness's tree out, our verdict."""

    @property
    def key(self) -> str:
        """The same wherever the folder of tasks stands."""
        task_id: str = self.data.task_id
        return task_id

    async def setup(self, trace: vf.Trace, runtime: vf.Runtime) -> None:
        """Put the task's tree into the runtime's working directory."""
        del trace
        await runtime.write(_ARCHIVE, await asyncio.to_thread(_packed, self._task.repo))
        await _run(runtime, "tar", "-xf", _ARCHIVE)
        await _run(runtime, "rm", "-f", _ARCHIVE)

    @vf.reward(weight=1.0)
    async def tests_pass(self, runtime: vf.Runtime) -> float:
        """Our grader's verdict on the tree as it is now.

        Raises:
            SandboxError: our sandbox broke; verifiers then records an error and no reward.
        """
        excluded = [f"--exclude={name}" for name in sorted(LITTER | {_ARCHIVE})]
        await _run(runtime, "tar", "-cf", _ARCHIVE, *excluded, ".")
        archive = await runtime.read(_ARCHIVE, max_bytes=_MOST_BYTES)
        return await asyncio.to_thread(lambda: self._grade_changes(_changes(archive, self._task)))

    async def validate(self, runtime: vf.Runtime) -> bool:
        """Whether the task's own solution scores 1 (0 where the task is impossible, and nothing is rewarded).

        That the untouched tree does not is a check of verifiers' own.
        """
        del runtime
        wanted = 0.0 if self._task.spec.impossible else 1.0
        return await asyncio.to_thread(self._grade_changes, self._task.gold_files()) == wanted

    @property
    def _suite(self) -> TaskSuite:
        return shared_suite(Path(self.data.folder), self.config.sandbox, self.config.python)

    @property
    def _task(self) -> Task:
        return self._suite.task(self.data.task_id)

    def _grade_changes(self, changes: Mapping[str, bytes | None]) -> float:
        """Raises SandboxError when the box broke."""
        suite, task = self._suite, self._task
        report = grade(task.spec, task.repo, changes, sandbox=suite.sandbox, python=suite.python)
        if isinstance(report.reward, Unscored):
            raise SandboxError(report.reward.reason)
        return report.reward


class CodingTaskset(vf.Taskset[CodingTask, CodingTasksetConfig]):
    """The tasks of a folder: `--env.taskset.id composer_tasks --env.taskset.tasks DIR`."""

    def load(self) -> Iterable[CodingTask]:
        """Every task, in order of name. Raises as `TaskSuite` does."""
        folder = self.config.tasks.absolute()
        suite = shared_suite(folder, self.config.task.sandbox, self.config.task.python)
        for number, task in enumerate(suite.tasks):
            spec = task.spec
            data = CodingData(
                idx=number,
                name=spec.task_id,
                prompt=spec.instruction,
                system_prompt=SYSTEM_PROMPT,
                folder=str(folder),
                task_id=spec.task_id,
            )
            yield CodingTask(data, self.config.task)


async def _run(runtime: vf.Runtime, *argv: str) -> None:
    """Raises SandboxError when the command fails in the runtime."""
    result = await runtime.run(list(argv), {})
    if result.exit_code != 0:
        raise SandboxError(f"{' '.join(argv[:2])} failed in the runtime: {result.stderr.strip()[-300:]}")


def _packed(tree: Path) -> bytes:
    """The regular files of a tree as an uncompressed tar archive."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for path in tree_files(tree):
            if (tree / path).is_file() and not (tree / path).is_symlink():
                tar.add(tree / path, arcname=path, filter=_ownerless)
    return packed.getvalue()


def _ownerless(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


def _changes(archive: bytes, task: Task) -> dict[str, bytes | None]:
    """An archived tree as changes to the task's: nothing of it is ever written to this machine's disk.

    What is no regular file, or too large to be graded, counts as absent.
    """
    found: dict[str, bytes | None] = {}
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        for member in tar:
            content = tar.extractfile(member) if member.isreg() and member.size <= _LARGEST_FILE else None
            if content is not None:
                found[str(PurePosixPath(member.name))] = content.read()
    return {**dict.fromkeys(tree_files(task.repo)), **found}
