"""How often a policy solves the tasks of a folder, and which tasks are left out because it does so too rarely or too often."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from composer_replication.tasks.files import read_json, write_whole
from composer_replication.types.errors import ConfigError, TaskError

SOLVED = "solved.json"
"""The file of a folder of tasks, or of a set, with its `SolvedTasks`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SolvedTasks:
    """How often a policy solves each task, and between which shares tasks are used."""

    policy: str
    """Name of the policy, as its evaluation calls it."""
    least: float
    most: float
    """Tasks are used whose share of passed rollouts lies between these."""
    rates: Mapping[str, float]
    """Share of a task's scored rollouts that passed, by task id. A task that is not in it is used."""

    def __post_init__(self) -> None:
        if not 0 <= self.least <= self.most <= 1:
            raise ConfigError(
                f"the pass rate of tasks to keep is to lie between {self.least:g} and {self.most:g}",
                fix="give two numbers between 0 and 1, the smaller first, such as 0.05-0.95",
            )

    def why_not(self, task_id: str) -> str:
        """Return why a task is left out; empty where it is used."""
        rate = self.rates.get(task_id)
        if rate is None or self.least <= rate <= self.most:
            return ""
        wanted = f"{SOLVED} keeps {self.least:.0%} to {self.most:.0%}"
        return f"{task_id} is passed in {rate:.0%} of the rollouts of {self.policy} ({wanted})"


def solved_tasks(folder: Path) -> SolvedTasks | None:
    """Return what is known of the tasks in a folder; None where no policy was tried. Raises TaskError for a damaged record."""
    fix = f"delete it to use every task of {folder}"
    found = read_json(folder / SOLVED, fix=fix)
    if found is None:
        return None
    try:
        return SolvedTasks(
            policy=str(found["policy"]), least=float(found["least"]), most=float(found["most"]), rates=_rates(found["rates"])
        )
    except (KeyError, TypeError, ValueError, AttributeError, ConfigError) as error:
        raise TaskError(f"{folder / SOLVED} is no record of solved tasks", fix=fix) from error


def write_solved(folder: Path, solved: SolvedTasks) -> None:
    """Keep a record beside the tasks. Raises StorageError."""
    record = {"policy": solved.policy, "least": solved.least, "most": solved.most, "rates": dict(sorted(solved.rates.items()))}
    write_whole(folder / SOLVED, json.dumps(record, indent=1).encode() + b"\n")


def rates_of(results: Path, policy: str) -> tuple[str, dict[str, float]]:
    """Read pass rates from the `results.json` of `composer eval`.

    Args:
        policy: the name of one that was evaluated; empty for the only one.

    Returns:
        The policy's name, and the share of passed rollouts by task id.

    Raises:
        ConfigError: the file is no such results, or has no policy of that name, or several and none was named.
    """
    fix = "name the file eval/results.json of a run that `composer eval` has evaluated"
    try:
        found = {str(one["policy"]): _rates(one["pass_rates"]) for one in json.loads(results.read_text("utf-8"))}
    except OSError as error:
        raise ConfigError(f"{results} cannot be read ({error.strerror})", fix=fix) from error
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise ConfigError(f"{results} holds no results of an evaluation", fix=fix) from error
    if policy not in found and (policy or len(found) != 1):
        what = f"{results} has no policy {policy!r}" if policy else f"{results} has {len(found)} policies"
        raise ConfigError(what, fix=f"give --policy one of: {', '.join(found) or 'none is there'}")
    name = policy or next(iter(found))
    return name, found[name]


def _rates(found: Mapping[str, Any]) -> dict[str, float]:
    """Return shares by task id. Raises AttributeError, TypeError or ValueError for what is none."""
    rates = {str(task): float(rate) for task, rate in found.items()}
    if not all(math.isfinite(rate) and 0 <= rate <= 1 for rate in rates.values()):
        raise ValueError("a share is not between 0 and 1")
    return rates
