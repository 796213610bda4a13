"""Replicas on any cloud, Kubernetes, Slurm or SSH machines that SkyPilot knows (https://docs.skypilot.co)."""

from __future__ import annotations

import importlib
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, ClassVar

from composer_replication.diloco.serverless.base import Sight
from composer_replication.diloco.serverless.cloud import INSTALL, PYTHON_IMAGE, CloudExecutor, check_image, vendor
from composer_replication.diloco.serverless.launch import Launch
from composer_replication.diloco.serverless.protocol import ReplicaStatus
from composer_replication.types.errors import BackendError, ConfigError
from composer_replication.types.secrets import quoted

_STATUSES = {
    "INIT": ReplicaStatus.PENDING,
    "PENDING": ReplicaStatus.PENDING,
    "SETTING_UP": ReplicaStatus.PENDING,
    "RUNNING": ReplicaStatus.RUNNING,
    "SUCCEEDED": ReplicaStatus.SUCCEEDED,
    "FAILED": ReplicaStatus.FAILED,
    "FAILED_DRIVER": ReplicaStatus.FAILED,
    "FAILED_SETUP": ReplicaStatus.FAILED,
    "CANCELLED": ReplicaStatus.CANCELLED,
}
_NO_ACCESS = ("NoCloudAccessError", "InvalidCloudCredentials", "ApiServerAuthenticationError", "PermissionDeniedError")


class SkyExecutor(CloudExecutor):
    """Runs each replica as the job of a separate one-machine cluster, which SkyPilot takes down when the job has ended.

    Credentials are those of the clouds, as `sky check` finds them.

    Args:
        infra: where, in SkyPilot's notation: `aws/us-east-1`, `kubernetes`, `ssh/POOL`; None for wherever it is cheapest.
        gpu: accelerators in SkyPilot's notation: `A100:8`; None for none. `launch_replicas` may name others.
        image: a registry's image for the replica to run in; None for the machine as it comes.
        cpus: of each machine, as `8` or `8+`.
        memory: of each machine in GB, as `32` or `32+`.
        use_spot: take machines that the cloud may take back; a replica that is lost so has failed.
        setup, env, secrets, python: as `CloudExecutor` takes them.

    Raises:
        MissingExtraError: SkyPilot is missing.
        ConfigError: `image` names none.
    """

    backend_name: ClassVar[str] = "sky"
    shares_paths = True  # Kubernetes, Slurm and SSH machines may mount what this one does

    def __init__(
        self,
        infra: str | None = None,
        gpu: str | None = None,
        *,
        image: str | None = PYTHON_IMAGE,
        cpus: str | None = None,
        memory: str | None = None,
        use_spot: bool = False,
        setup: str = INSTALL,
        env: Mapping[str, str] | None = None,
        secrets: Sequence[str] = (),
        python: str = "python",
    ) -> None:
        super().__init__(setup=setup, env=env, secrets=secrets, python=python)
        self._sky: Any = vendor("sky", "skypilot", "sky", "0.14")
        errors: Any = importlib.import_module("sky.exceptions")
        self._gone: tuple[type[Exception], ...] = (errors.ClusterDoesNotExist, errors.ClusterNotUpError)
        self._wrong: tuple[type[Exception], ...] = (*_raised_by(errors), RuntimeError, ValueError, OSError)
        image_id = None if image is None else f"docker:{check_image(image)}"
        self._gpu = gpu
        self._machine = {"infra": infra, "image_id": image_id, "cpus": cpus, "memory": memory, "use_spot": use_spot}

    def _task(self, launch: Launch, rank: int, gpu: str | None) -> Any:
        return self._sky.Task(
            name=f"replica-{launch.job}-{rank}",
            run=shlex.join(self._command(launch)),
            envs=self._environment(launch, rank),
            secrets=self._secret_values(),
            resources=self._sky.Resources(accelerators=gpu or self._gpu, **self._machine),
        )

    def _start(self, launch: Launch, rank: int, gpu: str | None) -> str:
        cluster = f"replica-{launch.job}-{rank}"
        with self._understood(ConfigError):
            task = self._task(launch, rank, gpu)
        try:
            with self._understood(BackendError):
                job, _ = self._sky.get(self._sky.launch(task, cluster_name=cluster, down=True))
        except BaseException:
            with suppress(ConfigError, BackendError):  # some of it may be there, and cost
                self._stop(f"{cluster}/0")
            raise
        return f"{cluster}/{job}"

    def _look(self, identity: str) -> Sight:
        cluster, _, job = identity.partition("/")
        try:
            with self._understood(BackendError):
                found = self._sky.get(self._sky.job_status(cluster, [int(job)]))
        except self._gone:
            return Sight(ReplicaStatus.FAILED, f"its cluster {cluster} is gone")
        status = next(iter(found.values()), None)
        name = getattr(status, "value", status)
        if name not in _STATUSES:
            raise BackendError(f"the job of {cluster} is {name}, which is unknown here", fix=f"see sky queue {cluster}")
        return Sight(_STATUSES[name], f"its job ended as {name}; `sky logs {cluster}` has what it printed")

    def _stop(self, identity: str) -> None:
        try:
            with self._understood(BackendError):
                self._sky.get(self._sky.down(identity.partition("/")[0]))
        except self._gone:
            return

    @contextmanager
    def _understood(self, kind: type[ConfigError | BackendError]) -> Iterator[None]:
        try:
            yield
        except self._gone:
            raise
        except self._wrong as error:
            said = quoted(" ".join(str(error).split()), most=300)
            if type(error).__name__ in _NO_ACCESS:
                raise ConfigError(f"SkyPilot has no access: {said}", fix="run `sky check`, and set up what it misses") from error
            fix = "correct what it names" if kind is ConfigError else "see `sky api info` and `sky status`, and try again"
            raise kind(f"SkyPilot refuses or fails ({type(error).__name__}): {said}", fix=fix) from error


def _raised_by(errors: Any) -> tuple[type[Exception], ...]:
    """Return SkyPilot's exceptions: they have no common base."""
    every = (value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, Exception))
    return tuple(kind for kind in every if kind.__module__ == errors.__name__)
