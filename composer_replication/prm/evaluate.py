"""A process reward model on traces whose steps have labels: probabilities, measures, a picture."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from transformers import PreTrainedModel

from composer_replication.observe.chart import Line, Panel, svg
from composer_replication.prm.data import Example
from composer_replication.prm.metrics import (
    accuracy,
    auroc,
    bootstrap_interval,
    calibration,
    expected_calibration_error,
    log_loss,
    roc,
)
from composer_replication.prm.model import score

__all__ = ["Judged", "judge", "metrics_of", "panels", "picture"]

_SHARES = [(value / 5, f"{value / 5:g}") for value in range(6)]


@dataclass(frozen=True, slots=True)
class Judged:
    """One labelled step and its probability."""

    trajectory_id: str
    task_id: str
    turn: int
    label: float
    probability: float


def judge(model: PreTrainedModel, examples: Sequence[Example], *, pad_id: int, tokens: int = 16_384) -> list[Judged]:
    """Every labelled step of the examples, in order. `pad_id` and `tokens` as in `score`."""
    scores = score(model, examples, pad_id=pad_id, tokens=tokens)
    return [
        Judged(example.trajectory_id, example.task_id, step.turn, step.label, probability)
        for example, row in zip(examples, scores, strict=True)
        for step, probability in zip(example.steps, row, strict=True)
        if step.label is not None
    ]


def metrics_of(judged: Sequence[Judged], *, interval: bool = False) -> dict[str, float]:
    """`prm/held_out/...`: loss in nats, AUROC, accuracy, ECE; with `interval` the AUROC's 95 % interval over tasks. NaN where
    a measure does not exist."""
    labels, scores = [j.label for j in judged], [j.probability for j in judged]
    found = {
        "loss": log_loss(labels, scores),
        "auroc": auroc(labels, scores),
        "accuracy": accuracy(labels, scores),
        "ece": expected_calibration_error(labels, scores),
    }
    if interval:
        found["auroc_low"], found["auroc_high"] = bootstrap_interval(labels, scores, [j.task_id for j in judged])
    return {f"prm/held_out/{name}": value for name, value in found.items()}


def panels(judged: Sequence[Judged], others: Sequence[Line] = ()) -> list[Panel]:
    """ROC, with the curves of `others` beside it, and calibration."""
    labels, scores = [j.label for j in judged], [j.probability for j in judged]
    chance = Line("chance", [(0.0, 0.0), (1.0, 1.0)])
    bins = [(b.probability, b.label) for b in calibration(labels, scores)]
    return [
        Panel(
            title=f"Good steps told from bad ones, {len(judged)} held-out steps",
            x_label="share of bad steps accepted",
            y_label="share of good steps accepted",
            x_ticks=_SHARES,
            y_ticks=_SHARES,
            lines=[Line("PRM", thinned(roc(labels, scores))), chance, *others],
        ),
        Panel(
            title="Calibration",
            x_label="probability of a good step",
            y_label="share of good steps",
            x_ticks=_SHARES,
            y_ticks=_SHARES,
            lines=[Line("PRM", bins), Line("perfect", [(0.0, 0.0), (1.0, 1.0)])],
        ),
    ]


def thinned(points: Sequence[tuple[float, float]], most: int = 100) -> list[tuple[float, float]]:
    """At most about `most` of a curve's points, both ends among them."""
    every = max(1, math.ceil(len(points) / most))
    return [point for i, point in enumerate(points) if i % every == 0 or i == len(points) - 1]


def picture(judged: Sequence[Judged]) -> str:
    """`panels` as SVG."""
    return svg(panels(judged))
