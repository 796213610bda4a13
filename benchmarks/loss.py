"""CPU-seconds and peak memory of a loss on the output of a language-model head, forward and backward: ours, TRL's and liger's.

Every measurement is a fresh process; the variants take turns, so that a busy machine is fair to all. The floor is the matrix
products alone: four for a divergence (student and teacher projected, two gradients), three for a log-prob. TRL and liger have to
be installed: `make bench-loss` runs this in an environment that has them.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from measuring import emit
from torch import Tensor

HIDDEN, VOCABULARY, TOKENS = 896, 151_936, 2_048
CHUNK = 256
BETAS = (0.0, 0.5, 1.0)
VARIANTS = {
    **{f"jsd {beta}": ("floor", "ours", "trl", "liger") for beta in BETAS},
    "logprob": ("floor", "ours", "trl"),
}

TARGETS = {
    "jsd 0.0": {"floor": 1.25, "trl": 0.7, "liger": 0.7},
    "jsd 0.5": {"floor": 1.25, "trl": 0.45, "liger": 0.5},
    "jsd 1.0": {"floor": 1.25, "trl": 0.7, "liger": 0.7},
    "logprob": {"floor": 1.25, "trl": 0.8},
}
"""What our CPU time over another's is to be at most."""


def products(hidden: Tensor, taught: Tensor | None, weight: Tensor) -> None:
    """The matrix products of one pass, in chunks of rows, and nothing else."""
    logits, other = torch.empty(CHUNK, len(weight)), torch.empty(CHUNK, len(weight))
    gradient = torch.zeros_like(weight)
    for start in range(0, len(hidden), CHUNK):
        rows = slice(start, start + CHUNK)
        torch.mm(hidden[rows], weight.T, out=logits)
        if taught is not None:
            torch.mm(taught[rows], weight.T, out=other)
        torch.mm(logits, weight)
        gradient.addmm_(logits.T, hidden[rows])


def divergence(variant: str, beta: float, hidden: Tensor, taught: Tensor, weight: Tensor) -> Callable[[], Tensor]:
    """What gives the mean divergence per token."""
    n = len(hidden)
    if variant == "ours":
        from composer_replication.distillation import GeneralizedJSD, fused_divergence
        from composer_replication.kernels import Head, TeacherRows

        teacher = [TeacherRows(taught, Head(weight.detach()))]
        return lambda: fused_divergence(hidden, Head(weight), teacher, GeneralizedJSD(beta), torch.full((n,), 1 / n))[0]
    if variant == "trl":
        from trl.kernels.chunked_divergence import ChunkedDivergenceFunction

        frozen = weight.detach()
        return lambda: ChunkedDivergenceFunction.apply(hidden, weight, None, taught, frozen, None, beta, 1.0)[0].sum() / n
    from liger_kernel.chunked_loss import LigerFusedLinearJSDLoss

    loss = LigerFusedLinearJSDLoss(weight_hard_loss=0.0, weight_soft_loss=1.0, beta=beta, temperature=1.0, compiled=False)
    return lambda: loss(hidden, weight, taught, weight.detach(), torch.zeros(n, dtype=torch.int64))


def logprob(variant: str, hidden: Tensor, weight: Tensor) -> Callable[[], Tensor]:
    """What gives the mean negative log-prob of random tokens."""
    n = len(hidden)
    targets = torch.randint(VOCABULARY, (n,))
    if variant == "ours":
        from composer_replication.kernels import Head, fused_token_loss

        return lambda: fused_token_loss(hidden, Head(weight), targets, lambda logprobs, _rows: -logprobs / n)[0]
    from trl.kernels.chunked_logprob import ChunkedLogProbFunction

    return lambda: -ChunkedLogProbFunction.apply(hidden, weight, None, targets, 1.0, 32_768, None, 1.0, ("entropy",))[0].sum() / n


