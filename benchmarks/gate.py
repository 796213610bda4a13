"""What a gate saves and what it loses: cost against the share of valuable pairs kept, in a synthetic world with known truth.

The world is not measured on models; its assumptions are those that the literature gives reasons for, and each is varied. A state
has a difficulty, which lasts from step to step, and a right action that can be written in several ways. The student is right or
wrong; where it is wrong it is certain of it with probability `sure` (TIP, arXiv 2604.14084: low entropy and high divergence), and
where it is right it is unsure all the same with probability `unsure`. Detectors find a share of the errors, and some that are
none. Teachers err more on harder states, and when they err they tend to the error that everybody makes, the student among them
(AgentAuditor, arXiv 2602.09341). A pair is valuable when the student is wrong and two of three teachers agree on the right one;
the others that a replay brings, two ways to write one right action for the most part, are counted as false. Every policy runs
through the library's own `Gate`, `consensus` and `bill`; prices are list prices.

`--write docs/figures/gate.json`, which `make bench-gate` does, keeps the curves that `make figures` draws.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import random
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, get_args

from measuring import emit

from composer_replication.actions.agreement import ActionComparison, SameAction, Vote, choose, cluster_votes
from composer_replication.teachers import Gate, ReplayStep, Tariff, bill
from composer_replication.teachers.gate import Rule

TRACES, STEPS, SEEDS = 40, 50, 3
SHARES = (0.0, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
KEPT = (0.8, 0.9, 0.95)
SAVED = (0.6, 0.8)
PRICES = {"cached": "usd_cached", "uncached": "usd_uncached"}
CHEAP, DEAR = "cheap", ("dear", "middling")


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """The assumptions, each a probability unless it says otherwise."""

    student: float = 0.6
    """Of being right on a state of middling difficulty."""
    sure: float = 0.3
    """Of a low entropy where the student is wrong."""
    unsure: float = 0.2
    """Of a high entropy where it is right."""
    recall: float = 0.3
    """Of a finding where it is wrong."""
    false_alarm: float = 0.05
    """Of a finding where it is right."""
    cheap: float = 0.7
    """Of the cheap teacher being right; the dear ones' 0.85 and 0.8."""
    same_way: float = 0.7
    """Of writing a right action in the usual way."""
    common_error: float = 0.4
    """Of an error being the one that everybody makes."""
    difficulty: float = 1.0
    """Standard deviation of a state's difficulty, in logits."""
    lasting: float = 0.5
    """Correlation of a step's difficulty with that of the step before."""
    read: float = 0.1
    """Price of a cached prompt token, in parts of a fresh one."""
    reach: int | None = None
    """Of the prompt cache, in steps."""


@dataclass(frozen=True)
class State:
    """One step, with everybody's action: `right`, another way to write it, or an error."""

    step: ReplayStep
    student: str
    answers: Mapping[str, str]

    @cached_property
    def pair(self) -> str:
        """`valuable`, `false`, or nothing, when all teachers are asked."""
        votes = [Vote(teacher=t, family=t, action=a) for t, a in self.answers.items()]
        choice = choose(cluster_votes(votes, self.student, _exact)[0], threshold=2, weights={})
        if isinstance(choice, str) or choice.cluster.student.same:
            return ""
        return "valuable" if self.student.startswith("error") and choice.cluster.action.startswith("right") else "false"


def _exact(one: str, other: str) -> ActionComparison:
    return ActionComparison(SameAction.SAME if one == other else SameAction.DIFF, "exact", "")


