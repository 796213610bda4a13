"""Replicas in sandboxes of Modal (https://modal.com)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

from composer_replication.diloco.serverless.base import Sight
from composer_replication.diloco.serverless.cloud import GRACE_S, INSTALL, PYTHON_IMAGE, CloudExecutor, check_image, vendor
from composer_replication.diloco.serverless.launch import Launch
from composer_replication.diloco.serverless.protocol import ReplicaStatus
from composer_replication.types.errors import BackendError, ConfigError

_LONGEST_S = 86400
"""Modal ends a sandbox after a day."""
_TIMED_OUT, _TERMINATED = 124, 137
"""The client's return codes for a sandbox that Modal has ended."""


class ModalExecutor(CloudExecutor):
    """Runs each replica as a Modal sandbox.

    Credentials are Modal's own: `modal token set`, or MODAL_TOKEN_ID and MODAL_TOKEN_SECRET.

    Args:
        image: a registry's image, or a `modal.Image` however it was made. It needs Python 3.11 or newer.
        gpu: in Modal's words: `A100`, `H100:8`; None for none. `launch_replicas` may name another.
        app: the Modal app that sandboxes belong to; made where it is missing.
        cpu: cores of each sandbox, at least.
        memory_mib: of each sandbox, at least.
        region: in Modal's words.
        setup, env, secrets, python: as `CloudExecutor` takes them.

    Raises:
        MissingExtraError: the package `modal` is missing.
        ConfigError: `image` is neither.
    """

    backend_name: ClassVar[str] = "modal"

    def __init__(
        self,
        image: Any = PYTHON_IMAGE,
        gpu: str | None = None,
        *,
        app: str = "composer-replication",
        setup: str = INSTALL,
        env: Mapping[str, str] | None = None,
        secrets: Sequence[str] = (),
        cpu: float | None = None,
        memory_mib: int | None = None,
        region: str | None = None,
        python: str = "python",
    ) -> None:
        super().__init__(setup=setup, env=env, secrets=secrets, python=python)
        self._modal: Any = vendor("modal", "modal", "modal", "1.6")
        if not isinstance(image, str | self._modal.Image):
            raise ConfigError(f"image is {image!r}", fix=f"give a registry's image such as {PYTHON_IMAGE!r}, or a modal.Image")
        self._image = self._modal.Image.from_registry(check_image(image)) if isinstance(image, str) else image
        self._app, self._gpu = app, gpu
        self._machine = {"cpu": cpu, "memory": memory_mib, "region": region}

    def _check(self, launch: Launch, gpu: str | None) -> None:
        super()._check(launch, gpu)
        if launch.timeout_s + GRACE_S > _LONGEST_S:
            message = (
                f"timeout is {launch.timeout_s:g} s, and Modal ends a sandbox after a day, {GRACE_S:g} s of it to start and end"
            )
            raise ConfigError(message, fix="launch again from the store after that, or use SkyExecutor")

    def _start(self, launch: Launch, rank: int, gpu: str | None) -> str:
        with self._understood():
            sandbox = self._modal.Sandbox.create(
                *self._command(launch),
                app=self._modal.App.lookup(self._app, create_if_missing=True),
                image=self._image,
                env=self._environment(launch, rank),
                secrets=[self._modal.Secret.from_dict(values)] if (values := self._secret_values()) else [],
                gpu=gpu or self._gpu,
                timeout=math.ceil(launch.timeout_s + GRACE_S),
                **self._machine,
            )
            return str(sandbox.object_id)

    def _look(self, identity: str) -> Sight:
        with self._understood():
            status = self._modal.Sandbox.from_id(identity).poll()
        if status is None:
            return Sight(ReplicaStatus.RUNNING)
        if status == 0:
            return Sight(ReplicaStatus.SUCCEEDED)
        if status == _TIMED_OUT:
            return Sight(ReplicaStatus.TIMED_OUT, "Modal has ended the sandbox: out of time")
        if status == _TERMINATED:
            return Sight(ReplicaStatus.FAILED, "the sandbox was terminated or killed (137), perhaps for its memory")
        return Sight(ReplicaStatus.FAILED, f"the sandbox {identity} ended with status {status}; Modal has what it printed")

    def _stop(self, identity: str) -> None:
        with self._understood():
            self._modal.Sandbox.from_id(identity).terminate()

    @contextmanager
    def _understood(self) -> Iterator[None]:
        wrong = self._modal.exception
        try:
            yield
        except (wrong.AuthError, wrong.PermissionDeniedError) as error:
            fix = "run `modal token set`, or set MODAL_TOKEN_ID and MODAL_TOKEN_SECRET"
            raise ConfigError(f"Modal refuses the credentials: {error}", fix=fix) from error
        except (wrong.InvalidError, wrong.NotFoundError) as error:
            raise ConfigError(f"Modal refuses the request: {error}", fix="correct what it names") from error
        except wrong.ConnectionError as error:
            fix = "see whether it can be reached from here, and try again"
            raise BackendError(f"Modal does not answer: {error}", fix=fix) from error
        except wrong.Error as error:
            raise BackendError(
                f"Modal failed: {type(error).__name__}: {error}", fix="see its dashboard, and try again"
            ) from error
