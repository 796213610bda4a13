"""A verifiers taskset (its v1 interface, verifiers 0.4): any harness works in any runtime, and our grader judges what is left.

The tree of the task is put into the runtime's working directory, the harness runs its agent there, and the tree that is found
afterwards is graded in a sandbox of ours: fresh tree, allow-listed files only. verifiers' `subprocess` runtime gives no isolation
at all: the AGENT's commands run as the user who evaluates, and can read the host's files, the tasks' solutions among them. Use
it for agents you trust, and a container runtime (`docker`, `podman`, `prime`, ...) for others. There the agent has no network,
and an image with what the tests need: what it lacks is installed before the agent comes, while verifiers leaves the network open.
"""

from __future__ import annotations

import asyncio
import io
import tarfile
import uuid
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Literal

from composer_replication.envs.coding import SYSTEM_PROMPT
from composer_replication.envs.suite import TaskSuite, shared_suite
from composer_replication.sandbox import SandboxKind
from composer_replication.sandbox.changes import LITTER
from composer_replication.sandbox.opening import remote_python
from composer_replication.tasks.exchange.images import PYTHON_IMAGE, build_name, image_named, install_command, needs_tools
from composer_replication.tasks.exchange.pins import Pins, pins_of, python_version
from composer_replication.tasks.files import tree_files
from composer_replication.tasks.store import Task
from composer_replication.types import GradeReport, Unscored
from composer_replication.types.errors import ConfigError, MissingExtraError, SandboxError

try:
    import verifiers.v1 as vf
except ModuleNotFoundError as error:
    raise MissingExtraError(
        "the verifiers face needs verifiers, which is not installed", fix="pip install 'composer-replication[verifiers]'"
    ) from error

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_ARCHIVE = ".composer-tree.tar"
_MOST_BYTES, _MOST_MEMBERS = 256 << 20, 100_000
"""Limits on what is taken out of a runtime, packed and unpacked: the agent may have made the archive itself."""
_LARGEST_FILE = 4 << 20
_PACKING_S = 600.0
_NOT_STARTED = (126, 127)
"""Exit statuses of a shell or container engine for a command that cannot be started."""


class CodingTaskConfig(vf.TaskConfig):
    """`--env.taskset.task.*`."""

    sandbox: SandboxKind = "auto"
    """The sandbox in which tests run while a workspace is graded."""
    python: Path | None = None
    """Runs the tests; the interpreter the tasks were built with when None."""
    forgeable: bool = False
    """Take also tasks whose reward can be forged."""


class CodingTasksetConfig(vf.TasksetConfig):
    """`--env.taskset.*`."""

    tasks: Path = Path("tasks")
    """Folder of tasks, as `composer tasks build` writes it."""
    task: CodingTaskConfig = CodingTaskConfig()
    network: Literal["closed", "open"] | None = None
    """The agent's network. None closes it in a container, and leaves it as it is in the runtime `subprocess`, which cannot."""
    image: str | None = None
    """Image of the agent's container: `{build}` in it stands for the name of the task's build, `{python}` for the version of its
    interpreter. None takes the runtime's own where that names one, and otherwise the image of this version of Python."""


class CodingData(vf.TaskData):
    """The data that travel with a rollout."""

    folder: str
    task_id: str
    network: Literal["closed", "open"] | None = None


