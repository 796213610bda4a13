"""What verl and our agent loops wrote of a step, as the run directory has it on every substrate."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from composer_replication.observe import RunDir, Terminal, mean_and_se, pass_at_1
from composer_replication.observe.files import read_lines
from composer_replication.observe.terminal import CHANNELS
from composer_replication.recipes.verl.episodes import GroupRecord, read_groups
from composer_replication.recipes.verl.plan import ArmPlan
from composer_replication.trainer.collector import refuse_unscored, rollout_metrics, unscored
from composer_replication.types import Trajectory, Unscored
from composer_replication.types.errors import BackendError

__all__ = ["VerlMetrics"]

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
    """Follows one arm."""

    plan: ArmPlan
    run_dir: RunDir
    terminal: Terminal
    pairs: int
    """Of each step."""
    costs: Mapping[str, float]
    """Of the replay."""
    traces: Sequence[Trajectory] = ()
    """Those of the starting policy that the pairs are of, where no step was read before: counted from the first step on, as the
    local loop, which records them after its first evaluation, counts them."""
    rollouts: int = 0
    """Read so far, with evaluations and traces."""
    tokens: int = 0
    """Sampled in them."""
    _read: int = 0

    def steps(self) -> Iterator[int]:
        """Record what verl has measured since the last call; the steps that are complete with it.

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
        arm = self.plan.arm
        metrics = self._evaluation(step)
        records = read_groups(self.plan, step, evaluation=False)
        if records:
            metrics |= self._step(step, records, data)
        metrics |= {"rollout/total": float(self.rollouts), "rollout/tokens_total": float(self.tokens), **self.costs}
        self.run_dir.log_metrics(arm, step, metrics)
        if records:
            self.terminal.step(arm, step, self.plan.config.steps, metrics, self._off(metrics, records))

    def _evaluation(self, step: int) -> dict[str, float]:
        groups = [record.group for record in read_groups(self.plan, step, evaluation=True)]
        if not groups:
            return {}
        refuse_unscored(groups, f"{self.plan.arm}: eval")
        self._count([t for g in groups for t in g.trajectories])
        self.run_dir.write_evaluation(self.plan.arm, step, [t for g in groups for t in g.trajectories])
        passed, se = pass_at_1(groups)
        return {"eval/pass_at_1": passed, "eval/pass_at_1_se": se, "eval/unscored": float(len(unscored(groups)))}

    def _step(self, step: int, records: Sequence[GroupRecord], data: Mapping[str, Any]) -> dict[str, float]:
        groups = [record.group for record in records]
        refuse_unscored(groups, f"{self.plan.arm}: rollout")
        self._count([*self.traces, *(t for g in groups for t in g.trajectories)])
        self.traces = ()
        self.run_dir.write_trajectories(self.plan.arm, step, [t for g in groups for t in g.trajectories])
        self.run_dir.write_hints(self.plan.arm, step, [hint for record in records for hint in record.hints])
        metrics = rollout_metrics(groups) | _penalties(records) | _measured(data)
        if self.plan.config.loss.hint.weight > 0:
            untold = [hint for record in records for hint in record.hints if hint.dropped is not None]
            metrics["hint/dropped"] = float(len(untold))
        self._check(metrics, records)
        return metrics

    def _check(self, metrics: Mapping[str, float], records: Sequence[GroupRecord]) -> None:
        """What went into verl's batches must have come to our engine."""
        told = sum(hint.dropped is None for record in records for hint in record.hints)
        sent = {"rlvr/loss": 1, "hint/loss": told, "replay/loss": self.pairs}
        for name, count in sent.items():
            if count and name not in metrics:
                raise BackendError(
                    f"verl trained without {name.partition('/')[0]}, for which there were {count} inputs",
                    fix=f"read {self.plan.log_path}",
                )

    def _count(self, trajectories: Sequence[Trajectory]) -> None:
        self.rollouts += len(trajectories)
        self.tokens += sum(t.num_sampled_tokens() for t in trajectories)

    def _off(self, metrics: Mapping[str, float], records: Sequence[GroupRecord]) -> dict[str, str]:
        """Why a channel has nothing to show in a step."""
        loss = self.plan.config.loss
        dropped = Counter(str(hint.dropped) for record in records for hint in record.hints if hint.dropped is not None)
        reasons = {
            "rlvr": "no trajectory has a verdict",
            "hint": "its weight is 0"
            if loss.hint.weight == 0
            else f"no hints in this step ({', '.join(f'{n} {why}' for why, n in dropped.items()) or 'no error turns'})",
            "replay": "its weight is 0" if loss.replay.weight == 0 else "no pairs",
        }
        off = {channel: reasons[channel] for channel in CHANNELS if f"{channel}/loss" not in metrics}
        verdicts = [[t.reward for t in r.group.trajectories if not isinstance(t.reward, Unscored)] for r in records]
        if all(len(set(each)) < 2 for each in verdicts) and not any(record.penalties for record in records):
            off["rlvr"] = "every advantage is 0: no group has rewards that differ"
        return off


def _measured(data: Mapping[str, Any]) -> dict[str, float]:
    """Of verl's metrics those of our channels, and those that every substrate has."""
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
