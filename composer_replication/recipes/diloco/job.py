"""A job of replicas: started through an executor, watched through the store, resumed as a whole."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from composer_replication.config import RunConfig, to_toml
from composer_replication.diloco.serverless.protocol import ReplicaHandle, ReplicaStatus, ServerlessExecutor
from composer_replication.diloco.store import Store, open_store
from composer_replication.errors import ConfigError
from composer_replication.recipes.diloco.status import Status, read_status

__all__ = ["Seen", "check_job", "rendezvous_of", "run_job"]

ENTRY = "composer_replication.recipes.diloco.replica:train_replica"
_LOOK_S = 1.0

Seen = Callable[[Sequence[tuple[ReplicaHandle, ReplicaStatus, Status | None]]], None]
"""Told again and again where every replica is."""


def rendezvous_of(config: RunConfig) -> str:
    """The address of the job's store."""
    return config.diloco.rendezvous or str((config.out / config.name / "store").absolute())


def check_job(config: RunConfig, *, resume: bool) -> None:
    """Look for what would fail later.

    Raises:
        ConfigError: the run is not one of replicas, replicas elsewhere could not reach the store, or a job is there already and
            `resume` is False.
        ObjectStoreError: the store cannot be read.
    """
    if not config.diloco.enabled:
        raise ConfigError(
            "diloco.enabled = false: this is not a run of replicas", fix="set diloco.enabled = true in the run file"
        )
    uri, kind = rendezvous_of(config), config.diloco.executor.type
    shared = kind == "sky" and config.diloco.rendezvous is not None  # its machines may mount what this one does
    if kind != "local" and not shared and ("://" not in uri or uri.startswith(("file:", "memory:"))):
        raise ConfigError(f"replicas elsewhere do not reach {uri}", fix="set diloco.rendezvous to s3://, gs:// or az://")
    if not resume and open_store(uri).list("arms"):
        raise ConfigError(f"{uri} holds a job already", fix="go on with --resume, or give the new job another name or rendezvous")


def run_job(config: RunConfig, executor: ServerlessExecutor, seen: Seen) -> list[Any]:
    """Start every replica, and wait until all have ended: what each returned, in the order of ranks.

    Raises:
        ReplicaError: replicas failed; the others were cancelled. What they had reached is in the store.
        BackendError: the executor's backend refuses or does not answer.
    """
    uri = rendezvous_of(config)
    store = open_store(uri)
    absolute = config.model_copy(update={"out": config.out.absolute()})
    arguments = {"rendezvous_uri": uri, "run": to_toml(absolute)}
    timeout = config.diloco.executor.timeout_s
    handles = executor.launch_replicas(config.diloco.replicas, ENTRY, arguments, timeout=timeout)
    try:
        _watch(executor, handles, store, seen)
        return executor.collect(handles)
    finally:
        executor.cancel(handles)


def _watch(executor: ServerlessExecutor, handles: Sequence[ReplicaHandle], store: Store, seen: Seen) -> None:
    """Until all have ended, or one has failed."""
    while True:
        states = [executor.poll(handle) for handle in handles]
        seen([(handle, state, read_status(store, handle.rank)) for handle, state in zip(handles, states, strict=True)])
        failed = any(state.final and state is not ReplicaStatus.SUCCEEDED for state in states)
        if failed or all(state.final for state in states):
            return
        time.sleep(_LOOK_S)
