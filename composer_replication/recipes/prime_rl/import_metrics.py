"""Metrics, trajectories and evaluations of a run, read from what PRIME-RL wrote.

Counts and rewards come from the traces that its orchestrator keeps of every step, the trainer's measures from its `metrics.jsonl`
under the names that ours have. A rollout that broke has no reward and is in no mean.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from composer_replication.config import RunConfig
from composer_replication.observe import RunDir, Terminal, mean_and_se
from composer_replication.observe.files import read_lines
from composer_replication.recipes.prime_rl.algorithm import DROPPED, PAIR
from composer_replication.recipes.prime_rl.traces import task_id_of, trajectory_of
from composer_replication.trainer.journal import ArmJournal, RolloutMeter
from composer_replication.trainer.preflight import NO_SOURCE
from composer_replication.types import Trajectory
from composer_replication.types.channels import switched_off
from composer_replication.types.errors import BackendError

_NAMES = {
    "rlvr/loss/mean": "rlvr/loss",
    "rlvr/clip_frac/mean": "rlvr/clip_frac",
    "rlvr/kl_k3/mean": "rlvr/kl_k3",
    "rlvr/ratio/max/max": "rlvr/ratio/max",
    "rlvr/importance/mean/mean": "rlvr/importance/mean",
    "rlvr/importance/max/max": "rlvr/importance/max",
    "rlvr/kl_ref/mean/mean": "rlvr/kl_ref/mean",
    "entropy/all/mean": "rlvr/entropy/mean",
    "mismatch_kl/all/mean": "mismatch/kl/mean",
    "ref_kl/mean": "hint/kl/mean",
    "optim/grad_norm": "optimizer/grad_norm",
    "optim/lr": "optimizer/learning_rate",
    "time/forward_backward": "time/update_s",
}
"""The trainer's own name -> ours. Means are over sequences."""
_HINTS = ("hint/turns", "hint/held", "hint/tokens", "hint/unread")
_PROOFS = {"hint/turns": "ref_kl/mean", "replay/pairs": "nll/mean"}
"""Counts of what the orchestrator sent for a step, each with the trainer's metric that appears once it has arrived."""
_STEPPED = "optim/grad_norm"
"""A metric that the trainer logs for every step."""


@dataclass(frozen=True, slots=True)
class _Rollout:
    """A record of one rollout."""

    group: str
    task: str
    reward: float | None
    """None: it broke."""
    tokens: int
    """Sampled."""
    turns: int
    pair: bool
    """It is a preference pair, which is no rollout of the policy."""
    metrics: Mapping[str, float]
    dropped: Mapping[str, int]
    """Error turns of its group that got no hint, by reason."""
    trajectory: Trajectory | None