def states_of(world: World, seed: int) -> list[State]:
    """Some traces of the world."""
    draw = random.Random(seed)
    found: list[State] = []
    for trace in range(TRACES):
        hard, size = draw.gauss(0.0, 1.0), 3000 * 3.5
        for turn in range(STEPS):
            hard = world.lasting * hard + math.sqrt(1.0 - world.lasting**2) * draw.gauss(0.0, 1.0)
            shift = world.difficulty * hard
            student = _action(draw, world, world.student, shift, "student")
            skills = {CHEAP: world.cheap, DEAR[0]: 0.85, DEAR[1]: 0.8}
            answers = {name: _action(draw, world, skill, shift, name) for name, skill in skills.items()}
            wrong = student.startswith("error")
            high = draw.random() < (1.0 - world.sure if wrong else world.unsure)
            finding = draw.random() < (world.recall if wrong else world.false_alarm)
            step = ReplayStep(
                state_id=f"{seed}/{trace}#{turn}",
                trace_id=f"{seed}/{trace}",
                prompt_bytes=int(size),
                extends=turn > 0,
                entropy=math.exp(draw.gauss(-0.5 if high else -2.0, 0.5)),
                findings=("finding",) if finding else (),
            )
            found.append(State(step, student, answers))
            size += 3.5 * 400 * math.exp(draw.gauss(-0.125, 0.5))
    return found


def _action(draw: random.Random, world: World, skill: float, shift: float, who: str) -> str:
    right = draw.random() < 1.0 / (1.0 + math.exp(shift - math.log(skill / (1.0 - skill))))
    if right:
        return "right" if draw.random() < world.same_way else f"right, {draw.randrange(3)}"
    return "error" if draw.random() < world.common_error else f"error of the {who}"


# --- whom a policy asks, and what it brings ----------------------------------------------------------------------------


def tariffs(world: World, *, cache: bool) -> dict[str, Tariff]:
    """List prices in USD per million tokens of three teachers of today's price levels, 250 tokens an answer."""
    prices = {CHEAP: (0.28, 0.42), DEAR[0]: (5.0, 25.0), DEAR[1]: (1.25, 10.0)}
    return {
        name: Tariff(
            fresh=fresh,
            answer=answer,
            cache_read=fresh * world.read if cache else fresh,
            cache_write=fresh,
            answer_tokens=250.0,
            hit_rate=1.0 if cache else 0.0,
            reach=world.reach,
        )
        for name, (fresh, answer) in prices.items()
    }


Asked = tuple[Set[str], Set[str]]
"""Ids of the states that the cheap teacher and the others are asked about."""


def everything(states: Sequence[State]) -> Asked:
    every = {s.step.state_id for s in states}
    return every, every


def through(gate: Gate, states: Sequence[State], world: World) -> Asked:
    """What the library's gate asks; the cheap teacher's answers are those of the world."""
    steps = [s.step for s in states]
    prices = tariffs(world, cache=True)
    one, two = (prices[CHEAP], prices[DEAR[0]]) if world.reach is not None else (None, None)
    first = gate.first(steps, one)
    agrees = {s.step.state_id for s in states if s.answers[CHEAP] == s.student}
    second = gate.second(steps, first, agrees, two)
    asked, others = ({d.state_id for d in tier if d.reasons} for tier in (first, second))
    return (asked | others if gate.rule == "flat" else asked), others


def measure(states: Sequence[State], asked: Asked, world: World) -> dict[str, float]:
    """Cost with and without the cache, and the pairs of those that all teachers were asked about."""
    steps = [s.step for s in states]
    usd = {}
    for cache in (True, False):
        prices = tariffs(world, cache=cache)
        sets = {CHEAP: asked[0], **dict.fromkeys(DEAR, asked[1])}
        usd[cache] = sum(bill(steps, dict.fromkeys(ids, 1.0), prices[name]).usd for name, ids in sets.items())
    full = asked[0] & asked[1]
    pairs = [s.pair for s in states if s.step.state_id in full]
    return {
        "usd_cached": usd[True],
        "usd_uncached": usd[False],
        "valuable": pairs.count("valuable"),
        "false": pairs.count("false"),
        "asked_dear": len(asked[1]),
    }


Policy = Callable[[float, Sequence[State], World, int], Asked]


def random_share(share: float, states: Sequence[State], world: World, seed: int) -> Asked:
    del world
    draw = random.Random(seed)
    some = {s.step.state_id for s in states if draw.random() < share}
    return some, some


