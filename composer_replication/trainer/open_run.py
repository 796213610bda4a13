"""Opening a run directory for a new run or for one to be continued."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from typing import Any

from composer_replication.config import RunConfig, to_toml
from composer_replication.errors import ConfigError
from composer_replication.observe import RunDir

__all__ = ["open_run"]

_MAY_CHANGE = frozenset({"checkpoint_every", "out", "rollout.env_workers", "sandbox.kind", "loss.replay.max_total_usd"})
"""Fields that change no result. A cap that was reached has to be raised for the run to go on."""
_OF_A_TEACHER = (".base_url", ".api_key_env", ".max_concurrency", ".usd_per_million_input", ".usd_per_million_output")
"""Likewise: where it is asked and what it costs. Answers bought at another address are asked for again."""


def open_run(config: RunConfig, *, resume: bool) -> RunDir:
    """The run's directory, with its resolved configuration in it.

    Raises:
        ConfigError: it has begun and `resume` is False, or it was made by a configuration that differs in more than where and how
            fast it runs.
        StorageError: it cannot be written.
    """
    path = config.out / config.name
    text = to_toml(config)
    if not (resume and RunDir.has_begun(path)):
        run_dir = RunDir.create(path)
    else:
        run_dir = RunDir(path)
        if run_dir.config_path.exists():
            _refuse_drift(tomllib.loads(run_dir.config_path.read_text()), tomllib.loads(text), run_dir)
    run_dir.write_config(text)
    return run_dir


def _refuse_drift(before: Mapping[str, Any], now: Mapping[str, Any], run_dir: RunDir) -> None:
    old, new = _flat(before), _flat(now)
    changed = sorted(k for k in old.keys() | new.keys() if old.get(k) != new.get(k) and not _may_change(k))
    if changed:
        listed = "; ".join(f"{k}: {old.get(k)!r} -> {new.get(k)!r}" for k in changed)
        raise ConfigError(
            f"{run_dir.path} was made by another configuration: {listed}",
            fix="resume with the configuration in its config.toml, or give the new run another name",
        )


def _may_change(key: str) -> bool:
    return key in _MAY_CHANGE or (key.startswith("teachers.") and key.endswith(_OF_A_TEACHER))


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
