"""The alarms of a run's rollouts, per arm: how many, why, and which to read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from composer_replication.observe import files
from composer_replication.observe.run_dir import RunDir
from composer_replication.types import cause_of

_MOST_STEPS = 50
_EXAMPLES = 5
_CAUSES = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Alarmed:
    """A rollout with an alarm."""

    step: int
    evaluation: bool
    """It is of the evaluation after `step` optimizer steps, not of training."""
    trajectory_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmAlarms:
    """The alarms of one arm's rollouts, in training and in evaluations."""

    arm: str
    rollouts: int
    """Rollouts with an alarm, as `cheat/alarms` and `eval/alarms` count them."""
    causes: Sequence[tuple[str, int]]
    """What the alarms say and in how many rollouts, the most frequent first: of the newest steps with alarms."""
    examples: Sequence[Alarmed]
    """Some of them, the newest first."""

    def sentence(self) -> str:
        """Return one line for the terminal and the report's notes."""
        causes = "; ".join(f"{cause} ({count})" for cause, count in self.causes[:_CAUSES])
        why = f"most often: {causes}. " if causes else ""
        counted = f"{self.rollouts} rollouts of {self.arm} raised an alarm"
        return f"CHEAT ALARM: {counted}, {why}Read their trajectories before you trust its rewards."


def run_alarms(run: RunDir) -> list[ArmAlarms]:
    """Return the alarms of every arm that has some. Raises StorageError when a file of the run is damaged."""
    counts: dict[str, dict[tuple[int, bool], int]] = {}
    for line in run.read_metrics():
        for name, evaluation in (("cheat/alarms", False), ("eval/alarms", True)):
            if line.values.get(name):
                counts.setdefault(line.arm, {})[line.step, evaluation] = int(line.values[name])
    return [_arm(run, arm, mine) for arm, mine in counts.items()]


def _arm(run: RunDir, arm: str, counts: dict[tuple[int, bool], int]) -> ArmAlarms:
    causes: Counter[str] = Counter()
    examples: list[Alarmed] = []
    for step, evaluation in sorted(counts, reverse=True)[:_MOST_STEPS]:
        for row in files.read_lines((run.evaluation_path if evaluation else run.trajectories_path)(arm, step)):
            alarms = (row.get("grade") or {}).get("alarms") or ()
            causes.update({cause_of(alarm) for alarm in alarms})
            if alarms and len(examples) < _EXAMPLES:
                examples.append(Alarmed(step=step, evaluation=evaluation, trajectory_id=row["trajectory_id"]))
    return ArmAlarms(arm=arm, rollouts=sum(counts.values()), causes=causes.most_common(), examples=examples)