class CodingTask(vf.Task[CodingData, vf.State, CodingTaskConfig]):
    """One task: its tree in, the harness's tree out, our verdict."""

    @property
    def key(self) -> str:
        """The same wherever the folder of tasks stands."""
        task_id: str = self.data.task_id
        return task_id

    async def setup(self, trace: vf.Trace, runtime: vf.Runtime) -> None:
        """Put the task's tree into the runtime's working directory, and into a container what the tests need besides.

        Raises:
            ConfigError: the agent would have a network that nobody asked for.
            SandboxError: a command failed in the runtime.
        """
        del trace
        if not isinstance(runtime.config, vf.SubprocessConfig):
            await self._complete(runtime)
        await runtime.write(_ARCHIVE, await asyncio.to_thread(_packed, self._task.repo))
        await _run(runtime, "tar", "-xf", _ARCHIVE)
        await _run(runtime, "rm", "-f", _ARCHIVE)

    async def _complete(self, runtime: vf.Runtime) -> None:
        if self.data.network != "open" and not runtime.network_restricted:
            raise ConfigError(
                "the network of this runtime is open, and the agent could fetch the project it is to reimplement",
                fix="close it with --env.taskset.network closed, or allow it with --env.taskset.network open",
            )
        pins = await asyncio.to_thread(lambda: self._pins)
        result = await runtime.run(install_command(pins), {}) if pins and pins.requirements else None
        if result is not None and result.exit_code != 0:
            raise SandboxError(
                f"the image lacks what the tests need, and pip cannot add it: {result.stderr.strip()[-300:]}",
                fix="make an image (composer tasks export TASKS --format docker --out DIR) and name it with --env.taskset.image",
            )

    @vf.reward(weight=1.0)
    async def tests_pass(self, trace: vf.Trace, runtime: vf.Runtime) -> float:
        """Return our grader's verdict on the tree as it is now; 0 for one that cannot be taken out of a runtime that works.

        The trace gets the metric `cheat_alarm` (1 when a person should read the work, `info["alarms"]` says why) and why the
        reward is not 1, as `info["reasons"]`.

        Raises:
            SandboxError: our sandbox broke; verifiers' own: the runtime is gone. An error and no reward is recorded.
        """
        archive = await _archived(runtime)
        changes = None if archive is None else await asyncio.to_thread(_changes, archive, self._task)
        if changes is None:
            trace.record_metric("cheat_alarm", 0.0)
            trace.info["reasons"] = [f"the tree was not packed by tar, or is more than {_MOST_BYTES >> 20} MB"]
            return 0.0
        report, reward = await asyncio.to_thread(self._graded, changes)
        trace.record_metric("cheat_alarm", float(bool(report.alarms)))
        trace.info["reasons"], trace.info["alarms"] = list(report.reasons), list(report.alarms)
        return reward

    async def validate(self, runtime: vf.Runtime) -> bool:
        """Return whether the task's own solution scores 1 (0 where the task is impossible, and nothing is rewarded).

        That the untouched tree does not is a check of verifiers' own.
        """
        del runtime
        wanted = 0.0 if self._task.spec.impossible else 1.0
        _, reward = await asyncio.to_thread(self._graded, self._task.gold_files())
        return reward == wanted

    @property
    def _suite(self) -> TaskSuite:
        return shared_suite(Path(self.data.folder), self.config.sandbox, self.config.python, forgeable=self.config.forgeable)

    @property
    def _task(self) -> Task:
        return self._suite.task(self.data.task_id)

    @property
    def _pins(self) -> Pins | None:
        """What the tests need; None where that is known on the machine of a remote sandbox only."""
        if remote_python(self.config.sandbox) is not None:
            return None
        task = self._task
        return pins_of(task.spec, task.repo, self._suite.python(task))

    def _graded(self, changes: Mapping[str, bytes | None]) -> tuple[GradeReport, float]:
        """Return the grader's report and its reward. Raises SandboxError when the sandbox broke."""
        suite, task = self._suite, self._task
        report = suite.grade(task, changes)
        if isinstance(report.reward, Unscored):
            raise SandboxError(report.reward.reason)
        return report, report.reward


class CodingTaskset(vf.Taskset[CodingTask, CodingTasksetConfig]):
    """The tasks of a folder: `--env.taskset.id composer_tasks --env.taskset.tasks DIR`."""

    def load(self) -> Iterable[CodingTask]:
        """Yield every task, in order of name. Raises as `TaskSuite` does."""
        folder = self.config.tasks.absolute()
        task = self.config.task
        suite = shared_suite(folder, task.sandbox, task.python, forgeable=task.forgeable)
        for number, one in enumerate(suite.tasks):
            spec = one.spec
            data = CodingData(
                idx=number,
                name=spec.task_id,
                prompt=spec.instruction,
                system_prompt=SYSTEM_PROMPT,
                folder=str(folder),
                task_id=spec.task_id,
                network=self.config.network,
                network_allow=[] if self.config.network == "closed" else ["*"],
                image=self._image(suite, one),
            )
            yield CodingTask(data, self.config.task)

    def _image(self, suite: TaskSuite, task: Task) -> str | None:
        template = self.config.image
        if template is None:
            return None
        if template.endswith(PYTHON_IMAGE) and needs_tools(task.language):
            raise ConfigError(
                f"{task.spec.task_id} is in {task.spec.language}, and the image {template} has no tools for it",
                fix="make images (composer tasks export TASKS --format docker --out DIR), and name them with --env.taskset.image",
            )
        version = ""
        if "{python}" in template:
            if remote_python(self.config.task.sandbox) is not None:
                raise ConfigError(
                    "the tasks' version of Python is known on the machine of the sandbox only",
                    fix="name the image of the agent's container: --env.taskset.image IMAGE",
                )
            version = python_version(suite.python(task))
        return image_named(template, build=build_name(task.root.parent), python=version)


