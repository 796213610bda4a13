"""The records of verl and of our agent loops, written to the run directory as on every substrate."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from composer_replication.observe import mean_and_se
from composer_replication.observe.files import read_lines
from composer_replication.recipes.verl.episodes import GroupRecord, read_groups
from composer_replication.recipes.verl.plan import ArmPlan
from composer_replication.trainer.journal import ArmJournal, flat, refuse_unscored, rollout_metrics
from composer_replication.types import Trajectory, Unscored
from composer_replication.types.channels import CHANNELS, switched_off
from composer_replication.types.errors import BackendError

_RENAMED = {
    "actor/grad_norm": "optimizer/grad_norm",
    "actor/optimizer/learning_rate": "optimizer/learning_rate",
    "actor/loss/total": "loss/total",
    "rollout_corr/k3_kl": "rlvr/kl_k3",
    "timing_s/gen": "time/rollout_s",
    "timing_s/update_actor": "time/update_s",
    "timing_s/update_weights": "time/sync_s",
    "timing_s/step": "time/step_s",
}
"""verl's metrics that a run of any substrate has too."""


@dataclass(slots=True)
class VerlMetrics:
    """A reader of one arm's records."""

    plan: ArmPlan
    journal: ArmJournal
    pairs: int
    """Pairs of each step."""
    traces: Sequence[Trajectory] = ()
    """The starting policy's traces that the pairs come from, where no step was read before. They count from the first step on,
    as in the local loop, which records them after its first evaluation."""
    _read: int = 0

    def steps(self) -> Iterator[int]:
        """Record what verl has measured since the last call, and yield the steps that this completes.

        Raises:
            BackendError: a channel that had inputs is not in verl's metrics.
            SandboxError: none of the rollouts of a step could be graded.
        """
        lines = list(read_lines(self.plan.metrics_path))
        for line in lines[self._read :]:
            self._read += 1
            self._record(int(line["step"]), line["data"])
            yield int(line["step"])

    def _record(self, step: int, data: Mapping[str, Any]) -> None:
        metrics = self._evaluation(step)
        records = read_groups(self.plan, step, evaluation=False)
        if not records:
            self.journal.log(step, metrics)
            return
        metrics |= self._step(records, data)
        trajectories = flat([record.group for record in records])
        hints = [hint for record in records for hint in record.hints]
        self.journal.record_step(step, trajectories, hints, metrics, self._off(metrics, records))

    def _evaluation(self, step: int) -> dict[str, float]:
        groups = [record.group for record in read_groups(self.plan, step, evaluation=True)]
        if not groups:
            return {}
        self.journal.meter.count(flat(groups))
        return self.journal.record_evaluation(step, groups)

    def _step(self, records: Sequence[GroupRecord], data: Mapping[str, Any]) -> dict[str, float]:
        groups = [record.group for record in records]
        refuse_unscored(groups, f"{self.plan.arm}: rollout")
        self.journal.meter.count([*self.traces, *flat(groups)])
        self.traces = ()
        metrics = rollout_metrics(groups) | _penalties(records) | _measured(data)
        if self.plan.config.loss.hint.weight > 0:
            dropped = [hint for record in records for hint in record.hints if hint.dropped is not None]
            metrics["hint/dropped"] = float(len(dropped))
        self._check(metrics, records)
        return metrics

    def _check(self, metrics: Mapping[str, float], records: Sequence[GroupRecord]) -> None:
        """Raise BackendError when inputs of verl's batches did not reach our engine."""
        told = sum(hint.dropped is None for record in records for hint in record.hints)
        sent = {"rlvr/loss": 1, "hint/loss": told, "replay/loss": self.pairs}
        for name, count in sent.items():
            if count and name not in metrics:
                raise BackendError(
                    f"verl trained without {name.partition('/')[0]}, for which there were {count} inputs",
                    fix=f"read {self.plan.log_path}",
                )

    def _off(self, metrics: Mapping[str, float], records: Sequence[GroupRecord]) -> dict[str, str]:
        """Return why channels have nothing to show in a step."""
        loss = self.plan.config.loss
        dropped = Counter(str(hint.dropped) for record in records for hint in record.hints if hint.dropped is not None)
        reasons = {
            "rlvr": "no trajectory has a verdict",
            "hint": switched_off("hint")
            if loss.hint.weight == 0
            else f"no hints in this step ({', '.join(f'{n} {why}' for why, n in dropped.items()) or 'no error turns'})",
            "replay": switched_off("replay") if loss.replay.weight == 0 else "no pairs",
        }
        off = {channel: reasons[channel] for channel in CHANNELS if f"{channel}/loss" not in metrics}
        verdicts = [[t.reward for t in r.group.trajectories if not isinstance(t.reward, Unscored)] for r in records]
        if all(len(set(each)) < 2 for each in verdicts) and not any(record.penalties for record in records):
            off["rlvr"] = "every advantage is 0: no group has rewards that differ"
        return off


def _measured(data: Mapping[str, Any]) -> dict[str, float]:
    """Return those of verl's metrics that are of our channels or that every substrate has."""
    found = {}
    for name, value in data.items():
        plain = name.removeprefix("actor/")
        if plain.partition("/")[0] in CHANNELS:
            found[plain] = float(value)
        elif name in _RENAMED:
            found[_RENAMED[name]] = float(value)
    return found


def _penalties(records: Sequence[GroupRecord]) -> dict[str, float]:
    names = dict.fromkeys(name for record in records for name in record.penalties)
    every = {name: [value for record in records for value in record.penalties[name]] for name in names}
    return {f"reward/{name}_penalty": mean_and_se(values)[0] for name, values in every.items()}