class PrimeRLMetrics:
    """A reader of one arm's records, once PRIME-RL is done with it. Its meter counts every rollout, also those that failed.

    Args:
        outputs: its `output_dir`.
    """

    def __init__(self, config: RunConfig, arm: str, run_dir: RunDir, terminal: Terminal, outputs: Path) -> None:
        self.config, self.outputs = config, outputs
        self.meter = RolloutMeter()
        self.journal = ArmJournal(run_dir, terminal, arm, config.steps, self.meter)
        self._unreadable = 0

    def record(self) -> None:
        """Record every step that PRIME-RL has measured, in place of what was recorded of the arm.

        Raises:
            StorageError: the run directory cannot be written, or a file of PRIME-RL cannot be read.
            BackendError: a trace is none as PRIME-RL 0.8 keeps it; or hints or pairs did not reach the trainer, which is said
                when all is recorded.
        """
        found, given = measured(self.outputs), defaultdict[str, list[int]](list)
        traces = {int(path.name.removeprefix("step_")) for path in self.outputs.rglob("rollouts/step_*")}
        self.journal.rewind(-1)
        for step in sorted(found.keys() | traces):
            metrics = self._evaluation(step)
            rollouts, trained = self._step(step)
            metrics |= trained
            told = found.get(step, {})
            for name in _PROOFS:
                if metrics.get(name) and _STEPPED in told:
                    given[name].append(step)
            metrics |= {ours: told[theirs] for theirs, ours in _NAMES.items() if theirs in told}
            if trained:
                self.journal.record_step(step, rollouts, (), metrics, self._off(metrics))
            else:
                self.journal.log(step, metrics)
        if self._unreadable:
            self.journal.note(f"{self._unreadable} rollouts have no log-probs and are not among the trajectories")
        # over the run, not by step: what overflows a batch is among the traces of its step, and in the batch of the next
        lost = {name: steps for name, steps in given.items() if all(_PROOFS[name] not in told for told in found.values())}
        if lost:
            said = "; ".join(f"{name} of step {', '.join(map(str, steps))}" for name, steps in lost.items())
            raise BackendError(
                f"{self.journal.arm}: PRIME-RL's trainer has not measured what it was given: {said}",
                fix=f"look for {' and '.join(_PROOFS[name] for name in lost)} in the metrics of {self.outputs}",
            )

    # --- inside -------------------------------------------------------------------------------------------------------------

    def _read(self, step: int, kind: str, subset: str) -> list[_Rollout]:
        paths = sorted(self.outputs.rglob(f"rollouts/step_{step}/{kind}/{subset}/traces.jsonl"))
        return [rollout for path in paths for rollout in _rollouts(path, self.config.rollout.temperature)]

    def _evaluation(self, step: int) -> dict[str, float]:
        every = self._count(self._read(step, "eval", "all"))
        if not every:
            return {}
        passed = defaultdict[str, list[float]](list)
        for rollout in every:
            if rollout.reward is not None:
                passed[rollout.task or rollout.group].append(float(rollout.reward >= 1.0))
        mean, se = mean_and_se([sum(values) / len(values) for values in passed.values()])
        return self.journal.write_evaluation(step, self._readable(every), passed=mean, se=se, unscored=_broken(every))

    def _step(self, step: int) -> tuple[list[Trajectory], dict[str, float]]:
        """Return the trajectories and metrics of a step; empty where nothing was trained on."""
        arrived = self._count([one for one in self._read(step, "train", "all") if not one.pair])
        trained = self._read(step, "train", "effective")
        rollouts, pairs = [one for one in trained if not one.pair], [one for one in trained if one.pair]
        if not trained:
            return [], {}
        metrics = _of_rollouts(rollouts) if rollouts else {}
        metrics["reward/unscored"] = float(_broken(arrived))
        if self.config.loss.hint.weight > 0:
            groups = {one.group: one.dropped for one in rollouts}
            metrics |= {name: _total(rollouts, name) for name in _HINTS}
            metrics["hint/dropped"] = float(sum(sum(dropped.values()) for dropped in groups.values()))
        if pairs:
            metrics["replay/pairs"] = _total(pairs, "replay/pairs")
            compared = ("replay/margin", "replay/accuracy") if self.config.loss.replay.compares else ()
            for name in ("replay/loss", *compared):
                metrics[name] = _total(pairs, name) / len(pairs)
        return self._readable(rollouts), metrics

    def _count(self, rollouts: list[_Rollout]) -> list[_Rollout]:
        self.meter.rollouts += len(rollouts)
        self.meter.tokens += sum(one.tokens for one in rollouts)
        return rollouts

    def _readable(self, rollouts: Sequence[_Rollout]) -> list[Trajectory]:
        found = [one.trajectory for one in rollouts if one.trajectory is not None]
        self._unreadable += len(rollouts) - len(found)
        return found

    def _off(self, metrics: Mapping[str, float]) -> dict[str, str]:
        """Return why channels have nothing to show in a step."""
        loss, off = self.config.loss, {}
        if metrics.get("rlvr/frac_zero_std", 1.0) == 1.0:
            off["rlvr"] = "every advantage is 0: no group has rewards that differ"
        if not metrics.get("hint/turns"):
            dropped = f"{metrics.get('hint/dropped', 0.0):g} error turns without a hint"
            if unread := metrics.get("hint/unread"):
                dropped += f", {unread:g} branches that cannot be read"
            off["hint"] = switched_off("hint") if loss.hint.weight == 0 else f"no hints in this step ({dropped})"
        if not metrics.get("replay/pairs"):
            why = "no pairs in this step" if loss.replay.pairs is not None else f"no pairs: {NO_SOURCE}"
            off["replay"] = switched_off("replay") if loss.replay.weight == 0 else why
        return off


