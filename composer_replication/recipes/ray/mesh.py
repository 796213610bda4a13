"""A mesh of Ray actors, on a private Ray of the run or on an existing cluster.

Ray restarts no actor by itself: the supervisor decides what an actor's death means. Weights go through the object store:
the trainer's process puts them there once, and every generator reads the same copy.
"""

from __future__ import annotations

import os
import socket
from collections import deque
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from composer_replication.recipes.mesh.actor_shell import ActorShell, CallResult, opened
from composer_replication.recipes.mesh.errors import ActorDiedError, WeightsLostError
from composer_replication.recipes.mesh.processes import Process, is_gone
from composer_replication.recipes.mesh.protocol import Build, Handle, WeightHandle
from composer_replication.sandbox.scratch import scratch_folder
from composer_replication.types.errors import BackendError, ConfigError, MissingExtraError

try:
    import ray
    from ray.exceptions import ObjectLostError, RayActorError, RayError, RayTaskError
except ModuleNotFoundError as error:
    raise MissingExtraError(
        "the Ray mesh needs ray, which is not installed", fix="pip install 'composer-replication[ray]'"
    ) from error

if TYPE_CHECKING:
    from torch import Tensor

STORE_BYTES = 512 << 20
"""Shared memory for weights, by default."""
_KNOCK_S = 30.0
"""How long a cluster may take to take a connection."""
_KEPT = 2
"""Publications that can be fetched."""
_ADDRESS = "RAY_ADDRESS"
"""Environment variable, Ray's own: the cluster to join."""
_ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # else Ray hides GPUs from actors, and a policy for them would run on the CPU
}


class RayPort:
    """Transfer of weights through Ray's object store."""

    def __init__(self) -> None:
        self._kept: deque[Any] = deque(maxlen=_KEPT)  # the store lets go of what nobody refers to

    async def publish(self, name: str, version: int, weights: Mapping[str, Tensor]) -> WeightHandle:
        """Publish weights; see `Port.publish`."""
        packed = {id(tensor): _packed(tensor) for tensor in weights.values()}  # tied ones once
        reference = ray.put({key: packed[id(tensor)] for key, tensor in weights.items()})
        self._kept.append(reference)
        return WeightHandle(version, name, [reference])  # in a list Ray passes it on instead of what it refers to

    async def fetch(self, ticket: WeightHandle) -> dict[str, Tensor]:
        """Fetch weights; see `Port.fetch`."""
        try:
            packed = await ticket.where[0]
        except ObjectLostError as error:
            raise WeightsLostError(f"the weights of version {ticket.version} are gone with {ticket.publisher}") from error
        return {key: _unpacked(*tensor) for key, tensor in packed.items()}


class _RayActor:
    """The class that Ray instantiates; it holds one of our objects."""

    def __init__(self, name: str) -> None:
        self._held = ActorShell(name)

    async def begin(self, build: Build, args: tuple[Any, ...]) -> CallResult:
        return await self._held.begin(build, RayPort(), args)

    async def run(self, method: str, args: tuple[Any, ...]) -> CallResult:
        return await self._held.run(method, args)

    async def process(self) -> Process:
        return Process.this()


@dataclass(frozen=True, slots=True, eq=False)
class RayHandle:
    """One actor, and what the driver needs to build it again."""

    name: str
    actor: Any
    process: Process
    build: Build | None = None
    args: tuple[Any, ...] = ()

    @property
    def pid(self) -> int:
        return self.process.pid

    async def call(self, method: str, *args: Any) -> Any:
        return opened(await _answer(self.name, self.actor.run.remote(method, args)))

    async def call_all(self, method: str, *args: Any) -> list[Any]:
        return [await self.call(method, *args)]

    def kill(self) -> None:
        """End its process at once, stopped or not."""
        ray.kill(self.actor, no_restart=True)
        is_gone(self.process, kill=True)  # Ray asks a process to end itself, and one that is stopped does not hear it

    def __reduce__(self) -> tuple[Any, ...]:
        return RayHandle, (self.name, self.actor, self.process)  # only the driver builds it again


