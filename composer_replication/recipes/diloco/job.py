"""A job of replicas: started through an executor, watched through the store and resumed as a whole."""

from __future__ import annotations

from typing import Any

from composer_replication.config import RunConfig
from composer_replication.config.executor import ExecutorConfig
from composer_replication.diloco import serverless
from composer_replication.diloco.serverless.base import ServerlessExecutor
from composer_replication.diloco.store import open_store
from composer_replication.observe.files import exclusive, storage_errors
from composer_replication.recipes.diloco.fleet import Fleet, Seen, Told
from composer_replication.recipes.diloco.learner_state import LearnerState
from composer_replication.types.errors import ConfigError


def open_executor(options: ExecutorConfig) -> ServerlessExecutor:
    """Create the executor; nothing is started.

    Raises:
        MissingExtraError: the vendor's client is not installed.
        ConfigError: the image names none.
    """
    given: dict[str, Any] = {
        name: value
        for name in type(options).model_fields
        if any(options.type in rule.choices for rule in options.readers(name)) and (value := getattr(options, name)) is not None
    }
    match options.type:
        case "local":
            return serverless.LocalProcessExecutor()
        case "modal":
            return serverless.ModalExecutor(**given)
        case "hf":
            return serverless.HFJobsExecutor(**given)
        case "sky":
            return serverless.SkyExecutor(**given | ({"image": None} if options.image == "" else {}))


def rendezvous_of(config: RunConfig) -> str:
    """Return the address of the job's store."""
    return config.diloco.rendezvous or str((config.out / config.name / "store").absolute())


def check_job(config: RunConfig, *, resume: bool) -> None:
    """Check for what would fail later.

    Raises:
        ConfigError: the run is not one of replicas, replicas elsewhere could not reach the store, or `resume` is False
            and a job is there already, or replicas of one may still run.
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
    if not resume and (kept := LearnerState(config).path).exists():
        told = f"{kept} names replicas of an earlier start, which may still run"
        raise ConfigError(told, fix="go on with --resume, which ends them first, or give the new job another name")


def run_job(config: RunConfig, executor: ServerlessExecutor, seen: Seen, told: Told) -> list[Any]:
    """Start every replica, wait until all have ended, and return what each returned, in the order of ranks.

    Processes of an earlier start that still run are ended first, and a replica that is lost is launched again, at most
    `diloco.executor.restarts` times.

    Raises:
        ReplicaError: replicas failed; the others were cancelled. What they had reached is in the store.
        BackendError: the executor's backend refuses, or has not answered for minutes; or replicas may still run, and are named.
        ConfigError: another process runs this job.
        StorageError: the run's folder or the store cannot be used.
    """
    folder = config.out.absolute() / config.name
    with storage_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    with exclusive(folder):
        kept = LearnerState(config)
        kept.end(executor)
        fleet = Fleet(config, rendezvous_of(config), executor, kept, told)
        try:
            fleet.launch()
            results = fleet.run(seen)
        except BaseException as error:  # also an interruption: what runs, costs
            fleet.close(error)
            raise
        fleet.close(None)
        return results
