"""The replay channel's data: frozen traces, the teachers' answers, and the disagreements the sandbox confirms."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any, Protocol

from composer_replication.actions.agreement import Scene
from composer_replication.actions.calls import action_message
from composer_replication.actions.tool_effects import EffectKind, classify_call
from composer_replication.config import RunConfig
from composer_replication.envs.coding import CodingEnv
from composer_replication.envs.scenes import sandbox_scene
from composer_replication.observe import files
from composer_replication.replaysim import DJNormalizer
from composer_replication.replaysim.builtin import states_lost
from composer_replication.replaysim.recipe import DEDUPLICATOR
from composer_replication.rollouts.protocol import Env
from composer_replication.teacher_replay import (
    DPOPair,
    PairMining,
    TraceState,
    pairs_to_token_pairs,
)
from composer_replication.teachers import TeacherAnswer
from composer_replication.teachers.mining.judged_mining import find_judged_disagreements
from composer_replication.teachers.mining.pair_mining import scene_of
from composer_replication.tokens import ChatRenderer
from composer_replication.traces import states_from_trajectories
from composer_replication.traces.states import place_of
from composer_replication.trainer.ask_teachers import EntropyReader, ask_teachers, judge_of
from composer_replication.trainer.coding_tasks import CodingTasks
from composer_replication.trainer.pairs.held import apart, turns_to_hold
from composer_replication.trainer.pairs.pairs_file import file_pairs, fits, shuffled
from composer_replication.trainer.pairs.soft_targets import open_soft_scorers, with_soft_targets
from composer_replication.trainer.run_context import RunContext
from composer_replication.types import Group, Message, Pair, ToolCall, ToolResult, Trajectory, Unscored, from_json, to_json
from composer_replication.types.errors import SandboxError


class TraceRecorder(Protocol):
    """A source of trajectories of the starting policy, to be frozen (`trainer.collector.RolloutCollector`)."""

    @property
    def arm(self) -> str: ...

    @property
    def renderer(self) -> ChatRenderer: ...

    @property
    def context_window(self) -> int:
        """Most positions the policy can attend to."""
        ...

    async def record_traces(self) -> list[Group]: ...


class Scorer(EntropyReader, Protocol):
    """A reader of traces that can also score pairs (`PolicyScorer`)."""

    def with_reference_logprobs(self, pairs: list[Pair]) -> list[Pair]: ...


async def collect_pairs(context: RunContext, config: RunConfig, actor: TraceRecorder, scorer: Scorer) -> list[Pair]:
    """Return the pairs of the teachers and of the run's file, with reference log-probs and soft targets; keep them for
    `stored_pairs`.

    Raises:
        ConfigError: the file gives no pair (`file_pairs`), or as `open_soft_scorers`.
        TeacherError: no teacher answered, or BudgetExceededError when the cap is the reason.
    """
    scorers = await asyncio.to_thread(open_soft_scorers, config, actor.renderer.tokenizer)  # before anything is paid for
    given = file_pairs(config, actor.renderer, actor.context_window)
    pairs = await _pairs_of_teachers(context, config, actor, scorer) if config.teachers else []
    if given is not None:
        ours, held = apart(pairs)
        compared = shuffled([*ours, *given.pairs], config.seed)
        read = compared[: config.steps * config.loss.replay.pairs_per_step]  # no step comes to the others
        context.terminal.note(f"{actor.arm}: {given}; {len(read)} of {len(compared)} pairs are read in {config.steps} steps")
        traces = {place_of(pair.pair_id)[0] for pair in set(ours).intersection(read)}
        pairs = [*read, *(pair for pair in held if place_of(pair.pair_id)[0] in traces)]
    pairs = scorer.with_reference_logprobs(pairs)
    pairs = await asyncio.to_thread(with_soft_targets, pairs, scorers, config.loss.replay.soft_top_k)
    files.replace_file(_store(context, actor.arm), "".join(json.dumps(to_json(p)) + "\n" for p in pairs).encode())
    return pairs


async def _pairs_of_teachers(context: RunContext, config: RunConfig, actor: TraceRecorder, reader: Scorer) -> list[Pair]:
    """Replay the starting policy's traces through the teachers, and return the pairs of the disagreements."""
    ours = isinstance(context.source, CodingTasks)
    groups = await actor.record_traces()
    trajectories = [t for g in groups for t in g.trajectories]
    states = states_from_trajectories(trajectories)
    answers = await ask_teachers(context, config, actor.arm, actor.renderer, states, trajectories, reader)
    with context.terminal.phase(f"{actor.arm}: compare {len(answers)} answers"):
        found = await find_judged_disagreements(
            states,
            answers,
            config.loss.replay.agreement_threshold,
            judge=judge_of(context, config),
            scenes=partial(_scene, context, {t.trajectory_id: t for t in trajectories}) if ours else scene_of,
            weights="fitted",
        )
    dropped = Counter(found.dropped)
    normalized = await asyncio.to_thread(_normalized, context, config, actor.arm, found.pairs, dropped)
    kept = _that_fit(normalized, trajectories, actor, dropped)
    if config.loss.replay.verify:
        kept = await _verified(context, kept, trajectories, dropped)
    pairs = pairs_to_token_pairs(kept, trajectories, actor.renderer, found.confidence)
    held = list(turns_to_hold(pairs, trajectories, config, {pair["state_id"] for pair in found.pairs}))
    context.run_dir.write_pairs(actor.arm, _rows(kept, answers, trajectories))
    context.terminal.note(
        f"{actor.arm}: {len(pairs)} preference pairs from {len(states)} states, and {len(held)} turns to hold; "
        f"no pair: {_counts(dropped)}; "
        f"answers without a vote: {_counts(Counter(found.abstained))}"
    )
    context.terminal.note(f"{actor.arm}: {_agreement(found)}")
    return [*pairs, *held]


def _agreement(found: PairMining) -> str:
    """Describe in a line how votes were compared and weighed."""
    weights = ", ".join(f"{family} {weight:.2f}" for family, weight in found.weights.items())
    ratio = "" if found.length_ratio is None else f"; chosen over rejected length {found.length_ratio:.2f}"
    torn = f"; {found.dissolved} clusters contradicted themselves" if found.dissolved else ""
    return f"comparisons: {_counts(Counter(found.methods))}; weights of families: {weights}{ratio}{torn}"


def _scene(context: RunContext, trajectories: Mapping[str, Trajectory], state: TraceState) -> Scene:
    """Return the student's workspace at one of our states, and the sandbox if pairs are verified; both open on first use."""
    trajectory, turn = trajectories[state["trajectory_id"]], state["turn"]

    @cache
    def env() -> CodingEnv:
        found = context.coding.make(trajectory.task_id)
        _go_to(found, trajectory, turn)
        return found

    return sandbox_scene(state, env, runs=context.config.loss.replay.verify)


def _normalized(
    context: RunContext, config: RunConfig, arm: str, pairs: Sequence[DPOPair], dropped: Counter[str]
) -> list[DPOPair]:
    """Return the pairs that pass the normaliser of `[loss.replay.normalize]`; all of them where it is off."""
    options = config.loss.replay.normalize
    if not options.enabled:
        return list(pairs)
    normalizer = DJNormalizer.of(options)
    normalizer.normalize(pairs)
    report = normalizer.report
    assert report is not None
    reasons = {f"dropped by {title}": count for title, count in report.dropped.items() if count}
    dropped.update(reasons)
    context.terminal.note(f"{arm}: the normaliser kept {report.kept} of {report.given} pairs: {_counts(Counter(reasons))}")
    lost = states_lost(normalizer.operators, pairs, report.dropped_by)
    if lost:
        context.terminal.note(f"{arm}: {lost} dropped although their states differ; remove {DEDUPLICATOR} from the recipe")
    return [pair for pair, by in zip(pairs, report.dropped_by, strict=True) if by is None]


def _that_fit(
    pairs: Sequence[DPOPair], trajectories: Sequence[Trajectory], actor: TraceRecorder, dropped: Counter[str]
) -> list[DPOPair]:
    """Return the pairs that fit into the context window: a teacher's answer may be longer than the policy's can be."""
    kept = []
    for pair, ids in zip(pairs, pairs_to_token_pairs(pairs, trajectories, actor.renderer), strict=True):
        if fits(ids, actor.context_window):
            kept.append(pair)
        else:
            dropped["longer than the context window"] += 1
    return kept


def _counts(reasons: Counter[str]) -> str:
    return ", ".join(f"{count} {reason}" for reason, count in reasons.most_common()) or "none"


def wants_replay(config: RunConfig) -> bool:
    """Return whether the replay channel has a source of pairs."""
    replay = config.loss.replay
    return replay.weight > 0 and (bool(config.teachers) or replay.pairs is not None)


def stored_pairs(context: RunContext, arm: str) -> list[Pair]:
    """Return the pairs that an arm has collected before its first checkpoint."""
    return [from_json(Pair, line) for line in files.read_lines(_store(context, arm))]


def pairs_digest(context: RunContext, arm: str) -> str | None:
    """Return the SHA-256 of the stored pairs; None when nothing was collected."""
    store = _store(context, arm)
    return hashlib.sha256(store.read_bytes()).hexdigest() if store.is_file() else None


def verify_pair(env: Env, trajectory: Trajectory, turn: int, chosen: Message) -> str | None:
    """Carry out the chosen action where the student stood; None when it is confirmed, else why not.

    An action that changes code or submits it is confirmed when the code then passes the task's tests, and does not after the
    student's own action. One that only looks is confirmed when it can be carried out and the student's own could not.

    Raises:
        SandboxError: the sandbox broke, so there is no verdict.
    """
    calls = [_call(c) for c in chosen.get("tool_calls", ())]
    if not calls:
        return "the chosen action is no tool call"
    _go_to(env, trajectory, turn)
    results = []
    for call in calls:
        if env.done:
            return "the chosen action goes on after it has submitted"
        results.append(env.step(call))
    if not all(r.carried_out for r in results):
        return "the chosen action cannot be carried out"
    own = trajectory.turns[turn]
    if any(map(_is_decisive, calls, results)):
        if not _passes(env):
            return "the tests do not pass after the chosen action"
        if not any(map(_is_decisive, own.tool_calls, own.results)):
            return None
        _go_to(env, trajectory, turn + 1)
        return "the tests pass after the student's own action too" if _passes(env) else None
    failed = not own.results or not all(r.carried_out for r in own.results)
    return None if failed else "nothing shows that the chosen action is better"


def _is_decisive(call: ToolCall, result: ToolResult) -> bool:
    """Return whether only the tests can tell what came of a call: it changes files, by whatever tool, or submits them."""
    deed = classify_call(call.name, call.arguments)
    return deed.changes or deed.kind is EffectKind.SUBMIT or bool(result.details.get("changed"))


def _go_to(env: Env, trajectory: Trajectory, turn: int) -> None:
    """Bring the environment to where it stood before a turn, by the calls that were carried out: none is after a submission."""
    env.reset()
    for earlier in trajectory.turns[:turn]:
        for call, _ in zip(earlier.tool_calls, earlier.results, strict=False):
            env.step(call)


def _passes(env: Env) -> bool:
    reward = env.grade().reward
    if isinstance(reward, Unscored):
        raise SandboxError(f"a pair could not be verified: {reward.reason}", fix="repair the sandbox, then --resume")
    return reward == 1.0


async def _verified(
    context: RunContext, pairs: Sequence[DPOPair], trajectories: Sequence[Trajectory], dropped: Counter[str]
) -> list[DPOPair]:
    by_id = {t.trajectory_id: t for t in trajectories}
    gate = asyncio.Semaphore(context.config.rollout.env_workers)

    async def check(pair: DPOPair) -> str | None:
        name, turn = place_of(pair["state_id"])
        env = context.make_env(by_id[name].task_id)
        async with gate:
            message = action_message(pair["chosen"], turn=turn)
            return await asyncio.to_thread(verify_pair, env, by_id[name], turn, message)

    with context.terminal.phase("verify pairs", len(pairs)) as shown:
        verdicts = await asyncio.gather(*(check(p) for p in pairs))
        shown.advance(len(pairs))
    dropped.update(v for v in verdicts if v is not None)
    return [p for p, v in zip(pairs, verdicts, strict=True) if v is None]


def _store(context: RunContext, arm: str) -> Path:
    return context.run_dir.ckpt_path / arm / "pairs.jsonl"


def _rows(pairs: Sequence[DPOPair], answers: Sequence[TeacherAnswer], trajectories: Sequence[Trajectory]) -> list[dict[str, Any]]:
    """Return the pairs in the report's form."""
    votes: defaultdict[str, dict[str, str]] = defaultdict(dict)
    for answer in answers:
        calls = [json.dumps({"name": c.name, "arguments": dict(c.arguments)}) for c in answer.tool_calls]
        votes[answer.question_id][answer.teacher] = answer.error or "\n".join(calls) or answer.content
    known = {t.trajectory_id for t in trajectories}
    rows = []
    for pair in pairs:
        name, turn = place_of(pair["state_id"])
        if name in known:
            rows.append(
                {
                    "pair_id": pair["state_id"],
                    "state_id": pair["state_id"],
                    "trajectory_id": name,
                    "turn": turn,
                    "chosen": pair["chosen"],
                    "rejected": pair["rejected"],
                    "votes": votes[pair["state_id"]],
                }
            )
    return rows


def _call(wire: dict[str, Any]) -> ToolCall:
    function = wire["function"]
    return ToolCall(call_id=wire["id"], name=function["name"], arguments=function["arguments"])
