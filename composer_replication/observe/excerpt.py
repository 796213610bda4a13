"""A bounded choice of a run's trajectories for the report: the first, the best and the last step, then steps between them."""

from __future__ import annotations

import itertools
import json
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from composer_replication.observe.run_dir import RunDir
from composer_replication.types import GradeReport, Hint, Message, Outcome, Trajectory, Turn, Unscored, to_json

__all__ = ["MAX_BYTES", "excerpt"]

MAX_BYTES = 4 << 20
"""Size of all the embedded trajectories and pairs as JSON."""

_MAX_CHARACTERS = 6_000
_MAX_TESTS = 200
_STEPS_AT_LEAST = 4
_PAIRS_SHARE = 0.15


def excerpt(run: RunDir, *, max_bytes: int = MAX_BYTES) -> dict[str, Any]:
    """Choose what the trajectory reader can show.

    Every arm gets an equal part of `max_bytes`, and no step more than a quarter of that. Within a step, trajectories that differ
    in reward, stop reason or hints come first. Long texts are cut and say so; whatever is left out is counted.

    Returns:
        `{"openings": [[message]], "arms": [{"arm", "recorded", "steps": [{"step", "recorded", "trajectories"}], "pairs",
        "pairs_recorded"}]}`; a trajectory's `opening` is an index into `openings`.
    """
    arms = [arm for arm in run.arms() if run.steps(arm) or run.pairs_path(arm).exists()]
    rewards = _mean_rewards(run)
    openings: dict[str, int] = {}
    chosen = []
    for arm in arms:
        room = max_bytes // len(arms)
        pairs, pairs_recorded, used = _pairs(run, arm, int(room * _PAIRS_SHARE))
        steps = _steps(run, arm, rewards[arm], room - used, openings)
        chosen.append(
            {"arm": arm, "recorded": len(run.steps(arm)), "steps": steps, "pairs": pairs, "pairs_recorded": pairs_recorded}
        )
    return {"openings": [json.loads(opening) for opening in openings], "arms": chosen}


def _steps(run: RunDir, arm: str, rewards: Mapping[int, float], room: int, openings: dict[str, int]) -> list[dict[str, Any]]:
    """Steps of one arm, in ascending order, that fit into `room` bytes."""
    cap = room // _STEPS_AT_LEAST
    found: dict[int, dict[str, Any]] = {}
    for step in _by_importance(run.steps(arm), rewards):
        if room < cap // 10:
            break
        shown, recorded, used = _step(run, arm, step, min(room, cap), openings)
        room -= used
        if shown:
            found[step] = {"step": step, "recorded": recorded, "trajectories": shown}
    return [found[step] for step in sorted(found)]


def _mean_rewards(run: RunDir) -> defaultdict[str, dict[int, float]]:
    """Mean reward by arm and step."""
    rewards: defaultdict[str, dict[int, float]] = defaultdict(dict)
    for line in run.read_metrics():
        if math.isfinite(value := line.values.get("reward/mean", math.nan)):
            rewards[line.arm][line.step] = value
    return rewards


def _by_importance(steps: Sequence[int], rewards: Mapping[int, float]) -> Iterator[int]:
    """First, last and best step, then the middle of the widest gap between those already given, again and again."""
    if not steps:
        return
    best = max(range(len(steps)), key=lambda i: rewards.get(steps[i], -math.inf))
    given = list(dict.fromkeys((len(steps) - 1, 0, best)))
    yield from (steps[i] for i in given)
    while len(given) < len(steps):
        edges = sorted(given)
        low, high = max(itertools.pairwise(edges), key=lambda gap: gap[1] - gap[0])
        given.append((low + high) // 2)
        yield steps[given[-1]]


def _step(run: RunDir, arm: str, step: int, room: int, openings: dict[str, int]) -> tuple[list[dict[str, Any]], int, int]:
    """The trajectories of one step that fit into `room` bytes, how many there are, and the bytes used."""
    hints: defaultdict[str, list[Hint]] = defaultdict(list)
    for hint in run.read_hints(arm, step):
        hints[hint.trajectory_id].append(hint)
    trajectories = run.read_trajectories(arm, step)
    kept: dict[int, dict[str, Any]] = {}
    used = 0
    for index in _varied(trajectories, hints):
        one = _trajectory(trajectories[index], hints[trajectories[index].trajectory_id])
        opening = json.dumps([_message(m) for m in trajectories[index].messages])
        size = len(json.dumps(one)) + (0 if opening in openings else len(opening))
        if used + size <= room:
            used += size
            kept[index] = one | {"opening": openings.setdefault(opening, len(openings))}
    return [kept[index] for index in sorted(kept)], len(trajectories), used


def _varied(trajectories: Sequence[Trajectory], hints: Mapping[str, list[Hint]]) -> list[int]:
    """Indices in an order that takes one trajectory of each kind in turn."""
    kinds: defaultdict[tuple[str, str, bool], int] = defaultdict(int)
    order = []
    for index, one in enumerate(trajectories):
        kind = (str(one.reward), one.stop_reason.value, one.trajectory_id in hints)
        order.append((kinds[kind], index))
        kinds[kind] += 1
    return [index for _, index in sorted(order)]


def _pairs(run: RunDir, arm: str, room: int) -> tuple[list[dict[str, Any]], int, int]:
    """The newest replay pairs that fit into `room` bytes, how many there are, and the bytes used."""
    rows = run.read_pairs(arm)
    kept: list[dict[str, Any]] = []
    used = 0
    for row in reversed(rows):
        votes = {teacher: _clip(str(text)) for teacher, text in row.get("votes", {}).items()}
        texts = {
            name: _clip(str(row[name])) for name in ("pair_id", "state_id", "trajectory_id", "chosen", "rejected") if name in row
        }
        one = {**texts, "turn": row.get("turn"), "votes": votes}
        size = len(json.dumps(one))
        if used + size > room:
            break
        used += size
        kept.append(one)
    return kept[::-1], len(rows), used


def _trajectory(one: Trajectory, hints: Sequence[Hint]) -> dict[str, Any]:
    return {
        "id": one.trajectory_id,
        "task": one.task_id,
        "version": one.policy_version,
        "temperature": one.temperature,
        "reward": one.reward.reason if isinstance(one.reward, Unscored) else one.reward,
        "stop": one.stop_reason.value,
        "prompt_tokens": len(one.prompt_ids),
        "sampled_tokens": one.num_sampled_tokens(),
        "turns": [_turn(turn, [h for h in hints if h.turn == index]) for index, turn in enumerate(one.turns)],
        "grade": None if one.grade is None else _grade(one.grade),
    }


def _turn(turn: Turn, hints: Sequence[Hint]) -> dict[str, Any]:
    return {
        "text": _clip(turn.text),
        "tokens": len(turn.action_ids),
        "observed": len(turn.observation_ids),
        "logprob": round(sum(turn.logprobs) / len(turn.logprobs), 4) if turn.logprobs else None,
        "calls": [
            {"name": c.name, "arguments": _clip(json.dumps(to_json(c.arguments), default=str)), "error": c.error}
            for c in turn.tool_calls
        ],
        "results": [{"name": r.name, "status": r.status, "content": _clip(r.content)} for r in turn.results],
        "hints": [{"kind": h.kind, "source": h.source, "text": _clip(h.text)} for h in hints],
    }


def _grade(grade: GradeReport) -> dict[str, Any]:
    """The verdict; of very many tests, those that did not pass come first."""
    outcomes = list(grade.outcomes.items())
    if len(outcomes) > _MAX_TESTS:
        outcomes.sort(key=lambda item: item[1] is Outcome.PASSED)
    return {
        "tests": [[test, outcome.value] for test, outcome in outcomes[:_MAX_TESTS]],
        "tests_recorded": len(outcomes),
        "reasons": [_clip(reason) for reason in grade.reasons],
        "rejected": list(grade.rejected[:_MAX_TESTS]),
        "isolation": grade.isolation,
        "cached": grade.cached,
    }


def _message(message: Message) -> dict[str, str]:
    return {"role": message["role"], "content": _clip(message["content"])}


def _clip(text: str) -> str:
    if len(text) <= _MAX_CHARACTERS:
        return text
    half = _MAX_CHARACTERS // 2
    return f"{text[:half]}\n[... {len(text) - 2 * half:,} characters left out of the report ...]\n{text[-half:]}"
