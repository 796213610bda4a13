"""The verdict on each arm of a run: what its policy learnt, with an interval, or why it learnt nothing and what to try.

It is read from the files of the run, so that it is the same for every substrate and at any time.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from composer_replication.observe.metrics import mean_and_se, pass_rates, t_975
from composer_replication.observe.run_dir import MetricsLine, RunDir
from composer_replication.types.channels import CHANNELS, switched_off
from composer_replication.types.errors import NothingLearntError

FEWEST_TASKS = 6
"""Held-out tasks below which no difference is called one: the most extreme signs of five differences come up by chance in 1 of 16
cases, more often than the 1 in 20 of a 95 % interval."""
_MOST = 0.5
"""A way to end that more than this share of the rollouts took is named as the cause."""


class Learnt(StrEnum):
    """How a policy changed."""

    BETTER = "better"
    """pass@1 on held-out tasks rose, and the interval of its change excludes 0."""
    WORSE = "worse"
    """pass@1 fell, and the interval of its change excludes 0."""
    UNCLEAR = "unclear"
    """The interval of the change includes 0."""
    UNMEASURED = "unmeasured"
    """There are not two evaluations on held-out tasks."""
    NOTHING = "nothing"
    """No channel had anything to train on at any step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Judges what one arm learnt."""

    arm: str
    learnt: Learnt
    finding: str
    """One sentence: what was measured, or why nothing was learnt."""
    fix: str = ""
    """Advice on what to try; empty where there is none."""
    idle: Mapping[str, str] = field(default_factory=dict)
    """By channel that the run turned on and that trained at no step: the most frequent reason."""

    @property
    def failed(self) -> bool:
        """True when `strict = true` refuses the arm: it learnt nothing, got worse, was not measured, or has a channel that never
        trained."""
        return self.learnt in (Learnt.NOTHING, Learnt.WORSE, Learnt.UNMEASURED) or bool(self.idle)

    def sentence(self) -> str:
        """Return one paragraph for the terminal and the report."""
        parts = [f"VERDICT on {self.arm}: {self.finding}."]
        if self.learnt is not Learnt.NOTHING:
            parts += [f"The {channel} channel is on and never trained: {reason}." for channel, reason in self.idle.items()]
        return " ".join([*parts, *([f"Try: {self.fix}."] if self.fix else [])])


@dataclass(frozen=True, slots=True)
class PassRateChange:
    """The change of pass@1 from the first evaluation of an arm to the last."""

    tasks: int
    """Held-out tasks with a verdict in both."""
    before: float
    after: float
    half_width: float
    """Half the width of the 95 % interval of `after - before`; NaN for one task."""

    def __str__(self) -> str:
        """Format as `+0.250, 95 % interval +0.100 to +0.400`."""
        change, half = self.after - self.before, self.half_width
        # equal changes of all tasks are no proof of more
        return f"{change:+.3f}" + (f", 95 % interval {change - half:+.3f} to {change + half:+.3f}" if half > 0 else "")

    @property
    def learnt(self) -> Learnt:
        """BETTER, WORSE or UNCLEAR."""
        change = self.after - self.before
        if self.tasks < FEWEST_TASKS or not abs(change) > self.half_width:
            return Learnt.UNCLEAR
        return Learnt.BETTER if change > 0 else Learnt.WORSE


def run_verdicts(run: RunDir) -> list[Verdict]:
    """Return the verdict on every arm that has taken a step. Raises StorageError when a file of the run is damaged."""
    lines = [line for line in run.read_metrics() if line.step > 0]
    off = run.read_off()
    return [
        _verdict(
            run,
            arm,
            [line for line in lines if line.arm == arm],
            [why for (of, _), why in sorted(off.items()) if of == arm],
        )
        for arm in dict.fromkeys(line.arm for line in lines)
    ]


def refuse_failed(failed: Sequence[str]) -> None:
    """Raise NothingLearntError where an arm has a verdict that `strict = true` refuses (`Verdict.failed`)."""
    if failed:
        raise NothingLearntError(
            f"strict = true, and the verdict on {', '.join(failed)} is that too little was learnt",
            fix="do what the verdict says; weights and report are as they would be without strict",
        )


def change_of(run: RunDir, arm: str) -> PassRateChange | None:
    """Return how pass@1 of an arm changed; None when its evaluations have no task in common.

    The difference is paired: the standard error is that of the tasks' differences, with Student's t for so many tasks.
    """
    steps = run.evaluations(arm)
    if len(steps) < 2 or steps[0] > 0:  # without the start nothing is known of the change
        return None
    first, last = (pass_rates((t.task_id, t.reward) for t in run.read_evaluation(arm, step)) for step in (steps[0], steps[-1]))
    return paired_change(first, last)


def paired_change(first: Mapping[str, float], last: Mapping[str, float]) -> PassRateChange | None:
    """Return the change from one set of pass rates by task to another; None when they have no task in common."""
    tasks = sorted(first.keys() & last.keys())
    if not tasks:
        return None
    before, after = (math.fsum(rates[task] for task in tasks) / len(tasks) for rates in (first, last))
    _, se = mean_and_se([last[task] - first[task] for task in tasks])
    return PassRateChange(len(tasks), before, after, math.nan if len(tasks) < 2 else t_975(len(tasks) - 1) * se)


def _verdict(run: RunDir, arm: str, lines: Sequence[MetricsLine], off: Sequence[Mapping[str, str]]) -> Verdict:
    idle = _idle(off)
    causes = list(_causes(lines)) if "rlvr" in idle else []
    if off and all(all(channel in why for channel in CHANNELS) for why in off):
        reasons = "; ".join([cause for cause, _ in causes] or [f"{channel}: {why}" for channel, why in idle.items()])
        finding = f"nothing was learnt: there was nothing to train on in {len(off)} step{'s' * (len(off) > 1)}, because {reasons}"
        return Verdict(
            arm=arm, learnt=Learnt.NOTHING, finding=finding, fix="; ".join(fix for _, fix in causes) or _RENEW, idle=idle
        )
    if causes:
        idle["rlvr"] += f" ({'; '.join(cause for cause, _ in causes)})"
    return _with_fixes(_of_what_is_held_out(run, arm, lines, idle), [fix for _, fix in causes])


def _with_fixes(verdict: Verdict, fixes: Sequence[str]) -> Verdict:
    return replace(verdict, fix="; ".join(dict.fromkeys([*fixes, *([verdict.fix] if verdict.fix else [])])))


def _of_what_is_held_out(run: RunDir, arm: str, lines: Sequence[MetricsLine], idle: Mapping[str, str]) -> Verdict:
    """Judge an arm in which some channel trained."""
    read = next((line.values for line in reversed(lines) if "pretrain/nll_change" in line.values), None)
    if read is not None:
        return _of_text(arm, read)
    change = change_of(run, arm)
    if change is None:
        return Verdict(
            arm=arm,
            learnt=Learnt.UNMEASURED,
            finding="what was learnt is not known: there are no two evaluations on what is held out",
            fix=_MEASURE_TEXT if any("pretrain/passages" in line.values for line in lines) else _MEASURE,
            idle=idle,
        )
    return _measured(arm, change, idle)


def _of_text(arm: str, values: Mapping[str, float]) -> Verdict:
    """Judge what an arm learnt from text: nats per token of held-out documents, paired by document."""
    documents, now, change = int(values["pretrain/documents"]), values["pretrain/nll"], values["pretrain/nll_change"]
    half = t_975(documents - 1) * values["pretrain/nll_change_se"] if documents > 1 else math.nan
    moved = f"{documents} held-out documents went from {now - change:.3f} to {now:.3f} nats per token ({change:+.3f}"
    moved += f", 95 % interval {change - half:+.3f} to {change + half:+.3f})" if half > 0 else ")"
    if documents < FEWEST_TASKS or not abs(change) > half:
        fix = "more documents, or a larger pretrain.held_out_share" if documents < FEWEST_TASKS else "more steps, or more text"
        return Verdict(arm=arm, learnt=Learnt.UNCLEAR, finding=f"no change can be told from chance: {moved}", fix=fix)
    if change < 0:
        return Verdict(arm=arm, learnt=Learnt.BETTER, finding=f"the policy learnt: {moved}")
    fix = "a lower pretrain.learning_rate, or fewer passes over the text"
    return Verdict(arm=arm, learnt=Learnt.WORSE, finding=f"the policy got worse: {moved}", fix=fix)


def _measured(arm: str, change: PassRateChange, idle: Mapping[str, str]) -> Verdict:
    moved = f"pass@1 on {change.tasks} held-out tasks went from {change.before:.3f} to {change.after:.3f} ({change})"
    findings = {
        Learnt.BETTER: f"the policy learnt: {moved}",
        Learnt.WORSE: f"the policy got worse: {moved}",
        Learnt.UNCLEAR: f"no change can be told from chance: {moved}",
    }
    fixes = {
        Learnt.BETTER: "",
        Learnt.WORSE: "a lower learning rate, or arms that leave channels out one by one; an earlier checkpoint may be better "
        "than the last",
        Learnt.UNCLEAR: "more steps"
        + (f"; at least {FEWEST_TASKS} held-out tasks, fewer show nothing" if change.tasks < FEWEST_TASKS else "")
        + ("; more held-out tasks or a higher eval.samples, which narrow the interval" if change.tasks >= FEWEST_TASKS else ""),
    }
    return Verdict(arm=arm, learnt=change.learnt, finding=findings[change.learnt], fix=fixes[change.learnt], idle=idle)


def _idle(off: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """Return the channels that trained at no step though their weight is above 0, each with its most frequent reason."""
    found = {}
    for channel in CHANNELS:
        reasons = Counter(why[channel] for why in off if channel in why)
        if off and reasons.total() == len(off) and switched_off(channel) not in reasons:
            found[channel] = reasons.most_common(1)[0][0]
    return found


_MEASURE = "set tasks.held_out to tasks of another repository, or tasks.held_out_share"
_MEASURE_TEXT = "set pretrain.held_out_share, or name more text"
_RENEW = "composer train RUN.toml --dry-run, which makes two rollouts and an update"
_ENDINGS = {
    "no_tool_call": (
        "ended with a turn that calls no tool",
        "a model that was trained to call tools with its chat template, or `composer sft` first; `composer hints explain` shows "
        "what the turns look like",
    ),
    "turn_tokens": ("were cut off inside a turn", "a higher rollout.turn_tokens"),
    "trajectory_tokens": ("used up their tokens", "a higher rollout.trajectory_tokens"),
    "context_tokens": ("filled the context", "a higher rollout.context_tokens"),
    "max_turns": ("used up their turns", "a higher rollout.max_turns"),
}


def _causes(lines: Sequence[MetricsLine]) -> Iterator[tuple[str, str]]:
    """Yield why no channel had anything to train on and what to try, from the metrics of the steps."""

    def mean(name: str) -> float:
        return mean_and_se([line.values[name] for line in lines if name in line.values])[0]

    if lines[-1].values.get("rollout/tokens_total") == 0:
        yield (
            "no token was ever sampled: the prompts leave no room for a turn",
            "a higher rollout.context_tokens; --dry-run prints how long the prompts are",
        )
        return
    for ending, (what, fix) in _ENDINGS.items():
        if (share := mean(f"stop/{ending}")) > _MOST:
            yield f"{share:.0%} of the rollouts {what}", fix
    reward = mean("reward/mean")
    if not mean("rlvr/frac_zero_std") < 1.0 and math.isfinite(reward):
        if reward <= 0:
            yield (
                "no rollout was rewarded",
                "easier tasks (`composer tasks list`), a stronger model, or a larger rollout.group_size",
            )
        elif reward >= 1:
            yield "every rollout was rewarded before anything was learnt", "harder tasks"
        else:
            yield "siblings always got the same reward", "a larger rollout.group_size or a higher rollout.temperature"
