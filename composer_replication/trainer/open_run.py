"""Opening of a run directory for a new run or for one to be continued, by one process at a time."""

from __future__ import annotations

import tomllib
from collections.abc import Container, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from composer_replication.config import RunConfig, to_toml
from composer_replication.observe import RunDir
from composer_replication.observe.files import exclusive, storage_errors
from composer_replication.types.errors import ConfigError

_MAY_CHANGE = frozenset(
    {
        *(
            "checkpoint_every",
            "out",
            "strict",
            "usd_per_hour",
            "rollout.env_workers",
            "rollout.stall_s",
            "sandbox.kind",
            "loss.replay.max_total_usd",
        ),
        *("rollout.max_requests", "rollout.timeout_s", "rollout.cohorts", "rollout.max_rollouts"),
        *("rollout.server_python", "rollout.server_gpus", "rollout.server_options"),
        *("diloco.quorum", "diloco.deadline_s", "diloco.timeout_s"),
    }
)
"""Fields that change no result but by rounding. Where a run ended because a cap was reached or memory was short, it goes on with
another value."""
_OF_OUR_LEARNER = frozenset(
    {
        *("model.attention", "model.compile", "model.frozen_copies"),
        *("optimizer.gradient_checkpointing", "optimizer.micro_batch_tokens"),
    }
)
"""Such fields where the learner is ours. Other trainers count their data in passes."""
_OURS = ("local", "ray", "monarch")
_OF_A_TEACHER = (".base_url", ".api_key_env", ".max_concurrency", ".usd_per_million_input", ".usd_per_million_output")
"""Fields of a teacher that change no result: its address and its cost. Answers bought at another address are bought again."""


@contextmanager
def open_run(config: RunConfig, *, resume: bool) -> Iterator[RunDir]:
    """Open the run's directory with the resolved configuration in it, and hold it for this process while the body runs.

    Raises:
        ConfigError: another process is at work in it, or `check_run_dir` refuses.
        StorageError: it cannot be written.
    """
    path = config.out / config.name
    check_run_dir(config, resume=resume)
    with storage_errors(path):
        path.mkdir(parents=True, exist_ok=True)
    with exclusive(path):
        check_run_dir(config, resume=resume)  # again: another process may have begun it meanwhile
        run_dir = RunDir(path) if resume and RunDir.has_begun(path) else RunDir.create(path)
        run_dir.write_config(to_toml(config))
        yield run_dir


def check_run_dir(config: RunConfig, *, resume: bool) -> None:
    """Raise ConfigError when the run's directory is a file, or holds a run that this configuration cannot continue.

    With `resume` a run is continued when its configuration differs only in where and how fast it runs.
    """
    path = config.out / config.name
    if path.exists() and not path.is_dir():
        raise ConfigError(f"{path} is a file, not a folder", fix="choose another name for the run")
    if not resume:
        RunDir.refuse_begun(path)
    elif RunDir.has_begun(path):
        run_dir = RunDir(path)
        if run_dir.config_path.exists():
            _refuse_drift(tomllib.loads(run_dir.config_path.read_text()), tomllib.loads(to_toml(config)), run_dir)


def decisive(config: RunConfig, *prefixes: str) -> dict[str, Any]:
    """Return the fields below these prefixes that change a result, by dotted key."""
    fields = _flat(tomllib.loads(to_toml(config)))
    return {key: value for key, value in fields.items() if key.startswith(prefixes) and key not in _MAY_CHANGE}


def _refuse_drift(before: Mapping[str, Any], now: Mapping[str, Any], run_dir: RunDir) -> None:
    old, new = _flat(before), _flat(now)
    free = _MAY_CHANGE | (_OF_OUR_LEARNER if new["substrate.type"] in _OURS else frozenset())
    changed = sorted(k for k in old.keys() | new.keys() if old.get(k) != new.get(k) and not _may_change(k, free))
    if changed:
        listed = "; ".join(f"{k}: {old.get(k)!r} -> {new.get(k)!r}" for k in changed)
        raise ConfigError(
            f"{run_dir.path} was made by another configuration: {listed}",
            fix="resume with the configuration in its config.toml, or give the new run another name",
        )


def _may_change(key: str, free: Container[str]) -> bool:
    if key.startswith("arms."):  # arms.NAME.field
        key = key.split(".", 2)[-1]
    return key in free or (key.startswith("teachers.") and key.endswith(_OF_A_TEACHER))


def _flat(data: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in data.items():
        if isinstance(value, dict):
            flat |= _flat(value, f"{prefix}{key}.")
        elif isinstance(value, list) and all(isinstance(item, dict) for item in value):
            flat |= _flat({str(i): item for i, item in enumerate(value)}, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat
