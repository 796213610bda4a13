"""Milliseconds and peak memory of a loss on the output of a language-model head, forward and backward, on a GPU.

- floor: the matrix products alone (four for a divergence, three for a log-prob), in the weight's type;
- products: `one_pass` with a kernel that does nothing; what a fused loss takes above this is the work on its rows;
- triton: the fused loss, its rows worked on by Triton kernels;
- torch: the fused loss, its rows worked on by PyTorch's passes;
- plain: the loss on the whole logits, by autograd.

Before it is measured, `triton` has to agree with `torch`: exit code 1 where it does not, or where there is no GPU.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
from collections.abc import Callable, Mapping
from typing import TypeAlias
from unittest.mock import patch

import torch
from measuring import emit
from torch import Tensor

from composer_replication.distillation import TAID, Divergence, EntropyAwareOPD, GeneralizedJSD, fused, fused_divergence
from composer_replication.kernels import Head, TeacherRows, fused_token_loss, token_loss
from composer_replication.kernels.one_pass import chunk_rows, one_pass

LOSSES: dict[str, Divergence | None] = {
    "logprob": None,
    "jsd 0.0": GeneralizedJSD(0.0),
    "jsd 0.5": GeneralizedJSD(0.5),
    "jsd 1.0": GeneralizedJSD(1.0),
    "taid": TAID(0.5),
    "entropy_opd": EntropyAwareOPD(),
}
TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 2e-2}
"""Of the relative difference of a gradient: bfloat16 gradients differ by their rounding."""

Run: TypeAlias = Callable[[], object]


class Problem:
    """Student, teacher and targets for a head of random weights."""

    def __init__(self, tokens: int, hidden: int, vocabulary: int, dtype: torch.dtype) -> None:
        torch.manual_seed(0)

        def normal(*shape: int, scale: float = 1.0) -> Tensor:
            return (scale * torch.randn(*shape, device="cuda")).to(dtype)

        self.weight = normal(vocabulary, hidden, scale=1.5 / math.sqrt(hidden)).requires_grad_()
        self.hidden = normal(tokens, hidden).requires_grad_()
        self.taught = self.hidden.detach() + normal(tokens, hidden, scale=0.5)
        self.targets = torch.randint(vocabulary, (tokens,), device="cuda")
        self.weights = torch.full((tokens,), 1.0 / tokens, device="cuda")

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
        for rows in self.hidden.detach().split(step):
            chunk = torch.mm(rows, weight.T, out=product[: len(rows)])
            if divergence is not None:
                torch.mm(rows, weight.T, out=chunk)
            torch.mm(chunk, weight)
            gradient.addmm_(chunk.T, rows)

    def backward(self, loss: Tensor) -> list[Tensor]:
        """The loss and its gradients."""
        return [loss.detach(), *torch.autograd.grad(loss, (self.hidden, self.weight))]


class Idle:
    """A `RowKernel` that leaves its rows as they are."""

    def __init__(self, losses: Tensor) -> None:
        self.losses = losses

    def __call__(self, product: Tensor, teacher: Tensor | None, rows: slice) -> Tensor:  # noqa: ARG002
        return self.losses[rows]


def by_passes(run: Callable[[], list[Tensor]]) -> list[Tensor]:
    """What `run` gives without Triton."""
    with patch.object(token_loss, "by_triton", return_value=False), patch.object(fused, "by_triton", return_value=False):
        return run()


def difference(problem: Problem, divergence: Divergence | None) -> float:
    """The largest relative difference, by the norm, between what Triton and PyTorch's passes find."""

    def run() -> list[Tensor]:
        return problem.backward(problem.fused(divergence))

    pairs = zip(run(), by_passes(run), strict=True)
    return max(float((a.float() - b.float()).norm() / b.float().norm()) for a, b in pairs)


def contestants(problem: Problem, divergence: Divergence | None) -> dict[str, Run]:
    def run() -> list[Tensor]:
        return problem.backward(problem.fused(divergence))

    return {
        "floor": lambda: problem.floor(divergence),
        "products": lambda: problem.products(divergence),
        "triton": run,
        "torch": lambda: by_passes(run),
        "plain": lambda: problem.backward(problem.plain(divergence)),
    }


def measure(runs: Mapping[str, Run], repeats: int) -> dict[str, dict[str, float]]:
    """Median milliseconds and peak MB of each, taking turns after a warm-up; nothing for one that finds no memory."""
    times: dict[str, list[float]] = {}
    peaks: dict[str, float] = {}
    for name, run in runs.items():
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        try:
            run()
        except torch.OutOfMemoryError:
            continue
        times[name], peaks[name] = [], (torch.cuda.max_memory_allocated() - before) / 2**20
    for _ in range(repeats):
        for name, taken in times.items():
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            runs[name]()
            end.record()
            end.synchronize()
            taken.append(start.elapsed_time(end))
    return {name: {"ms": round(statistics.median(taken), 3), "peak_mb": round(peaks[name])} for name, taken in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=4_096)
    parser.add_argument("--hidden", type=int, default=2_048)
    parser.add_argument("--vocabulary", type=int, default=151_936)
    parser.add_argument("--repeats", type=int, default=10)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit(f"bench-gpu needs a CUDA device, and torch {torch.__version__} finds none")
    import triton

    figures: dict[str, dict[str, object]] = {}
    for dtype, tolerance in TOLERANCE.items():
        problem = Problem(options.tokens, options.hidden, options.vocabulary, dtype)
        for loss, divergence in LOSSES.items():
            name, off = f"{loss} {dtype}".replace("torch.", ""), difference(problem, divergence)
            if not off <= tolerance:
                sys.exit(f"{name}: Triton and PyTorch differ by {off:.1e}, more than {tolerance:.0e}")
            found = measure(contestants(problem, divergence), options.repeats)
            figures[name] = {"difference": float(f"{off:.1e}"), **found}
            for variant in contestants(problem, divergence):
                told = "{ms:9.2f} ms {peak_mb:7.0f} MB".format(**found[variant]) if variant in found else "out of memory"
                print(f"{name:22s} {variant:9s} {told}", flush=True)
        del problem
    device = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "triton": triton.__version__}
    emit("fused_gpu", {**device, **vars(options), **figures})


if __name__ == "__main__":
    main()
