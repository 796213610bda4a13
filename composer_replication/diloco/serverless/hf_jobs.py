"""Replicas as Hugging Face Jobs (https://huggingface.co/docs/hub/jobs)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, ClassVar

from composer_replication.diloco.serverless.base import Sight
from composer_replication.diloco.serverless.cloud import GRACE_S, INSTALL, PYTHON_IMAGE, CloudExecutor, check_image, vendor
from composer_replication.diloco.serverless.launch import Launch
from composer_replication.diloco.serverless.protocol import ReplicaStatus
from composer_replication.types.errors import BackendError, ConfigError
from composer_replication.types.hub_errors import hub_errors

_STAGES = {
    "SCHEDULING": ReplicaStatus.PENDING,
    "RUNNING": ReplicaStatus.RUNNING,
    "COMPLETED": ReplicaStatus.SUCCEEDED,
    "ERROR": ReplicaStatus.FAILED,
    "CANCELED": ReplicaStatus.CANCELLED,
    "DELETED": ReplicaStatus.CANCELLED,
}
_LAST_LINES = 30


class HFJobsExecutor(CloudExecutor):
    """Runs each replica as a job.

    Args:
        hardware: the flavor of machine, its GPUs included: `a10g-large`, `h200x8` (`hf jobs hardware` lists them).
        image: a registry's image, or a Space's (`hf.co/spaces/OWNER/NAME`). It needs Python 3.11 or newer.
        namespace: the user or organization that pays; None for the token's own.
        token: a token of Hugging Face that may run jobs; None for HF_TOKEN or the one that `hf auth login` saved.
        setup, env, secrets, python: as `CloudExecutor` takes them.

    Raises:
        MissingExtraError: `huggingface_hub` is missing or too old.
        ConfigError: `image` names none.
    """

    backend_name: ClassVar[str] = "hf_jobs"

    def __init__(
        self,
        hardware: str = "cpu-basic",
        *,
        image: str = PYTHON_IMAGE,
        namespace: str | None = None,
        token: str | None = None,
        setup: str = INSTALL,
        env: Mapping[str, str] | None = None,
        secrets: Sequence[str] = (),
        python: str = "python",
    ) -> None:
        super().__init__(setup=setup, env=env, secrets=secrets, python=python)
        self._hub: Any = vendor("huggingface_hub", "huggingface_hub", "hf", "2.4")
        self._api = self._hub.HfApi(token=token)
        self._hardware, self._image, self._namespace = hardware, check_image(image), namespace

    def _check(self, launch: Launch, gpu: str | None) -> None:
        super()._check(launch, gpu)
        if gpu is not None:
            fix = "leave gpu out, and make the executor with hardware='a10g-large' or another flavor"
            raise ConfigError(f"Hugging Face Jobs choose GPUs by hardware, not by name ({gpu})", fix=fix)

    def _start(self, launch: Launch, rank: int, gpu: str | None) -> str:  # noqa: ARG002
        with self._understood():
            job = self._api.run_job(
                image=self._image,
                command=self._command(launch),
                env=self._environment(launch, rank),
                secrets=self._secret_values() or None,
                flavor=self._hardware,
                timeout=math.ceil(launch.timeout_s + GRACE_S),
                name=f"replica-{launch.job}-{rank}",
                namespace=self._namespace,
            )
            return str(job.id)

    def _look(self, identity: str) -> Sight:
        with self._understood():
            job = self._api.inspect_job(job_id=identity, namespace=self._namespace)
        if (status := _STAGES.get(str(getattr(job.status.stage, "value", job.status.stage)))) is None:
            raise BackendError(f"the job {identity} is {job.status.stage}, which is unknown here", fix=f"see {job.url}")
        return Sight(status, f"{job.status.message or 'the job failed'} ({job.url})")

    def _stop(self, identity: str) -> None:
        with self._understood():
            self._api.cancel_job(job_id=identity, namespace=self._namespace)

    def _last_words(self, identity: str) -> str:
        with self._understood():
            return "\n".join(self._api.fetch_job_logs(job_id=identity, namespace=self._namespace, tail=_LAST_LINES))

    def _understood(self) -> AbstractContextManager[None]:
        return hub_errors(may="run jobs in this namespace")