class RayMesh:
    """A mesh with one process per actor. Closing it ends everything that it started.

    RAY_ADDRESS names a cluster to join, as `ray.init` takes it (`HOST:PORT`, or `auto` for one on this machine); it runs on when
    the mesh is closed. Without it, or with `local`, the mesh starts a private Ray.

    Args:
        store_bytes: shared memory for weights of a private Ray: at least three times those of the policy.

    Raises:
        ConfigError: the address is that of a Ray client server.
        BackendError: Ray does not start, there is no cluster at the address, or Ray is started in this process already.
    """

    def __init__(self, *, store_bytes: int = STORE_BYTES) -> None:
        if ray.is_initialized():
            raise BackendError("Ray is started in this process already", fix="end it with ray.shutdown() first")
        for name, value in _ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        self._folders = ExitStack()
        address = os.environ.get(_ADDRESS) or "local"
        if address == "local":
            self._start(store_bytes)
        else:
            _join(address)
        self._make = ray.remote(_RayActor)
        self._open = True

    async def spawn(self, name: str, build: Build, *args: Any) -> RayHandle:
        """Start an actor; see `Mesh.spawn`."""
        with ExitStack() as undo:
            actor = self._make.options(num_cpus=0, max_restarts=0, max_task_retries=0).remote(name)
            undo.callback(ray.kill, actor, no_restart=True)
            process = await _answer(name, actor.process.remote())
            undo.pop_all()
            undo.callback(RayHandle(name, actor, process, build, args).kill)
            opened(await _answer(name, actor.begin.remote(build, args)))
            undo.pop_all()
        return RayHandle(name, actor, process, build, args)

    async def replace(self, handle: Handle) -> RayHandle:
        """Replace an actor; see `Mesh.replace`."""
        assert isinstance(handle, RayHandle)
        handle.kill()
        assert handle.build is not None
        return await self.spawn(handle.name, handle.build, *handle.args)

    async def close(self) -> None:
        """End every actor; see `Mesh.close`."""
        if self._open:
            self._open = False
            ray.shutdown()
            self._folders.close()

    def _start(self, store_bytes: int) -> None:
        folder = self._folders.enter_context(scratch_folder())  # its path is short, which Ray's sockets need
        try:
            ray.init(
                address="local",
                num_cpus=1,  # actors ask for none; it is also how many idle workers are kept
                num_gpus=0,
                object_store_memory=store_bytes,
                include_dashboard=False,
                log_to_driver=False,
                logging_level="ERROR",
                _memory=store_bytes,
                _temp_dir=str(folder),
                _system_config={"enable_metrics_collection": False},
            )
        except (RayError, RuntimeError, ValueError, OSError) as error:
            self._folders.close()
            raise BackendError(f"Ray does not start: {error}", fix="free memory, or lower the store's size") from error


def _join(address: str) -> None:
    if address.startswith("ray://"):
        raise ConfigError(
            f"{_ADDRESS} = {address} is a Ray client server, through which a mesh cannot work",
            fix="start the run on a machine of the cluster, with the HOST:PORT that `ray start` printed",
        )
    try:
        _knock(address)
        # the cluster's processes do not inherit this environment
        ray.init(address=address, runtime_env={"env_vars": _ENVIRONMENT}, log_to_driver=False, logging_level="ERROR")
    except (RayError, RuntimeError, ValueError, OSError) as error:
        raise BackendError(
            f"the Ray cluster at {address} cannot be joined: {error}",
            fix=f"correct {_ADDRESS}, set RAY_AUTH_MODE as the cluster has it, or unset both for a Ray of the run's own",
        ) from error


def _knock(address: str) -> None:
    """Raise OSError when nothing listens at the address: Ray itself would try for minutes."""
    host, _, port = address.rpartition(":")
    if port.isdecimal():
        socket.create_connection((host.strip("[]"), int(port)), timeout=_KNOCK_S).close()


async def _answer(name: str, reference: Any) -> Any:
    try:
        return await reference
    except RayActorError as error:
        raise ActorDiedError(f"{name} died: {str(error).splitlines()[0]}", actor=name) from error
    except RayTaskError as error:
        raise BackendError(f"{name} failed, which is a bug:\n{error}") from error
    except RayError as error:
        raise BackendError(f"Ray could not call {name}: {error}") from error


def _packed(tensor: Tensor) -> tuple[Any, Any, tuple[int, ...]]:
    """Return bytes, type and shape: numpy arrays are stored as they are, but numpy has no bfloat16."""
    import torch

    plain = tensor.detach().cpu().contiguous()
    return plain.view(-1).view(torch.uint8).numpy(), plain.dtype, tuple(plain.shape)


def _unpacked(array: Any, dtype: Any, shape: tuple[int, ...]) -> Tensor:
    """Return a copy: the store's memory is read-only."""
    import torch

    return torch.from_numpy(array.copy()).view(dtype).view(shape)
