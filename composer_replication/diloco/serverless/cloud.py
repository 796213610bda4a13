"""The base of executors on rented machines: the command of a container, its environment, and the vendor's package."""

from __future__ import annotations

import importlib
import re
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from types import ModuleType

from packaging.version import Version

from composer_replication.diloco.serverless.base import ServerlessExecutor
from composer_replication.diloco.serverless.launch import Launch, secret_values
from composer_replication.types.errors import ConfigError, MissingExtraError

INSTALL = f"python -m pip install --quiet composer-replication=={version('composer-replication')}"
"""Makes a plain Python image one that can run replicas of this version."""
PYTHON_IMAGE = "python:3.11"
GRACE_S = 120.0
"""Extra seconds a container lives beyond its replica, to start and to write to the store."""
_REFERENCE = re.compile(r"[a-z0-9]+(?:[._:/-]+[A-Za-z0-9_]+)*(?:@sha256:[0-9a-f]{64})?")


class CloudExecutor(ServerlessExecutor):
    """An executor whose replicas run in containers.

    Args:
        setup: a shell command that each container runs first; empty for an image that has this package.
        env: environment variables of the replicas.
        secrets: names of environment variables here whose values replicas get as secrets, such as the store's credentials.
        python: the interpreter in the container.
    """

    shares_paths = False
    """True when a path may be the same folder for this machine and the replicas."""

    def __init__(self, *, setup: str, env: Mapping[str, str] | None, secrets: Sequence[str], python: str) -> None:
        super().__init__()
        if isinstance(secrets, str):
            raise ConfigError("secrets is one text", fix="give a list of the names of environment variables")
        self._setup, self._python = setup, python
        self._env, self._secrets = dict(env or {}), tuple(secrets)

    def _check(self, launch: Launch, gpu: str | None) -> None:  # noqa: ARG002 - for those below
        if not self.shares_paths and ("://" not in launch.rendezvous_uri or launch.rendezvous_uri.startswith("file:")):
            message = (
                f"rendezvous_uri {launch.rendezvous_uri} is a folder of this machine, and {self.backend_name} replicas see none"
            )
            raise ConfigError(message, fix="give s3://BUCKET/PREFIX, gs://... or az://..., or use LocalProcessExecutor")
        if launch.rank_env in {*self._env, *self._secrets}:
            raise ConfigError(f"{launch.rank_env} is in env or secrets, and each replica has its own", fix="leave it out")
        secret_values(self._secrets)

    def _command(self, launch: Launch) -> list[str]:
        command = [self._python, *launch.arguments()]
        return ["sh", "-c", f'{self._setup} && exec "$@"', "replica", *command] if self._setup else command

    def _environment(self, launch: Launch, rank: int) -> dict[str, str]:
        return {**self._env, launch.rank_env: str(rank)}

    def _secret_values(self) -> dict[str, str]:
        return secret_values(self._secrets)


def check_image(image: str) -> str:
    """Return an image in registry notation.

    Raises:
        ConfigError: it is none.
    """
    if image.startswith("modal:"):
        fix = f"write {PYTHON_IMAGE!r}, another registry's image, or modal.Image.debian_slim(python_version='3.11')"
        raise ConfigError(f"there is no image {image!r}: modal is not a registry", fix=fix)
    if not _REFERENCE.fullmatch(image):
        raise ConfigError(
            f"{image!r} names no image", fix=f"write it as registries do: {PYTHON_IMAGE!r}, 'ghcr.io/OWNER/NAME:TAG'"
        )
    return image


def vendor(module: str, package: str, extra: str, lowest: str) -> ModuleType:
    """Import the vendor's package.

    Raises:
        MissingExtraError: it is not installed, or is older than `lowest`.
    """
    fix = f"pip install 'composer-replication[{extra}]'"
    try:
        found = importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise MissingExtraError(f"this executor needs {package}, which is not installed", fix=fix) from error
    if Version(version(package)) < Version(lowest):
        raise MissingExtraError(f"this executor needs {package} {lowest}, and {version(package)} is installed", fix=fix)
    return found
