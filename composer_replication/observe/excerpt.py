"""A bounded choice of a run's trajectories for the report: the first, the best and the last step, then steps between them.

Likewise of its evaluations, and the frozen traces, those with a replay pair first.
"""

from __future__ import annotations

import itertools
import json
import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

from composer_replication.observe.run_dir import RunDir
from composer_replication.types import GradeReport, Hint, Outcome, Trajectory, Turn, Unscored, to_json

MAX_BYTES = 4 << 20
"""Size of all the embedded trajectories and pairs as JSON."""

_MAX_CHARACTERS = 6_000
_MAX_TESTS = 200
_STEPS_AT_LEAST = 4
_PAIRS_SHARE = _TRACES_SHARE = _EVALUATIONS_SHARE = 0.15
"""At most; what they leave, the steps may take."""


def excerpt(run: RunDir, *, max_bytes: int = MAX_BYTES) -> dict[str, Any]:
    """Choose what the trajectory reader can show.

    Every arm gets an equal part of `max_bytes`, and no step more than a quarter of that. Within a step, trajectories that differ
    in reward, stop reason, hints or alarms come first. Long texts are cut and say so; whatever is left out is counted.

    Returns:
        `{"openings": [[message]], "arms": [{"arm", "recorded", "steps": [part], "evaluations_recorded", "evaluations": [part],
        "traces": part, "pairs", "pairs_recorded"}]}` with the part `{"step", "recorded", "trajectories"}`, the traces' step being
        None; a trajectory's `opening` is an index into `openings`.
    """
    arms = [
        arm
        for arm in run.arms()
        if run.steps(arm) or run.evaluations(arm) or run.pairs_path(arm).exists() or run.traces_path(arm).exists()
    ]
    openings: dict[str, int] = {}
    chosen = [_arm(run, arm, max_bytes // len(arms), openings) for arm in arms]
    return {"openings": [json.loads(opening) for opening in openings], "arms": chosen}


def _arm(run: RunDir, arm: str, room: int, openings: dict[str, int]) -> dict[str, Any]:
    """Return what fits into `room` bytes of one arm."""
    left = room
    pairs, pairs_recorded, used = _pairs(run, arm, int(room * _PAIRS_SHARE))
    left -= used
    paired = {row["trajectory_id"] for row in pairs if "trajectory_id" in row}
    traces, used = _part(None, run.read_traces(arm), {}, int(room * _TRACES_SHARE), openings, first=paired)
    left -= used

    def evaluation(step: int, at_most: int) -> tuple[dict[str, Any], int]:
        return _part(step, run.read_evaluation(arm, step), {}, at_most, openings)

    def practice(step: int, at_most: int) -> tuple[dict[str, Any], int]:
        return _part(step, run.read_trajectories(arm, step), _hints(run, arm, step), at_most, openings)

    order = _by_importance(run.evaluations(arm), _values(run, arm, "eval/pass_at_1"))
    evaluations, used = _steps(order, evaluation, int(room * _EVALUATIONS_SHARE))
    steps, _ = _steps(_by_importance(run.steps(arm), _values(run, arm, "reward/mean")), practice, left - used)
    return {
        "arm": arm,
        "recorded": len(run.steps(arm)),
        "steps": steps,
        "evaluations_recorded": len(run.evaluations(arm)),
        "evaluations": evaluations,
        "traces": traces,
        "pairs": pairs,
        "pairs_recorded": pairs_recorded,
    }


def _steps(
    order: Iterator[int], read: Callable[[int, int], tuple[dict[str, Any], int]], room: int
) -> tuple[list[dict[str, Any]], int]:
    """Return parts of one arm that fit into `room` bytes, by ascending step, and the bytes used. `read` receives the number of
    bytes it may use."""
    cap, left = room // _STEPS_AT_LEAST, room
    found: dict[int, dict[str, Any]] = {}
    for step in order:
        if left < cap // 10:
            break
        part, used = read(step, min(left, cap))
        left -= used
        if part["trajectories"]:
            found[step] = part
    return [found[step] for step in sorted(found)], room - left


def _values(run: RunDir, arm: str, metric: str) -> dict[int, float]:
    """Return a metric of one arm by step, where it is finite."""
    found = {line.step: line.values[metric] for line in run.read_metrics() if line.arm == arm and metric in line.values}
    return {step: value for step, value in found.items() if math.isfinite(value)}


def _hints(run: RunDir, arm: str, step: int) -> dict[str, list[Hint]]:
    """Return the hints of one step by trajectory."""
    hints: defaultdict[str, list[Hint]] = defaultdict(list)
    for hint in run.read_hints(arm, step):
        hints[hint.trajectory_id].append(hint)
    return dict(hints)


def _by_importance(steps: Sequence[int], rewards: Mapping[int, float]) -> Iterator[int]:
    """Yield first, last and best step, then the middle of the widest gap between those already given, again and again."""
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


def _part(
    step: int | None,
    trajectories: Sequence[Trajectory],
    hints: Mapping[str, list[Hint]],
    room: int,
    openings: dict[str, int],
    *,
    first: Collection[str] = (),
) -> tuple[dict[str, Any], int]:
    """Return the trajectories that fit into `room` bytes, those with an id in `first` before others, of how many, and the bytes
    used."""
    kept: dict[int, dict[str, Any]] = {}
    used = 0
    for index in sorted(_varied(trajectories, hints), key=lambda i: trajectories[i].trajectory_id not in first):
        one = _trajectory(trajectories[index], hints.get(trajectories[index].trajectory_id, []))
        opening = json.dumps([{"role": m["role"], "content": _clip(m["content"])} for m in trajectories[index].messages])
        size = len(json.dumps(one)) + (0 if opening in openings else len(opening))
        if used + size <= room:
            used += size
            kept[index] = one | {"opening": openings.setdefault(opening, len(openings))}
    return {"step": step, "recorded": len(trajectories), "trajectories": [kept[index] for index in sorted(kept)]}, used


def _varied(trajectories: Sequence[Trajectory], hints: Mapping[str, list[Hint]]) -> list[int]:
    """Return indices in an order that takes one trajectory of each kind in turn."""
    kinds: defaultdict[tuple[str, str, bool, bool], int] = defaultdict(int)
    order = []
    for index, one in enumerate(trajectories):
        alarmed = one.grade is not None and bool(one.grade.alarms)
        kind = (str(one.reward), one.stop_reason.value, any(h.dropped is None for h in hints.get(one.trajectory_id, ())), alarmed)
        order.append((kinds[kind], index))
        kinds[kind] += 1
    return [index for _, index in sorted(order)]


def _pairs(run: RunDir, arm: str, room: int) -> tuple[list[dict[str, Any]], int, int]:
    """Return the newest replay pairs that fit into `room` bytes, how many there are, and the bytes used."""
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
        "hints": [{"kind": h.kind, "source": h.source, "text": _clip(h.text), "dropped": h.dropped} for h in hints],
    }


def _grade(grade: GradeReport) -> dict[str, Any]:
    """Return the verdict; of very many tests, those that did not pass come first."""
    outcomes = list(grade.outcomes.items())
    if len(outcomes) > _MAX_TESTS:
        outcomes.sort(key=lambda item: item[1] is Outcome.PASSED)
    return {
        "tests": [[test, outcome.value] for test, outcome in outcomes[:_MAX_TESTS]],
        "tests_recorded": len(outcomes),
        "reasons": [_clip(reason) for reason in grade.reasons],
        "alarms": [_clip(alarm) for alarm in grade.alarms],
        "rejected": list(grade.rejected[:_MAX_TESTS]),
        "isolation": grade.isolation,
        "cached": grade.cached,
    }


def _clip(text: str) -> str:
    if len(text) <= _MAX_CHARACTERS:
        return text
    half = _MAX_CHARACTERS // 2
    return f"{text[:half]}\n[... {len(text) - 2 * half:,} characters left out of the report ...]\n{text[-half:]}"