def oracle(share: float, states: Sequence[State], world: World, seed: int) -> Asked:
    """All teachers at a share of the valuable states, and nowhere else."""
    del world
    good = [s.step.state_id for s in states if s.pair == "valuable"]
    some = set(random.Random(seed).sample(good, round(share * len(good))))
    return some, some


def entropy_alone(share: float, states: Sequence[State], world: World, seed: int) -> Asked:
    return through(Gate(rule="flat", uncertain=share, findings=False, audit=0.0, seed=seed), states, world)


def by_rule(rule: Rule) -> Policy:
    """The gate with its audit of one in twenty."""
    return lambda share, states, world, seed: through(Gate(rule=rule, uncertain=share, seed=seed), states, world)


POLICIES: dict[str, Policy] = {
    "random": random_share,
    "oracle": oracle,
    "entropy alone": entropy_alone,
    **{rule: by_rule(rule) for rule in get_args(Rule)},
}


def curves(world: World, seeds: int) -> dict[str, list[dict[str, float]]]:
    """For each policy and share, means over the seeds relative to asking everybody about everything."""
    found: dict[str, list[dict[str, float]]] = {}
    worlds = [(seed, states_of(world, seed)) for seed in range(seeds)]
    naive = {seed: measure(states, everything(states), world) for seed, states in worlds}
    for name, policy in POLICIES.items():
        found[name] = []
        for share in SHARES if name != "sweep" else SHARES[:1]:
            points = []
            for seed, states in worlds:
                point = measure(states, policy(share, states, world, seed), world)
                points.append({key: value / naive[seed][key] for key, value in point.items()})
            mean = {key: statistics.fmean(p[key] for p in points) for key in points[0]}
            spread = statistics.stdev(p["valuable"] for p in points) / math.sqrt(len(points)) if len(points) > 1 else 0.0
            found[name].append({"share": share, **mean, "valuable_se": spread})
    return found


def saved_at(points: Sequence[Mapping[str, float]], kept: float, price: str) -> float | None:
    """Share of the cost saved where that share of the valuable pairs is kept: on the straight lines between a policy's points."""
    ordered = sorted(points, key=lambda p: p["valuable"])
    costs = [point[price] for point in ordered if point["valuable"] >= kept]
    for left, right in pairwise(ordered):
        if left["valuable"] < kept <= right["valuable"]:
            part = (kept - left["valuable"]) / (right["valuable"] - left["valuable"])
            costs.append(left[price] + part * (right[price] - left[price]))
    return 1.0 - min(costs) if costs else None


def kept_at(points: Sequence[Mapping[str, float]], saved: float, price: str) -> float | None:
    """Share of the valuable pairs kept where that share of the cost is saved, in the same way."""
    budget = 1.0 - saved
    ordered = sorted(points, key=lambda p: p[price])
    found = [point["valuable"] for point in ordered if point[price] <= budget]
    for left, right in pairwise(ordered):
        if left[price] <= budget < right[price]:
            part = (budget - left[price]) / (right[price] - left[price])
            found.append(left["valuable"] + part * (right["valuable"] - left["valuable"]))
    return max(found, default=None)


def audits(world: World, seeds: int) -> list[dict[str, float]]:
    """What the audit of a cascade that asks about the 30 % most uncertain says is missed, beside the truth."""
    found = []
    for seed in range(seeds):
        states = states_of(world, seed)
        gate = Gate(rule="cascade", uncertain=0.3, seed=seed)
        steps = [s.step for s in states]
        first = gate.first(steps)
        second = gate.second(steps, first, {s.step.state_id for s in states if s.answers[CHEAP] == s.student})
        valuable = {s.step.state_id for s in states if s.pair == "valuable"}
        missed = gate.audited(second).missed(valuable)
        truth = len(valuable & {d.state_id for d in second if d.reasons in ((), ("audit",))})
        found.append({"estimate": missed.estimate, "low": missed.low, "high": missed.high, "truth": truth, "all": len(valuable)})
    return found