class CodingTasksetEnv(vf.SingleAgentEnv):
    """One agent on the tasks of a folder; verifiers' default for the taskset, as `composer_tasks` exports it.

    In a container the agent has no network, and an image of the interpreter's version, unless the taskset says otherwise.

    Raises:
        ConfigError: the agent's runtime cannot close the network.
    """

    def __init__(self, config: vf.SingleAgentEnvConfig) -> None:
        runtime = config.agent.runtime
        if not isinstance(runtime, vf.SubprocessConfig):
            config = config.model_copy(update={"taskset": _contained(config.taskset, runtime)})
        super().__init__(config)


def _contained(options: CodingTasksetConfig, runtime: Any) -> CodingTasksetConfig:
    """Return the options with what they leave open decided for a container."""
    fields, network, image = type(runtime).model_fields, options.network or "closed", options.image
    if network == "closed" and "allow" not in fields:
        raise ConfigError(
            f"the runtime {runtime.type} cannot close the network, and the agent could fetch the project it is to reimplement",
            fix="take another one, such as docker, or allow it with --env.taskset.network open",
        )
    if image is None and runtime.image == fields["image"].default:
        image = f"docker.io/library/{PYTHON_IMAGE}" if runtime.type == "podman" else PYTHON_IMAGE
    contained: CodingTasksetConfig = options.model_copy(update={"network": network, "image": image})
    return contained


async def _run(runtime: vf.Runtime, *argv: str) -> None:
    """Run a command in the runtime. Raises SandboxError when it fails."""
    result = await runtime.run(list(argv), {})
    if result.exit_code != 0:
        raise SandboxError(f"{' '.join(argv[:2])} failed in the runtime: {result.stderr.strip()[-300:]}")


async def _archived(runtime: vf.Runtime) -> bytes | None:
    """Return the runtime's tree, packed by its own `tar`; None when it gives none, or too much, and still works.

    `tar` worked in the setup. Where it fails after the agent, or says what the agent wants, that is the agent's doing.

    Raises:
        vf.SandboxError, OSError, TimeoutError: the runtime is gone.
    """
    excluded = [f"--exclude={name}" for name in sorted(LITTER | {_ARCHIVE})]
    try:
        async with asyncio.timeout(_PACKING_S):
            await runtime.run(["tar", "-cf", _ARCHIVE, *excluded, "."], {})
            archive: bytes = await runtime.read(_ARCHIVE, max_bytes=_MOST_BYTES)
    except (vf.SandboxError, OSError, TimeoutError):
        if not await _works(runtime):
            raise
        return None
    return archive


async def _works(runtime: vf.Runtime) -> bool:
    """Return whether it still runs commands: an existing one succeeds, or one that cannot exist is reported missing.

    The second is for an agent that has removed the first, or the working directory.
    """
    if await runtime.alive():
        return True
    try:
        return (await runtime.run([f"/{uuid.uuid4().hex}"], {})).exit_code in _NOT_STARTED
    except FileNotFoundError:
        return True


def _packed(tree: Path) -> bytes:
    """Pack the regular files of a tree into an uncompressed tar archive."""
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


def _changes(archive: bytes, task: Task) -> dict[str, bytes | None] | None:
    """Convert an archived tree to changes of the task's: nothing of it is ever written to this machine's disk.

    What is not a regular file, or too large to be graded, counts as absent. None for what is not a plain `tar` archive (nothing
    is decompressed) and for more than `_MOST_BYTES` of content (a sparse file has more than its archive) or `_MOST_MEMBERS`.
    """
    found: dict[str, bytes | None] = {}
    room = _MOST_BYTES
    try:
        with tarfile.open(fileobj=io.BytesIO(archive), mode="r:") as tar:
            for number, member in enumerate(tar):
                fits = member.isreg() and 0 <= member.size <= _LARGEST_FILE
                room -= member.size if fits else 0
                if room < 0 or number >= _MOST_MEMBERS:
                    return None
                content = tar.extractfile(member) if fits else None
                if content is not None:
                    found[str(PurePosixPath(member.name))] = content.read()
    except (tarfile.TarError, ValueError, OverflowError, RecursionError):  # errors that tarfile raises on false headers
        return None
    return {**dict.fromkeys(tree_files(task.repo)), **found}
