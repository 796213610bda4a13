"""Draw the pictures of docs/ with the library's own functions, so that they show what the code does; five are of what
benchmarks measured (diloco_loss.json, gate.json, memory.json, prm.json, tasks.json).

usage: python scripts/figures.py [FOLDER]          default: docs/figures
"""

from __future__ import annotations

import json
import math
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from composer_replication.distillation import TAIDScheduler, dpo_loss, generalized_jsd_per_token, simpo_loss
from composer_replication.observe.chart import Line, Panel, svg
from composer_replication.policy_gradient import SurrogateKind, concave_penalty, surrogate
from composer_replication.prm.evaluate import panels
from torch import Tensor

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "figures"


def grid(low: float, high: float, intervals: int) -> Tensor:
    """Evenly spaced values [intervals + 1], both ends included."""
    return torch.linspace(low, high, intervals + 1, dtype=torch.float64)


def ticks(*values: float) -> list[tuple[float, str]]:
    """Each value under its own name."""
    return [(value, f"{value:,g}") for value in values]


def pairs(x: Tensor, y: Tensor) -> list[tuple[float, float]]:
    """The points of a curve."""
    return list(zip(x.tolist(), y.detach().tolist(), strict=True))


def confident_and_wrong() -> list[Panel]:
    """Gradient of three divergences where teacher and student want different tokens of 1,000."""
    nines = grid(math.log10(2.0), 4.0, 96)
    wrong = 1.0 - 10.0**-nines
    student = torch.log((1.0 - wrong) / 999).unsqueeze(-1).repeat(1, 1000)
    student[:, 0] = wrong.log()
    teacher = torch.full_like(student, math.log(0.1 / 999))
    teacher[:, 1] = math.log(0.9)

    def size(beta: float) -> list[tuple[float, float]]:
        leaf = student.clone().requires_grad_()
        divergence = generalized_jsd_per_token(leaf, teacher, beta=beta, scale="continuous")
        (gradient,) = torch.autograd.grad(divergence.sum(), leaf)
        return pairs(nines, gradient.norm(dim=-1))

    return [
        Panel(
            title="A student that is sure of the wrong token",
            x_label="student's probability of the wrong token",
            y_label="gradient of the logits (norm)",
            x_ticks=[(math.log10(2.0), "0.5"), (1.0, "0.9"), (2.0, "0.99"), (3.0, "0.999"), (4.0, "0.9999")],
            y_ticks=ticks(0.0, 0.5, 1.0, 1.5, 2.0),
            lines=[
                Line("beta 0, forward KL", size(0.0)),
                Line("beta 0.5, JSD", size(0.5)),
                Line("beta 1, reverse KL", size(1.0)),
            ],
        )
    ]


def divergence_over_beta() -> list[Panel]:
    """The two scalings of the generalized JSD between two fixed distributions."""
    student = torch.tensor([0.70, 0.20, 0.05, 0.05], dtype=torch.float64).log()
    teacher = torch.tensor([0.10, 0.60, 0.25, 0.05], dtype=torch.float64).log()

    def value(beta: float, scale: str) -> float:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # near its ends the "trl" scale warns of what is drawn here
            return float(generalized_jsd_per_token(student, teacher, beta=beta, scale=scale))  # type: ignore[arg-type]

    inside = [i / 200 for i in range(1, 200)]
    jumping = [(0.0, value(0.0, "trl")), (0.0, math.nan), *((b, value(b, "trl")) for b in inside)]
    jumping += [(1.0, math.nan), (1.0, value(1.0, "trl"))]
    whole = [(b, value(b, "continuous")) for b in (0.0, *inside, 1.0)]
    return [
        Panel(
            title="One pair of distributions, every beta",
            x_label="beta (0 is forward KL, 1 is reverse KL)",
            y_label="divergence in nats",
            x_ticks=ticks(0.0, 0.25, 0.5, 0.75, 1.0),
            y_ticks=ticks(0.0, 0.25, 0.5, 0.75, 1.0, 1.25),
            lines=[Line('scale "trl" (dots: the ends)', jumping), Line('scale "continuous"', whole)],
        )
    ]