VARIED: dict[str, Sequence[float | int | None]] = {
    "student": (0.4, 0.8),
    "sure": (0.0, 0.1, 0.5, 0.7),
    "unsure": (0.05, 0.4),
    "recall": (0.0, 0.6),
    "false_alarm": (0.2,),
    "cheap": (0.5, 0.8),
    "same_way": (0.4, 1.0),
    "common_error": (0.1, 0.8),
    "difficulty": (0.0, 2.0),
    "lasting": (0.0, 0.9),
    "read": (0.5,),
    "reach": (1, 7),
}


def worlds() -> Iterator[tuple[str, World]]:
    yield "as assumed", World()
    for name, values in VARIED.items():
        for value in values:
            yield f"{name} = {value}", dataclasses.replace(World(), **{name: value})


def section() -> dict[str, Any]:
    """The world as assumed, with one seed and cached prices: each policy's curve and what it saves."""
    found = curves(World(), 1)
    print(f"{'policy':16s}{'saved at 90 % kept':>20s}{'kept at 60 % saved':>20s}")
    figures: dict[str, Any] = {"states": TRACES * STEPS, "seeds": 1, "saved_at_90_kept": {}, "kept_at_60_saved": {}, "curves": {}}
    for name, points in found.items():
        saved, kept = saved_at(points, 0.9, PRICES["cached"]), kept_at(points, 0.6, PRICES["cached"])
        print(f"{name:16s}{_percent(saved):>20s}{_percent(kept):>20s}")
        figures["saved_at_90_kept"][name], figures["kept_at_60_saved"][name] = saved, kept
        figures["curves"][name] = [[round(p[PRICES["cached"]], 3), round(p["valuable"], 3)] for p in points]
    return {name: rounded(value) for name, value in figures.items()}


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.0%}"


def rounded(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, 4)
    if isinstance(value, dict):
        return {key: rounded(inner) for key, inner in value.items()}
    return [rounded(inner) for inner in value] if isinstance(value, list) else value


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", type=Path, help="keep the curves in this file")
    parser.add_argument("--seeds", type=int, default=SEEDS)
    options = parser.parse_args()
    table: dict[str, dict[str, Any]] = {}
    kept_curves: dict[str, Any] = {}
    columns = ("entropy alone", *get_args(Rule), "oracle")
    print(f"saved (cached prices) at {KEPT[1]:.0%} of the valuable pairs; most kept in brackets\n")
    print(f"{'world':22s}" + "".join(f"{name:>20s}" for name in columns))
    for label, world in worlds():
        found = curves(world, options.seeds)
        kept_curves = kept_curves or found
        row = {
            name: {
                "saved": {p: {f"{k:g}": saved_at(found[name], k, key) for k in KEPT} for p, key in PRICES.items()},
                "kept": {p: {f"{k:g}": kept_at(found[name], k, key) for k in SAVED} for p, key in PRICES.items()},
                "most_kept": max(p["valuable"] for p in found[name]),
            }
            for name in columns
        }
        table[label] = row
        cells = [(row[n]["saved"]["cached"][f"{KEPT[1]:g}"], row[n]["most_kept"]) for n in columns]
        print(f"{label:22s}" + "".join(f"{_percent(s):>13s} ({k:.2f})" for s, k in cells), flush=True)
    naive = measure(states := states_of(World(), 0), everything(states), World())
    figures = {
        "states": TRACES * STEPS,
        "seeds": options.seeds,
        "valuable": naive["valuable"],
        "false": naive["false"],
        "cache_alone_saves": 1.0 - naive["usd_cached"] / naive["usd_uncached"],
        "audits": audits(World(), options.seeds),
    }
    if options.write:
        kept = {**figures, "curves": kept_curves, "worlds": table}
        options.write.write_text(json.dumps(rounded(kept)) + "\n", "utf-8")
    emit("gate", rounded({**figures, **table["as assumed"]}))


if __name__ == "__main__":
    main()
