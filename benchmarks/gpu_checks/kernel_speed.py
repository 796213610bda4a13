"""Milliseconds and peak memory of a loss on the output of a language-model head, forward and backward.

- floor: the matrix products alone (four for a divergence, three for a log-prob), in the weight's type;
- products: `one_pass` with a kernel that does nothing; what a fused loss takes above this is the work on its rows;
- triton: the fused loss, its rows worked on by Triton kernels, where they are;
- torch: the fused loss, its rows worked on by PyTorch's passes;
- plain: the loss on the whole logits, by autograd.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias
from unittest.mock import patch

import torch
from torch import Tensor

from composer_replication.distillation import TAID, Divergence, EntropyAwareOPD, GeneralizedJSD, fused, fused_divergence
from composer_replication.kernels import Head, TeacherRows, by_triton, fused_token_loss, token_loss
from composer_replication.kernels.one_pass import chunk_rows, one_pass
from gpu_checks.found import Found

LOSSES: dict[str, Divergence | None] = {
    "log-prob": None,
    "jsd 0": GeneralizedJSD(0.0),
    "jsd 0.5": GeneralizedJSD(0.5),
    "jsd 1": GeneralizedJSD(1.0),
    "taid": TAID(0.5),
    "entropy-aware": EntropyAwareOPD(),
}
MOST = {torch.float32: 1e-4, torch.bfloat16: 2e-2}
"""Of the relative difference between both ways of working on rows: bfloat16 gradients differ by their rounding."""

Run: TypeAlias = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of a head and of what goes through it."""

    tokens: int
    hidden: int
    vocabulary: int
    repeats: int


SHAPES = {"cuda": Shape(2_048, 1_024, 151_936, 5), "cpu": Shape(64, 64, 1_003, 1)}


class Problem:
    """Student, teacher and targets for a head of random weights."""

    def __init__(self, shape: Shape, dtype: torch.dtype, device: torch.device) -> None:
        tokens, hidden, vocabulary = shape.tokens, shape.hidden, shape.vocabulary
        torch.manual_seed(0)

        def normal(*sizes: int, scale: float = 1.0) -> Tensor:
            return (scale * torch.randn(*sizes, device=device)).to(dtype)

        self.weight = normal(vocabulary, hidden, scale=1.5 / math.sqrt(hidden)).requires_grad_()
        self.hidden = normal(tokens, hidden).requires_grad_()
        self.taught = self.hidden.detach() + normal(tokens, hidden, scale=0.5)
        self.targets = torch.randint(vocabulary, (tokens,), device=device)
        self.weights = torch.full((tokens,), 1.0 / tokens, device=device)

    def teacher(self, divergence: Divergence | None) -> list[TeacherRows]:
        return [] if divergence is None else [TeacherRows(self.taught, Head(self.weight.detach()))]

    def fused(self, divergence: Divergence | None) -> Tensor:
        if divergence is None:
            return fused_token_loss(self.hidden, Head(self.weight), self.targets, lambda lp, at: -self.weights[at] * lp)[0]
        return fused_divergence(self.hidden, Head(self.weight), self.teacher(divergence), divergence, self.weights)[0]

    def plain(self, divergence: Divergence | None) -> Tensor:
        logits = Head(self.weight).logits(self.hidden).float()
        if divergence is None:
            return torch.nn.functional.cross_entropy(logits, self.targets)
        with torch.no_grad():
            taught = Head(self.weight).logits(self.taught).float()
        return (self.weights * divergence.per_token(logits, taught)).sum()

    def products(self, divergence: Divergence | None) -> None:
        with torch.no_grad():
            total = torch.zeros_like(self.weight, dtype=torch.float32)
            one_pass(self.hidden, Head(self.weight), Idle(self.weights), teacher=self.teacher(divergence), add_to=total)

    def floor(self, divergence: Divergence | None) -> None:
        """In the chunks of `one_pass`."""
        weight, step = self.weight.detach(), chunk_rows(len(self.weight), torch.float32)
        gradient, product = torch.zeros_like(weight), weight.new_empty((step, len(weight)))
        for rows in torch.split(self.hidden.detach(), step):
            chunk = torch.mm(rows, weight.T, out=product[: len(rows)])
            if divergence is not None:
                torch.mm(rows, weight.T, out=chunk)
            torch.mm(chunk, weight)
            gradient.addmm_(chunk.T, rows)

    def backward(self, loss: Tensor) -> list[Tensor]:
        """Return the loss and its gradients."""
        return [loss.detach(), *torch.autograd.grad(loss, (self.hidden, self.weight))]

    def contestants(self, divergence: Divergence | None) -> dict[str, Run]:
        def run() -> list[Tensor]:
            return self.backward(self.fused(divergence))

        contestants: dict[str, Run] = {
            "floor": lambda: self.floor(divergence),
            "products": lambda: self.products(divergence),
            "triton": run,
            "torch": lambda: by_passes(run),
            "plain": lambda: self.backward(self.plain(divergence)),
        }
        if not by_triton(self.weights):
            del contestants["triton"]
        return contestants

    def difference(self, divergence: Divergence | None) -> float:
        """Return the largest relative difference, by the norm, between what Triton and PyTorch's passes find."""

        def run() -> list[Tensor]:
            return self.backward(self.fused(divergence))

        pairs = zip(run(), by_passes(run), strict=True)
        return max(float((a.float() - b.float()).norm() / b.float().norm()) for a, b in pairs)


class Idle:
    """A `RowKernel` that leaves its rows as they are."""

    def __init__(self, losses: Tensor) -> None:
        self.losses = losses

    def __call__(self, product: Tensor, teacher: Tensor | None, rows: slice) -> Tensor:  # noqa: ARG002
        return self.losses[rows]


def by_passes(run: Callable[[], list[Tensor]]) -> list[Tensor]:
    """Return what `run` gives without Triton."""
    with patch.object(token_loss, "by_triton", return_value=False), patch.object(fused, "by_triton", return_value=False):
        return run()


def check(device: torch.device, folder: Path) -> Found:  # noqa: ARG001
    """Compare Triton's results with those of PyTorch's passes, where there are Triton kernels, then time everything."""
    found, shape = Found(), SHAPES[device.type]
    for dtype, most in MOST.items():
        problem = Problem(shape, dtype, device)
        for loss, divergence in LOSSES.items():
            name = f"{loss}, {dtype}".replace("torch.", "")
            runs = problem.contestants(divergence)
            if "triton" in runs:
                found.at_most(f"{name}: Triton and passes differ", problem.difference(divergence), most)
            for variant, (ms, peak_mb) in measure(runs, shape.repeats, device).items():
                found.note(f"{name}: {variant}, ms", ms)
                if device.type == "cuda":
                    found.note(f"{name}: {variant}, MB", peak_mb)
    return found


def measure(runs: Mapping[str, Run], repeats: int, device: torch.device) -> dict[str, tuple[float, float]]:
    """Return median milliseconds and peak MB of each, taking turns after a warm-up; nothing for one that finds no memory."""
    times: dict[str, list[float]] = {}
    peaks: dict[str, float] = {}
    for name, run in runs.items():
        before = _begin(device)
        try:
            run()
        except torch.OutOfMemoryError:
            continue
        times[name], peaks[name] = [], (_peak(device) - before) / 2**20
    for _ in range(repeats):
        for name, taken in times.items():
            _wait_for(device)
            began = time.perf_counter()
            runs[name]()
            _wait_for(device)
            taken.append(1e3 * (time.perf_counter() - began))
    return {name: (statistics.median(taken), peaks[name]) for name, taken in times.items()}


def _wait_for(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _begin(device: torch.device) -> int:
    """Begin to look for a peak, and return what is allocated now."""
    if device.type != "cuda":
        return 0
    torch.cuda.reset_peak_memory_stats(device)
    return torch.cuda.memory_allocated(device)


def _peak(device: torch.device) -> int:
    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else 0
