"""The command line of a replica, and what may be launched with it."""

from __future__ import annotations

import importlib
import json
import math
import os
import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from composer_replication.types.errors import ConfigError

ENTRYPOINT = "composer_replication.diloco.serverless.replica_entrypoint"
"""The module that runs a replica: `python -m` it."""
RANK_ENV = "REPLICA_RANK"
"""The environment variable with a replica's rank."""
MEETING = ("composer_replication.diloco.serverless.barrier_job", "meet")
"""The default job of replicas."""
_MOST_ARGUMENTS = 1 << 16
"""Bytes of a command line that every backend takes: Modal's limit, below that of Linux."""
_NAMED = re.compile(r"(?P<module>[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*):(?P<name>[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)")
_OWN = ("rendezvous_uri", "world_size", "rank_env")
_TRAINER = ("trainer_module", "trainer_fn", "trainer_kwargs")
_VARIABLE = re.compile(r"[A-Za-z_]\w*")


@dataclass(frozen=True)
class Launch:
    """The arguments of every replica of a job; only the rank, in the environment, differs."""

    rendezvous_uri: str
    """The object store that replicas share."""
    world_size: int
    trainer_module: str
    trainer_fn: str
    """Name of a function in the module, with dots where it is nested in a class."""
    trainer_kwargs: str
    """Its keyword arguments, a JSON object."""
    job: str
    """Folder in the store for this launch's logs and results."""
    timeout_s: float
    rank_env: str = RANK_ENV

    def arguments(self) -> list[str]:
        """Return the arguments after the interpreter."""
        return [
            *("-m", ENTRYPOINT),
            *("--rendezvous", self.rendezvous_uri),
            *("--world-size", str(self.world_size)),
            *("--trainer-module", self.trainer_module),
            *("--trainer-fn", self.trainer_fn),
            *("--trainer-kwargs-json", self.trainer_kwargs),
            *("--rank-env", self.rank_env),
            *("--job", self.job),
            *("--timeout-s", f"{self.timeout_s:g}"),
        ]


def plan(n_replicas: int, entrypoint: str | Callable[..., Any], arguments: Mapping[str, Any], timeout: float) -> Launch:
    """Check what `launch_replicas` was given.

    Raises:
        ConfigError: which argument is wrong, and what is right.
    """
    if isinstance(n_replicas, bool) or not isinstance(n_replicas, int) or n_replicas < 1:
        raise ConfigError(f"n_replicas is {n_replicas!r}", fix="give a whole number, at least 1")
    if not timeout > 0 or not math.isfinite(timeout):
        raise ConfigError(f"timeout is {timeout!r}", fix="give the seconds that a replica may run")
    uri = arguments.get("rendezvous_uri")
    if not uri or not isinstance(uri, str | os.PathLike):
        fix = "give the object store that replicas share: a path, s3://BUCKET/PREFIX, gs://... or az://..."
        raise ConfigError("entrypoint_args has no rendezvous_uri", fix=fix)
    if (uri := os.fspath(uri)).startswith("memory:"):
        fix = "give a path, s3://BUCKET/PREFIX, gs://... or az://..."
        raise ConfigError(f"rendezvous_uri is {uri}: no other process shares this one's memory", fix=fix)
    if arguments.get("world_size", n_replicas) != n_replicas:
        message = f"entrypoint_args has world_size {arguments['world_size']!r}, and n_replicas is {n_replicas}"
        raise ConfigError(message, fix="leave world_size out")
    rank_env = arguments.get("rank_env", RANK_ENV)
    if not isinstance(rank_env, str) or not _VARIABLE.fullmatch(rank_env):
        raise ConfigError(f"rank_env {rank_env!r} is not a name of an environment variable", fix=f"leave it out: {RANK_ENV}")
    module, name, kwargs = _trainer(entrypoint, {key: value for key, value in arguments.items() if key not in _OWN})
    launch = Launch(
        rendezvous_uri=uri if "://" in uri else os.path.abspath(uri),
        world_size=n_replicas,
        trainer_module=module,
        trainer_fn=name,
        trainer_kwargs=_as_json(kwargs),
        job=secrets.token_hex(6),
        timeout_s=timeout,
        rank_env=rank_env,
    )
    if (size := sum(len(word.encode()) + 1 for word in launch.arguments())) > _MOST_ARGUMENTS - 4096:
        fix = "put what is large into the object store, and pass its key"
        raise ConfigError(f"the arguments of the replicas take {size} bytes, and a command line has 60,000", fix=fix)
    return launch