def token_weights() -> list[Panel]:
    """Factor of a token's gradient of log-prob, over how far its probability has moved."""
    old = math.log(0.15)
    ratio = grid(0.01, 6.0, 599)

    def weight(kind: SurrogateKind, advantage: float) -> list[tuple[float, float]]:
        now = (old + ratio.log()).requires_grad_()
        before, advantages = torch.full_like(ratio, old), torch.full_like(ratio, advantage)
        losses = surrogate(kind, now, before, advantages).loss
        (gradient,) = torch.autograd.grad(losses.sum(), now)
        return pairs(ratio, gradient / -advantage)

    def panel(title: str, advantage: float) -> Panel:
        return Panel(
            title=title,
            x_label="probability now / probability when sampled",
            y_label="weight of the gradient",
            x_ticks=ticks(0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0),
            y_ticks=ticks(0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0),
            lines=[
                Line("dppo, sampled at 0.15", weight("dppo", advantage)),
                Line("ppo", weight("ppo", advantage)),
                Line("cispo", weight("cispo", advantage)),
            ],
        )

    return [panel("A token to be made likelier (A > 0)", 1.0), panel("A token to be made less likely (A < 0)", -1.0)]


def preference_losses() -> list[Panel]:
    """DPO's and SimPO's loss of one pair, each over its own margin."""
    summed, mean = grid(-60.0, 60.0, 240), grid(-3.0, 3.0, 240)
    none, per_token = torch.zeros_like(summed), torch.zeros_like(mean)

    def dpo(beta: float) -> Line:
        losses = dpo_loss(summed, none, none, none, beta, reduction="none")
        return Line(f"beta {beta:g}", pairs(summed, losses))

    def simpo(beta: float, gamma: float) -> Line:
        losses = simpo_loss(mean, per_token, beta, gamma, reduction="none")
        return Line(f"beta {beta:g}, gamma {gamma:g}", pairs(mean, losses))

    return [
        Panel(
            title="DPO: whole answers against the reference",
            x_label="log-prob gained, chosen minus rejected (nats)",
            y_label="loss",
            x_ticks=ticks(-60.0, -30.0, 0.0, 30.0, 60.0),
            y_ticks=ticks(0.0, 2.0, 4.0, 6.0),
            lines=[dpo(0.1), dpo(0.05), dpo(0.5)],
        ),
        Panel(
            title="SimPO: means per token, no reference",
            x_label="mean log-prob, chosen minus rejected (nats)",
            y_label="loss",
            x_ticks=ticks(-3.0, -1.5, 0.0, 1.5, 3.0),
            y_ticks=ticks(0.0, 2.0, 4.0, 6.0),
            lines=[simpo(2.0, 1.0), simpo(2.0, 0.0), simpo(4.0, 1.0)],
        ),
    ]


def effort() -> list[Panel]:
    """The penalty on effort for several curvatures."""
    x = grid(0.0, 10_000.0, 200).tolist()
    return [
        Panel(
            title="Effort penalty, k = 0.001",
            x_label="weighted effort x, here tokens",
            y_label="penalty C(x)",
            x_ticks=ticks(0.0, 2500.0, 5000.0, 7500.0, 10_000.0),
            y_ticks=ticks(0.0, 1000.0, 2000.0, 3000.0, 4000.0),
            lines=[
                Line(f"q = {q:g}", [(value, concave_penalty(value, k=0.001, q=q)) for value in x]) for q in (0.0, 0.5, 1.0, 2.0)
            ],
        )
    ]


