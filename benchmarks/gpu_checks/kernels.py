"""Every fused loss on an output head, and every Triton kernel, beside the same loss on whole logits in float64."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias
from unittest.mock import patch

import torch
from torch import Tensor

from composer_replication.distillation import (
    TAID,
    Divergence,
    EntropyAwareOPD,
    EntropyGatedOPD,
    GatedForwardKL,
    GeneralizedJSD,
    TopKJSD,
    fused,
    fused_divergence,
    fused_entropy_gated,
    sampled_token_per_token,
)
from composer_replication.kernels import (
    Head,
    TeacherRows,
    by_triton,
    fused_logprobs,
    fused_teacher_logprobs,
    fused_token_loss,
    token_loss,
)
from gpu_checks.found import Found, SkippedError

MOST = {torch.float32: 2e-5, torch.bfloat16: 1e-2}
"""Of the relative error of values and gradients by the type of the head: gradients are returned in it."""
_TEMPERATURE = 0.8
DIVERGENCES: Mapping[str, Divergence] = {
    "jsd 0": GeneralizedJSD(0.0),
    "jsd 0.5": GeneralizedJSD(0.5),
    "jsd 1": GeneralizedJSD(1.0),
    "jsd 0.5 clipped": GeneralizedJSD(0.5, token_clip=0.01),
    "taid": TAID(0.4),
    "entropy-aware": EntropyAwareOPD(),
    "top-k jsd": TopKJSD(20, 0.5),
    "gated forward kl": GatedForwardKL(0.8, 16),
}
_GATED = EntropyGatedOPD(0.8, 16, 0.5)
Values: TypeAlias = tuple[Tensor, ...]
"""A 0-dim loss, whose gradient is compared, and what else is compared."""


@dataclass(frozen=True, slots=True, eq=False)
class Case:
    """Rows for a head of random weights."""

    hidden: Tensor
    head: Head
    taught: Tensor
    targets: Tensor
    weights: Tensor

    def in_float64(self) -> Case:
        """Return the same numbers in float64."""
        hidden, weight, taught = (x.detach().double() for x in (self.hidden, self.head.weight, self.taught))
        bias = None if self.head.bias is None else self.head.bias.detach().double().requires_grad_()
        head = Head(weight.requires_grad_(), bias, self.head.scale, self.head.softcap)
        return Case(hidden.requires_grad_(), head, taught, self.targets, self.weights.double())

    def teacher(self) -> list[TeacherRows]:
        head = self.head
        bias = None if head.bias is None else head.bias.detach()
        return [TeacherRows(self.taught, Head(head.weight.detach(), bias, head.scale, head.softcap))]

    def gradient(self, loss: Tensor) -> dict[str, Tensor]:
        inputs = {"hidden": self.hidden, "weight": self.head.weight, "bias": self.head.bias}
        wanted = {name: value for name, value in inputs.items() if value is not None}
        return dict(zip(wanted, torch.autograd.grad(loss, list(wanted.values())), strict=True))


def make_case(device: torch.device, dtype: torch.dtype, *, whole: bool) -> Case:
    """Return a case; `whole` gives its head a bias, a scale and a soft cap."""
    tokens, width, vocabulary = (256, 512, 151_936) if device.type == "cuda" else (48, 32, 1_003)
    drawn = torch.Generator().manual_seed(0)

    def normal(*shape: int, scale: float = 1.0) -> Tensor:
        return (scale * torch.randn(*shape, generator=drawn)).to(device, dtype)

    weight = normal(vocabulary, width, scale=2.0 / math.sqrt(width)).requires_grad_()
    head = Head(weight, normal(vocabulary).requires_grad_(), 0.7, 8.0) if whole else Head(weight)
    hidden = normal(tokens, width).requires_grad_()
    taught = hidden.detach() + normal(tokens, width, scale=0.5)
    targets = torch.randint(vocabulary, (tokens,), generator=drawn).to(device)
    weights = torch.rand(tokens, generator=drawn).to(device) / tokens
    weights[::7] = 0.0
    return Case(hidden, head, taught, targets, weights)


def _chunk(case: Case) -> int:
    """Several chunks, the last one shorter."""
    return len(case.hidden) * 3 // 8


def fused_token(case: Case) -> Values:
    """Return a token loss with an entropy term."""

    def loss(logprobs: Tensor, rows: slice) -> Tensor:
        return -case.weights[rows] * logprobs.exp()

    value, scores = fused_token_loss(
        case.hidden,
        case.head,
        case.targets,
        loss,
        entropy_weights=0.1 * case.weights,
        temperature=_TEMPERATURE,
        rows_per_chunk=_chunk(case),
    )
    return value, scores.logprobs, scores.entropy


def fused_scores(case: Case) -> Values:
    """Return differentiable log-probs and entropies, in a loss that mixes rows."""
    scores = fused_logprobs(case.hidden, case.head, case.targets, temperature=_TEMPERATURE, rows_per_chunk=_chunk(case))
    value = (case.weights * scores.logprobs).sum().square() + (case.weights * scores.entropy).sum()
    return value, scores.logprobs.detach(), scores.entropy.detach()


def plain_scores(case: Case) -> tuple[Tensor, Tensor]:
    """Return log-probs and entropies from whole logits."""
    every = (case.head.logits(case.hidden) / _TEMPERATURE).log_softmax(-1)
    return every.gather(-1, case.targets[:, None])[:, 0], -(every.exp() * every).sum(-1)


def plain_token(case: Case) -> Values:
    logprobs, entropy = plain_scores(case)
    value = (-case.weights * logprobs.exp() + 0.1 * case.weights * entropy).sum()
    return value, logprobs.detach(), entropy.detach()


def plain_mixed(case: Case) -> Values:
    logprobs, entropy = plain_scores(case)
    value = (case.weights * logprobs).sum().square() + (case.weights * entropy).sum()
    return value, logprobs.detach(), entropy.detach()


def _both_logits(case: Case) -> tuple[Tensor, Tensor]:
    (teacher,) = case.teacher()
    return case.head.logits(case.hidden) / _TEMPERATURE, teacher.head.logits(teacher.hidden) / _TEMPERATURE


def fused_distance(case: Case, divergence: Divergence) -> Values:
    return fused_divergence(
        case.hidden, case.head, case.teacher(), divergence, case.weights, temperature=_TEMPERATURE, rows_per_chunk=_chunk(case)
    )


def plain_distance(case: Case, divergence: Divergence) -> Values:
    per_row = divergence.per_token(*_both_logits(case))
    return (case.weights * per_row).sum(), per_row.detach()


def fused_gate(case: Case) -> Values:
    return fused_entropy_gated(
        case.hidden,
        case.head,
        case.teacher(),
        case.targets,
        _GATED,
        case.weights,
        temperature=_TEMPERATURE,
        rows_per_chunk=_chunk(case),
    )


def plain_gate(case: Case) -> Values:
    student, teacher = _both_logits(case)
    at = case.targets[:, None]
    s, t = (logits.log_softmax(-1).gather(-1, at)[:, 0] for logits in (student, teacher))
    gated = _GATED.alpha * _GATED.gated.per_token(student, teacher)
    return (case.weights * (sampled_token_per_token(s, t) + gated)).sum(), (s - t + gated).detach()


LOSSES: Mapping[str, tuple[Callable[[Case], Values], Callable[[Case], Values]]] = {
    "token loss": (fused_token, plain_token),
    "log-probs": (fused_scores, plain_mixed),
    "entropy-gated": (fused_gate, plain_gate),
    **{
        name: (lambda case, d=d: fused_distance(case, d), lambda case, d=d: plain_distance(case, d))  # type: ignore[misc]
        for name, d in DIVERGENCES.items()
    },
}
BY_TRITON = ("token loss", "log-probs", "jsd 0", "jsd 0.5", "jsd 1", "jsd 0.5 clipped", "taid", "entropy-aware")


def error(case: Case, run: Callable[[Case], Values], plain: Callable[[Case], Values]) -> float:
    """Return the largest relative error, by the norm, of values and gradients."""
    exact = case.in_float64()
    ours, theirs = run(case), plain(exact)
    rows = case.weights != 0  # a row without weight has no divergence where kernels leave it out
    pairs = [(a[rows], b[rows]) if a.dim() else (a, b) for a, b in zip(ours, theirs, strict=True)]
    pairs += list(zip(case.gradient(ours[0]).values(), exact.gradient(theirs[0]).values(), strict=True))
    return max(float((a.detach().double() - b.detach()).norm() / b.detach().norm()) for a, b in pairs)


def check(device: torch.device, folder: Path) -> Found:  # noqa: ARG001
    """Compare all fused losses, their rows worked on by PyTorch's passes."""
    found = Found()
    with patch.object(token_loss, "by_triton", return_value=False), patch.object(fused, "by_triton", return_value=False):
        _compare(found, device, LOSSES)
    for dtype in MOST:
        case = make_case(device, dtype, whole=True)
        exact = case.in_float64()
        scored = fused_teacher_logprobs(case.teacher(), case.targets, temperature=_TEMPERATURE, rows_per_chunk=_chunk(case))
        expected = _both_logits(exact)[1].log_softmax(-1).gather(-1, case.targets[:, None])[:, 0]
        off = float((scored.double() - expected).norm() / expected.norm())
        found.at_most(_named("teacher's log-probs", dtype, True), off, MOST[dtype])
    return found


def check_triton(device: torch.device, folder: Path) -> Found:  # noqa: ARG001
    """Compare the fused losses that have Triton kernels, by those."""
    if not by_triton(torch.empty(1, device=device)):
        raise SkippedError("Triton kernels need a CUDA device and the package triton (make triton interprets them)")
    found = Found()
    _compare(found, device, {name: LOSSES[name] for name in BY_TRITON})
    return found


def _compare(
    found: Found,
    device: torch.device,
    losses: Mapping[str, tuple[Callable[[Case], Values], Callable[[Case], Values]]],
) -> None:
    for dtype, most in MOST.items():
        for whole in (False, True):
            case = make_case(device, dtype, whole=whole)
            for name, (run, plain) in losses.items():
                found.at_most(_named(name, dtype, whole), error(case, run, plain), most)


def _named(name: str, dtype: torch.dtype, whole: bool) -> str:
    return f"{name}, {str(dtype).removeprefix('torch.')}" + (", bias and cap" if whole else "")
