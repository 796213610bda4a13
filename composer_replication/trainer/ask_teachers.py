"""Ask teachers about frozen traces of the starting policy, at the states that the gate of `[loss.replay.gate]` chooses."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from composer_replication.config import RunConfig
from composer_replication.hints import detect, detectors_named
from composer_replication.observe import files, usd
from composer_replication.teacher_replay import TraceState, replay_gated
from composer_replication.teachers import Ledger, Teacher, TeacherAnswer
from composer_replication.teachers.gate_steps import with_evidence
from composer_replication.teachers.gating import outcome_lines
from composer_replication.teachers.mining.judged_mining import Judge
from composer_replication.tokens import ChatRenderer
from composer_replication.trainer.run_context import RunContext
from composer_replication.trainer.step_rewards import load_step_scorer
from composer_replication.types import Trajectory
from composer_replication.types.errors import TeacherError


class EntropyReader(Protocol):
    """A reader of trajectories with the policy that sampled them (`PolicyScorer`)."""

    def action_entropies(self, trajectories: Sequence[Trajectory]) -> Mapping[str, Sequence[float | None]]:
        """Return the mean entropy in nats of each turn's action, by trajectory id."""
        ...


async def ask_teachers(
    context: RunContext,
    config: RunConfig,
    arm: str,
    renderer: ChatRenderer,
    states: Sequence[TraceState],
    trajectories: Sequence[Trajectory],
    reader: EntropyReader,
) -> Sequence[TeacherAnswer]:
    """Ask the run's teachers what they would have done at the states, and note what was asked, skipped and paid.

    Answers in the ledger are neither asked nor paid for again, so that a killed run continues where it was.

    Args:
        renderer: of the policy.
        states: of `trajectories`, which the starting policy has sampled.

    Raises:
        TeacherError: no teacher answered, or too few families to agree; BudgetExceededError when the cap is the reason.
    """
    replay, teachers = config.loss.replay, [Teacher.of(t) for t in config.teachers]
    known = states_with_evidence(states, trajectories, config, renderer, reader)
    with context.terminal.phase(f"{arm}: replay {len(states)} states through {len(teachers)} teachers"):
        found = await replay_gated(known, teachers, replay.max_total_usd, replay.gate, seed=config.seed, ledger=_ledger(context))
    asked = len(found.asked(known))
    counts = {"replay/states_asked": float(asked), "replay/states_skipped": float(len(states) - asked)}
    files.replace_file(_counts(context, arm), json.dumps(counts).encode())
    context.terminal.note(f"{arm}: teachers were asked about {asked} of {len(states)} states; {_money(context)}")
    outcome = found.outcome(known)
    for line in [] if outcome is None else outcome_lines(outcome):
        context.terminal.note(f"{arm}: {line}")
    _report_failures(context, config, found.answers)
    return found.answers


def judge_of(context: RunContext, config: RunConfig) -> Judge | None:
    """Return the judge of actions that nothing else can compare: the run's first teacher, where it wants one."""
    if not config.loss.replay.judge:
        return None
    cap = config.loss.replay.max_total_usd
    return Judge(teacher=Teacher.of(config.teachers[0]), ledger=_ledger(context), max_total_usd=cap)


def states_with_evidence(
    states: Sequence[TraceState],
    trajectories: Sequence[Trajectory],
    config: RunConfig,
    renderer: ChatRenderer,
    reader: EntropyReader,
) -> Sequence[TraceState]:
    """Return the states with the evidence that the run's gate reads."""
    gate = config.loss.replay.gate
    if gate.rule == "off":
        return states
    detectors = detectors_named(config.loss.hint.detectors)
    scores = None
    if gate.doubtful > 0:
        rows = load_step_scorer(config, renderer)(trajectories)
        scores = {trajectory.trajectory_id: row for trajectory, row in zip(trajectories, rows, strict=True)}
    return with_evidence(
        states,
        findings={t.trajectory_id: detect(t, detectors) for t in trajectories} if gate.findings else None,
        entropies=reader.action_entropies(trajectories) if gate.uncertain > 0 else None,
        scores=scores,
    )


def teacher_totals(context: RunContext, arm: str) -> dict[str, float]:
    """Return what teachers were asked for an arm and what they have cost the run so far, as metrics.

    `replay/states_asked` and `replay/states_skipped` count the states of the arm's traces. `cost/usd` is of all arms and attempts
    together, as arms share the answers; `cost/usd/TEACHER` is the part of each teacher that cost anything. Empty when none was
    asked yet.
    """
    if not _ledger(context).is_file():
        return {}
    with Ledger(_ledger(context)) as ledger:
        parts = ledger.spent_by_teacher()
    counts: dict[str, float] = json.loads(_counts(context, arm).read_bytes()) if _counts(context, arm).is_file() else {}
    return {**counts, "cost/usd": sum(parts.values()), **{f"cost/usd/{name}": usd for name, usd in parts.items() if usd}}


def _money(context: RunContext) -> str:
    with Ledger(_ledger(context)) as ledger:
        parts, held = ledger.spent_by_teacher(), ledger.held_usd
    listed = ", ".join(f"{name} ${usd(amount)}" for name, amount in parts.items() if amount)
    text = f"teachers have cost ${usd(sum(parts.values()))} so far" + (f" ({listed})" if listed else "")
    return text + (f"; ${usd(held)} of it is held for calls that may have been billed" if held else "")


def _ledger(context: RunContext) -> Path:
    return context.run_dir.path / "ledger.sqlite"


def _counts(context: RunContext, arm: str) -> Path:
    return context.run_dir.ckpt_path / arm / "states_asked.json"


def _report_failures(context: RunContext, config: RunConfig, answers: Sequence[TeacherAnswer]) -> None:
    """Report the calls that failed; refuse to continue when the others can never agree. Raises TeacherError."""
    failed: defaultdict[str, list[str]] = defaultdict(list)
    for answer in answers:
        if answer.error is not None:
            failed[answer.teacher].append(answer.error)
    for name, errors in failed.items():
        context.terminal.note(f"teacher {name}: {len(errors)} of its answers failed, the first: {errors[0]}")
    asked = {a.family or a.teacher for a in answers}
    answering = {a.family or a.teacher for a in answers if a.error is None}
    needed = config.loss.replay.agreement_threshold
    if len(answering) < min(needed, len(asked)):  # a gate may ask fewer than can agree
        raise TeacherError(
            f"{len(answering)} of the teachers' families answered, loss.replay.agreement_threshold is {needed}: "
            + "; ".join(f"{name}: {errors[0]}" for name, errors in failed.items()),
            fix="repair what the errors name, then --resume; answers that were given are kept and not paid for again",
        )