def chosen(n_replicas: int, ranks: Sequence[int] | None) -> list[int]:
    """Return the ranks to start, in their order; all of them for None.

    Raises:
        ConfigError: they are not some of the job's, each once.
    """
    wanted = sorted(range(n_replicas) if ranks is None else ranks)
    if not wanted or len(set(wanted)) < len(wanted) or wanted[0] < 0 or wanted[-1] >= n_replicas:
        raise ConfigError(f"ranks is {list(ranks or ())}", fix=f"give some of 0 to {n_replicas - 1}, each once")
    return wanted


def _trainer(entrypoint: str | Callable[..., Any], rest: Mapping[str, Any]) -> tuple[str, str, Mapping[str, Any]]:
    if entrypoint != ENTRYPOINT:
        return (*module_and_name(entrypoint), rest)
    if unknown := sorted(set(rest) - set(_TRAINER)):
        fix = f"it knows {', '.join((*_OWN, *_TRAINER))}; the function's own arguments go into trainer_kwargs"
        raise ConfigError(f"entrypoint_args has {', '.join(unknown)}, which {ENTRYPOINT} does not know", fix=fix)
    module, name = rest.get("trainer_module", MEETING[0]), rest.get("trainer_fn", MEETING[1])
    if ("trainer_module" in rest) != ("trainer_fn" in rest):
        raise ConfigError("entrypoint_args has one of trainer_module and trainer_fn", fix="give both, or neither")
    kwargs = rest.get("trainer_kwargs", {})
    if not isinstance(kwargs, Mapping):
        raise ConfigError("trainer_kwargs is not a mapping", fix="give the function's arguments by name")
    return (*module_and_name(f"{module}:{name}"), kwargs)


def module_and_name(entrypoint: str | Callable[..., Any]) -> tuple[str, str]:
    """Return the module and the qualified name under which a replica finds a function.

    Raises:
        ConfigError: it cannot be found by name. Nothing is pickled, so a lambda or a closure cannot travel.
    """
    fix = "define a function at the top level of a module that replicas can import"
    if isinstance(entrypoint, str):
        if (match := _NAMED.fullmatch(entrypoint)) is None:
            raise ConfigError(f"entrypoint {entrypoint!r} names no function", fix=f"write module:function, or {ENTRYPOINT}")
        return match["module"], match["name"]
    module, name = getattr(entrypoint, "__module__", None), getattr(entrypoint, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(name, str) or not _NAMED.fullmatch(f"{module}:{name}"):
        raise ConfigError(f"entrypoint {name or entrypoint!r} has no name that a replica could import", fix=fix)
    if module == "__main__":
        raise ConfigError(f"entrypoint {name} belongs to the program itself", fix=f"{fix}, not of the program that is started")
    if resolve(module, name) is not entrypoint:
        raise ConfigError(f"{module}:{name} is something else than the entrypoint", fix=fix)
    return module, name


def resolve(module: str, name: str) -> Any:
    """Return the object of that name in a module.

    Raises:
        ConfigError: there is no such module, or nothing of that name in it.
    """
    try:
        found = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise  # the module is there, and lacks something itself
        raise ConfigError(f"there is no module {module}", fix="install it where replicas run") from error
    try:
        return attrgetter(name)(found)
    except AttributeError as error:
        raise ConfigError(f"module {module} has no {name}", fix="name a function at its top level") from error


def _as_json(kwargs: Mapping[str, Any]) -> str:
    for key, value in kwargs.items():
        if not isinstance(key, str) or not _plain(value):
            fix = "pass text, numbers, lists, and mappings with text as keys; what is more goes into the object store"
            raise ConfigError(f"argument {key} of the entrypoint is not plain JSON: {value!r:.80}", fix=fix)
    return json.dumps(dict(kwargs))


def _plain(value: Any) -> bool:
    if isinstance(value, Mapping):
        return all(isinstance(key, str) and _plain(item) for key, item in value.items())
    if isinstance(value, list | tuple):
        return all(map(_plain, value))
    return value is None or isinstance(value, str | int | float)


def secret_values(names: Sequence[str]) -> dict[str, str]:
    """Return the environment variables whose values replicas are given as secrets.

    Raises:
        ConfigError: one is not set here.
    """
    if missing := [name for name in names if not os.environ.get(name)]:
        raise ConfigError(f"secrets names {', '.join(missing)}, not set in the environment here", fix="set it, or leave it out")
    return {name: os.environ[name] for name in names}
