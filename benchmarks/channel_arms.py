"""The arms of `channels`: every channel alone and beside the policy gradient, and what could replace them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

SEEDS = 5
STEPS, TASKS, SIBLINGS, PAIRS = 24, 4, 8, 12
PRACTICE = 32
"""Tasks that are trained on."""
AS_LONG = 3
"""Times the CPU time of fine-tuning that all channels take together with their rollouts."""
FORM_STEPS = 100
"""Steps of imitation in which a policy learns to write its edits in either form."""
RATES = (1e-3, 3e-4, 1e-4)
NOTHING_HELD = ", nothing held"
"""How the names of arms end in which no other turns of trajectories and traces are held."""
PREFERENCES = ("dpo", "dpo_positive", "ipo", "apo_zero", "kto", "simpo")


@dataclass(frozen=True, slots=True)
class Arm:
    """A way to train: on which records, and how."""

    name: str
    rate: float
    rollouts: str = "none"
    """`none`; `grpo`: advantages over groups; `rewards`: the reward in their place (rejection sampling); `hinted`: rollouts of
    the warm policy with hints, of which those that pass are imitated without them (context distillation); `unscored`: hints
    alone."""
    hint: float = 0.0
    replay: float = 0.0
    options: Mapping[str, Any] = field(default_factory=dict)
    """Fields of `[loss.replay]` and `[loss.hint]`, as `replay.variant`."""
    wrong_pairs: float = 0.0
    wrong_hints: float = 0.0
    long_pairs: bool = False
    useful_only: bool = False
    """Hints that do not move the self-teacher are dropped (`loss.hint.useful_only`)."""
    hinted_rollouts: int = 1
    """Rollouts with the hint for each task, of context distillation."""
    steps: int = STEPS


def replay_alone() -> Iterator[Arm]:
    """SFT and every loss on preferences, at three rates; with right pairs, with a quarter turned round, with long answers."""
    for rate in RATES:
        for variant in ("sft", *PREFERENCES):
            arm = Arm(f"replay alone: {variant}", rate, replay=1.0, options={"replay.variant": variant})
            yield arm
            if rate == RATES[0]:
                yield replace(arm, name=f"{arm.name}, a quarter wrong", wrong_pairs=0.25)
                yield replace(arm, name=f"{arm.name}, long answers", long_pairs=True)
        yield Arm(f"replay alone: sft{NOTHING_HELD}", rate, replay=1.0, options={"replay.held_turns": 0})


def beside_grpo() -> Iterator[Arm]:
    """The policy gradient by itself, with each channel at four weights, and with both."""
    for rate in RATES[:2]:
        grpo = Arm("grpo", rate, rollouts="grpo")
        yield grpo
        for weight in (0.3, 1.0, 3.0, 10.0):
            yield replace(grpo, name=f"grpo + replay {weight:g}", replay=weight)
            yield _hinted(grpo, weight)
            yield _hinted(grpo, weight, replay=weight)
        for hint, replay in ((1.0, 3.0), (0.3, 1.0), (0.3, 3.0)):
            yield _hinted(grpo, hint, replay=replay)
        yield replace(grpo, name="grpo + replay 1: dpo", replay=1.0, options={"replay.variant": "dpo"})
        own = {"replay.variant": "dpo", "replay.learning_rate": rate / 10}
        yield replace(grpo, name="grpo + replay 1: dpo, a tenth of the rate", replay=1.0, options=own)
        yield from _kinds_of_hints(grpo)
        yield from _wrong(grpo)
        yield from _released(grpo)


def _hinted(grpo: Arm, weight: float, ending: str = "", *, replay: float = 0.0, **options: Any) -> Arm:
    """Return an arm with hints, and with pairs where `replay` is their weight."""
    name = f"{grpo.name} + hint {weight:g}" + (f" + replay {replay:g}" if replay > 0 else "") + ending
    made = {f"hint.{key}": value for key, value in {"beta": 0.5, "reduction": "token", **options}.items()}
    return replace(grpo, name=name, hint=weight, replay=replay, options=made)


def _kinds_of_hints(grpo: Arm) -> Iterator[Arm]:
    """Yield the other ways of the hint channel, alone beside the policy gradient and with pairs."""
    for replay in (0.0, 1.0):
        yield _hinted(grpo, 1.0, ": beta 0", replay=replay, beta=0.0)
        yield _hinted(grpo, 1.0, ": beta 1", replay=replay, beta=1.0)
        yield _hinted(grpo, 1.0, ": turn", replay=replay, reduction="turn")
    yield _hinted(grpo, 1.0, ": trajectory", span="trajectory")
    yield replace(_hinted(grpo, 1.0, ": useful only"), useful_only=True)


def _wrong(grpo: Arm) -> Iterator[Arm]:
    """Yield arms a quarter of whose hints and pairs are wrong."""
    for hint, replay in ((1.0, 0.0), (1.0, 1.0), (1.0, 3.0), (3.0, 3.0)):
        pairs = 0.25 if replay > 0 else 0.0
        yield replace(_hinted(grpo, hint, ", a quarter wrong", replay=replay), wrong_hints=0.25, wrong_pairs=pairs)
    yield replace(_hinted(grpo, 1.0, ": useful only, a quarter wrong"), useful_only=True, wrong_hints=0.25)


def _released(grpo: Arm) -> Iterator[Arm]:
    """Yield hints alone, and arms that hold no other turns."""
    alone = replace(_hinted(grpo, 1.0), name="hint alone", rollouts="unscored")
    yield alone
    for arm in (alone, _hinted(grpo, 1.0), _hinted(grpo, 1.0, replay=1.0)):
        options = {**arm.options, "hint.held_turns": 0, "replay.held_turns": 0}
        yield replace(arm, name=f"{arm.name}{NOTHING_HELD}", options=options)


def baselines() -> Iterator[Arm]:
    """Yield what could replace the channels: by itself, and with as many rollouts or as much CPU time as all of them take."""
    for rate in RATES[:2]:
        yield Arm("rejection sampling", rate, rollouts="rewards")
        distilled = Arm("context distillation", rate, rollouts="hinted")
        yield distilled
        as_many = STEPS * TASKS * SIBLINGS // PRACTICE
        yield replace(distilled, name=f"{distilled.name}, as many rollouts", hinted_rollouts=as_many)
        yield replace(distilled, name=f"{distilled.name}, {AS_LONG} times the steps", steps=AS_LONG * STEPS)
        fine_tuned = Arm("replay alone: sft", rate, replay=1.0, options={"replay.variant": "sft"})
        yield replace(fine_tuned, name=f"{fine_tuned.name}, {AS_LONG} times the steps", steps=AS_LONG * STEPS)


def grid() -> list[Arm]:
    """Return every arm."""
    return [*replay_alone(), *beside_grpo(), *baselines()]