def measure(loss: str, variant: str, tokens: int) -> None:
    """In a fresh process: print one line of JSON."""
    torch.set_num_threads(2)
    torch.manual_seed(0)
    weight = (torch.randn(VOCABULARY, HIDDEN) * 1.5 / math.sqrt(HIDDEN)).requires_grad_()
    hidden = torch.randn(tokens, HIDDEN, requires_grad=True)
    taught = hidden.detach() + 0.5 * torch.randn(tokens, HIDDEN)
    kind, _, beta = loss.partition(" ")
    run: Callable[[], object]
    if variant == "floor":
        bare = hidden.detach(), taught if kind == "jsd" else None, weight.detach()
        products(bare[0][:CHUNK], bare[1] if bare[1] is None else bare[1][:CHUNK], bare[2])  # warm
        run = lambda: products(*bare)  # noqa: E731
    else:
        value = divergence(variant, float(beta), hidden, taught, weight) if kind == "jsd" else logprob(variant, hidden, weight)
        run = lambda: value().backward()  # noqa: E731
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    cpu, wall = time.process_time(), time.perf_counter()
    run()
    found = {"cpu_s": time.process_time() - cpu, "wall_s": time.perf_counter() - wall}
    found["peak_mb"] = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    found["gradient"] = 0.0 if weight.grad is None else float(weight.grad.norm())
    print(json.dumps(found))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=TOKENS)
    parser.add_argument("--write", type=Path, help="write the figures to this file")
    parser.add_argument("--one", nargs=2, metavar=("LOSS", "VARIANT"), help="measure one variant in this process")
    options = parser.parse_args()
    if options.one:
        loss, variant = options.one
        measure(loss, variant, options.tokens)
        return
    results: dict[str, dict[str, list[dict[str, float]]]] = {loss: {v: [] for v in found} for loss, found in VARIANTS.items()}
    for _ in range(options.repeats):
        for loss, variants in VARIANTS.items():
            for variant in variants:
                command = [sys.executable, __file__, "--tokens", str(options.tokens), "--one", loss, variant]
                done = subprocess.run(
                    command, env={**os.environ, "OMP_NUM_THREADS": "2"}, capture_output=True, text=True, check=True
                )
                results[loss][variant].append(json.loads(done.stdout.splitlines()[-1]))
    figures = {loss: _figures(loss, found) for loss, found in results.items()}
    size = {"hidden": HIDDEN, "vocabulary": VOCABULARY, "tokens": options.tokens, "repeats": options.repeats}
    emit("loss", {**size, **figures}, options.write)


def _figures(loss: str, found: dict[str, list[dict[str, float]]]) -> dict[str, dict[str, float]]:
    """Medians of every variant and its ratio to ours, printed as they are returned; all but the floor must give one gradient."""
    medians = {v: {key: statistics.median(run[key] for run in runs) for key in runs[0]} for v, runs in found.items()}
    for variant, figures in medians.items():
        ours = medians["ours"]["gradient"]
        if variant != "floor" and not math.isclose(figures["gradient"], ours, rel_tol=1e-3):
            sys.exit(f"{loss}: the gradient of {variant} has norm {figures['gradient']}, ours {ours}: they are not the same loss")
        figures["ours_over_this_cpu"] = medians["ours"]["cpu_s"] / figures["cpu_s"]
        told = f"{figures['cpu_s']:7.1f} CPU-s {figures['wall_s']:7.1f} s {figures['peak_mb']:7.0f} MB"
        most = TARGETS[loss].get(variant)
        verdict = "" if most is None else f"   at most {most}: {'met' if figures['ours_over_this_cpu'] <= most else 'MISSED'}"
        print(f"{loss:8s} {variant:6s} {told}   ours / this {figures['ours_over_this_cpu']:.2f}{verdict}", flush=True)
    return {v: {key: round(value, 4) for key, value in figures.items()} for v, figures in medians.items()}


if __name__ == "__main__":
    main()