def measured(outputs: Path) -> dict[int, dict[str, float]]:
    """Return the numbers in the `metrics.jsonl` files of trainer and orchestrator, by step."""
    steps: dict[int, dict[str, float]] = defaultdict(dict)
    for path in sorted(outputs.rglob("metrics.jsonl")):
        for row in read_lines(path):
            numbers = {k: float(v) for k, v in row.items() if isinstance(v, int | float) and k not in ("step", "time")}
            steps[int(row["step"])] |= numbers
    return dict(steps)


def _of_rollouts(rollouts: Sequence[_Rollout]) -> dict[str, float]:
    """Return what `trainer.journal.rollout_metrics` returns, as far as PRIME-RL keeps it."""
    groups = defaultdict[str, list[float]](list)
    for one in rollouts:
        if one.reward is not None:
            groups[one.group].append(one.reward)
    mean, se = mean_and_se([sum(rewards) / len(rewards) for rewards in groups.values()])
    return {
        "reward/mean": mean,
        "reward/mean_se": se,
        "rlvr/frac_zero_std": sum(len(set(rewards)) < 2 for rewards in groups.values()) / max(1, len(groups)),
        "rlvr/tokens": float(sum(one.tokens for one in rollouts)),
        "rollout/turns/mean": sum(one.turns for one in rollouts) / len(rollouts),
        "rollout/tokens/mean": sum(one.tokens for one in rollouts) / len(rollouts),
    }


def _total(rollouts: Iterable[_Rollout], name: str) -> float:
    return float(sum(one.metrics.get(name) or 0.0 for one in rollouts))


def _broken(rollouts: Iterable[_Rollout]) -> int:
    return sum(one.reward is None for one in rollouts)


def _rollouts(path: Path, temperature: float) -> Iterator[_Rollout]:
    for number, record in enumerate(read_lines(path), start=1):
        try:
            yield _rollout(record, temperature)
        except (KeyError, TypeError, AttributeError) as error:
            raise BackendError(
                f"{path}, line {number}: no rollout as PRIME-RL 0.8 keeps it: {error!r}", fix="use its release v0.8.0"
            ) from error


def _rollout(record: Mapping[str, Any], temperature: float) -> _Rollout:
    info, nodes = record["info"], record["nodes"]
    rewards = [one for one in record["rewards"].values() if one["score"] is not None]
    reward = None if record["errors"] else float(sum(one["score"] * one["weight"] for one in rewards))
    trace = _trace(record, reward or 0.0)
    trajectory = None
    if reward is not None and PAIR not in info:
        trajectory = trajectory_of(trace, _last_path([_node(node) for node in nodes]))
    if trajectory is not None:
        trajectory = dataclasses.replace(trajectory, policy_version=int(info["policy_version"]), temperature=temperature)
    return _Rollout(
        group=str(info["group_id"]),
        task=task_id_of(trace),
        reward=reward,
        tokens=sum(sum(node["mask"]) for node in nodes if node["sampled"]),
        turns=sum(bool(node["sampled"]) for node in nodes),
        pair=PAIR in info,
        metrics=record["metrics"],
        dropped=info.get(DROPPED, {}),
        trajectory=trajectory,
    )


def _trace(record: Mapping[str, Any], reward: float) -> Any:
    """Return a record in the form that `traces.trajectory_of` reads."""
    task = SimpleNamespace(data=SimpleNamespace(task_id=record["task"]["data"].get("task_id")))
    tools = [SimpleNamespace(**tool) for tool in record["tools"]]
    return SimpleNamespace(
        id=record["id"], task=task, tools=tools, info=record["info"], stop_condition=record["stop_condition"], reward=reward
    )


def _node(node: Mapping[str, Any]) -> Any:
    message = dict(node["message"])
    message["tool_calls"] = [SimpleNamespace(**call) for call in message.get("tool_calls") or ()]
    if isinstance(message.get("content"), list):
        message["content"] = [SimpleNamespace(**part) for part in message["content"]]
    return SimpleNamespace(**{**node, "message": SimpleNamespace(**message)})


def _last_path(nodes: Sequence[Any]) -> list[Any]:
    """Return the path from the root to the last node: everything that the policy had seen at the end."""
    path, at = [], len(nodes) - 1 if nodes else None
    while at is not None:
        path.append(nodes[at])
        at = nodes[at].parent
    return path[::-1]
