"""The alarms of a run's rollouts, per arm: how many, why, and which to read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from composer_replication.observe import files
from composer_replication.observe.run_dir import RunDir
from composer_replication.types import cause_of

_MOST_STEPS = 50
_EXAMPLES = 5
_CAUSES = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmAlarms:
    """The alarms of one arm's training."""

    arm: str
    rollouts: int
    """Rollouts with an alarm, as `cheat/alarms` counts them."""
    causes: Sequence[tuple[str, int]]
    """What the alarms say and in how many rollouts, the most frequent first: of the newest steps with alarms."""
    examples: Sequence[tuple[int, str]]
    """Step and trajectory id of some of them, the newest first."""

    def sentence(self) -> str:
        """Return one line for the terminal and the report's notes."""
        causes = "; ".join(f"{cause} ({count})" for cause, count in self.causes[:_CAUSES])
        why = f"most often: {causes}. " if causes else ""
        counted = f"{self.rollouts} rollouts of {self.arm} raised an alarm"
        return f"CHEAT ALARM: {counted}, {why}Read their trajectories before you trust its rewards."


def run_alarms(run: RunDir) -> list[ArmAlarms]:
    """Return the alarms of every arm that has some. Raises StorageError when a file of the run is damaged."""
    steps: dict[str, dict[int, int]] = {}
    for line in run.read_metrics():
        if line.values.get("cheat/alarms"):
            steps.setdefault(line.arm, {})[line.step] = int(line.values["cheat/alarms"])
    return [_arm(run, arm, counts) for arm, counts in steps.items()]


def _arm(run: RunDir, arm: str, counts: dict[int, int]) -> ArmAlarms:
    causes: Counter[str] = Counter()
    examples: list[tuple[int, str]] = []
    for step in sorted(counts, reverse=True)[:_MOST_STEPS]:
        for row in files.read_lines(run.trajectories_path(arm, step)):
            alarms = _alarms(row)
            causes.update({cause_of(alarm) for alarm in alarms})
            if alarms and len(examples) < _EXAMPLES:
                examples.append((step, row["trajectory_id"]))
    return ArmAlarms(arm=arm, rollouts=sum(counts.values()), causes=causes.most_common(), examples=examples)


def _alarms(row: dict[str, Any]) -> Iterable[str]:
    return (row.get("grade") or {}).get("alarms") or ()