def taid_schedule() -> list[Panel]:
    """TAID's t in runs of different length, while the loss falls from 2 to about 1."""

    def run(steps: int) -> list[tuple[float, float]]:
        scheduler = TAIDScheduler(steps)
        points = [(0.0, scheduler.t)]
        for step in range(1, steps + 1):
            scheduler.update_t(1.0 + math.exp(-5.0 * step / steps), global_step=step)
            if step % (steps // 100) == 0:
                points.append((step / steps, scheduler.t))
        return points

    return [
        Panel(
            title="TAID: how far the target has moved",
            x_label="share of the run's steps",
            y_label="t",
            x_ticks=ticks(0.0, 0.25, 0.5, 0.75, 1.0),
            y_ticks=ticks(0.4, 0.6, 0.8, 1.0),
            lines=[Line(f"{steps:,} steps", run(steps)) for steps in (2_000, 10_000, 50_000)],
        )
    ]


def diloco_loss() -> list[Panel]:
    """What `make bench-diloco-loss` measured: a dot for each codec, in the order of its bytes."""
    rows = [row for row in json.loads((FOLDER / "diloco_loss.json").read_text("utf-8"))["rows"] if row["replicas"]]
    names = {"adamw": "AdamW", "muon": "Muon"}

    def dots(inner: str, replicas: int) -> list[tuple[float, float]]:
        mine = [row for row in rows if (row["inner"], row["replicas"]) == (inner, replicas)]
        found = [(math.log10(row["up"] + row["down"]), row["gap"]) for row in mine]
        return [point for x, gap in found for point in ((x, gap), (x, math.nan))]

    highest = max(row["gap"] for row in rows)
    return [
        Panel(
            title="Replicas that meet every 15 steps",
            x_label="bytes per parameter and step (log)",
            y_label="loss above data parallel",
            x_ticks=[(math.log10(value), f"{value:g}") for value in (0.01, 0.03, 0.1, 0.3, 1, 3)],
            y_ticks=ticks(*(round(0.2 * number, 1) for number in range(1 + math.ceil(highest / 0.2)))),
            lines=[
                Line(f"{names[inner]}, {replicas} replicas", dots(inner, replicas))
                for inner, replicas in sorted({(row["inner"], row["replicas"]) for row in rows})
            ],
        )
    ]


def gate() -> list[Panel]:
    """What `make bench-gate` found: valuable pairs kept over cost, at prices with a prompt cache and without."""
    curves = json.loads((FOLDER / "gate.json").read_text("utf-8"))["curves"]
    shown = {"entropy alone": "entropy alone", "cascade": "gate (cascade)", "oracle": "oracle"}

    def panel(title: str, price: str) -> Panel:
        lines = [Line("all states", [(1.0, 1.0), (1.0, math.nan)])]
        for key, name in shown.items():
            lines.append(Line(name, [(point[price], point["valuable"]) for point in curves[key]]))
        return Panel(
            title=title,
            x_label="cost, all states = 1",
            y_label="share of valuable pairs kept",
            x_ticks=ticks(0.0, 0.2, 0.4, 0.6, 0.8, 1.0),
            y_ticks=ticks(0.0, 0.2, 0.4, 0.6, 0.8, 1.0),
            lines=lines,
        )

    return [
        panel("Cached prompt tokens at a tenth of the price", "usd_cached"),
        panel("Every prompt token at the full price", "usd_uncached"),
    ]


def memory() -> list[Panel]:
    """What `make bench-memory` measured."""
    peaks = json.loads((FOLDER / "memory.json").read_text("utf-8"))["peak_mb"]
    return [
        Panel(
            title="The loss of a batch, forward and backward",
            x_label="tokens of the batch",
            y_label="peak memory, GB (log)",
            x_ticks=[(float(i), f"{1 << i}k") for i in range(7)],
            y_ticks=[(math.log10(value), f"{value:g}") for value in (0.1, 0.3, 1.0, 3.0, 10.0, 30.0)],
            lines=[
                Line(name, [(math.log2(int(tokens) / 1024), math.log10(megabytes / 1000)) for tokens, megabytes in found.items()])
                for name, found in peaks.items()
            ],
        )
    ]


def tasks() -> list[Panel]:
    """What `make bench-tasks` measured: the gain from running only the covering tests, two dots for each project."""
    found = sorted(json.loads((FOLDER / "tasks.json").read_text("utf-8")).values(), key=lambda project: project["tests"])
    counts = [project["tests"] for project in found]
    scale = [digit * 10**power for power in range(1, 6) for digit in (1, 2, 5)]
    low, high = max(v for v in scale if v <= counts[0]), min(v for v in scale if v >= counts[-1])
    ways = {"same proof": "ratio", "one cold run": "ratio_to_one_cold_run"}

    def dots(key: str) -> list[tuple[float, float]]:
        return [
            point
            for project in found
            for point in ((math.log10(project["tests"]), math.log10(project[key])), (math.log10(project["tests"]), math.nan))
        ]

    return [
        Panel(
            title="Proving a task with its tests instead of all",
            x_label="tests of the project (log)",
            y_label="times less CPU per task (log)",
            x_ticks=[(math.log10(value), f"{value:,}") for value in scale if low <= value <= high],
            y_ticks=[(math.log10(value), f"{value:g}") for value in (1, 3, 10, 30, 100)],
            lines=[Line(name, dots(key)) for name, key in ways.items()],
        )
    ]


def prm() -> list[Panel]:
    """What `make bench-prm` measured."""
    measured = json.loads((FOLDER / "prm.json").read_text("utf-8"))
    return panels(measured["held_out_steps"], measured["roc"], measured["calibration"])


FIGURES: dict[str, Callable[[], Sequence[Panel]]] = {
    "confident_and_wrong": confident_and_wrong,
    "diloco_loss": diloco_loss,
    "divergence_over_beta": divergence_over_beta,
    "effort": effort,
    "gate": gate,
    "memory": memory,
    "preference_losses": preference_losses,
    "prm": prm,
    "taid_schedule": taid_schedule,
    "tasks": tasks,
    "token_weights": token_weights,
}


def main(arguments: list[str]) -> int:
    """Write every picture into the folder."""
    folder = Path(arguments[0]) if arguments else FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    for name, drawn in FIGURES.items():
        (folder / f"{name}.svg").write_text(svg(drawn()), "utf-8")
        print(f"{name}.svg")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
