"""The Triton kernels through the public functions: the values and gradients of float64 and of PyTorch's passes.

`nox -s triton` interprets them on a CPU. On a machine with CUDA, and without TRITON_INTERPRET, they are compiled and run there.
"""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

from composer_replication.distillation import (
    TAID,
    Divergence,
    EntropyAwareOPD,
    EntropyGatedOPD,
    GeneralizedJSD,
    TopKJSD,
    fused,
    fused_divergence,
    fused_entropy_gated,
)
from composer_replication.distillation import triton_divergence as divergence_kernel
from composer_replication.kernels import Head, TeacherRows, by_triton, fused_logprobs, fused_token_loss, token_loss
from composer_replication.kernels import triton_tokens as token_kernel

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
pytestmark = [
    # the interpreter computes both sides of a select with NumPy, which warns of inf - inf on the side that is not taken
    pytest.mark.filterwarnings("ignore:(invalid value|overflow) encountered:RuntimeWarning"),
    # Triton 3.3's interpreter takes arrays of one element for numbers
    pytest.mark.filterwarnings("ignore:Conversion of an array with ndim > 0:DeprecationWarning"),
]

DIVERGENCES = [
    GeneralizedJSD(0.0),
    GeneralizedJSD(1.0),
    GeneralizedJSD(0.5),
    GeneralizedJSD(0.3, "continuous"),
    GeneralizedJSD(0.0, token_clip=0.02),
    GeneralizedJSD(1.0, token_clip=0.02),
    GeneralizedJSD(0.7, "continuous", token_clip=0.01),
    TAID(0.0),
    TAID(0.6),
    TAID(1.0),
    EntropyAwareOPD(2.0),
    EntropyAwareOPD(),
]
INFINITE = {
    (GeneralizedJSD(0.0), "student"),
    (GeneralizedJSD(1.0), "teacher"),
    *((divergence, side) for divergence in (EntropyAwareOPD(2.0), EntropyAwareOPD()) for side in ("student", "teacher")),
}
"""Divergences that are not finite where one side alone lacks a column."""
PLAIN, BENT = (False, 1.0, None, 1.0), (True, 0.5, 3.0, 1.3)
"""Bias, scale, soft cap and temperature."""
HEADS = [(bias, scale, cap, heat) for bias in (False, True) for scale in (1.0, 1.5) for cap in (None, 3.0) for heat in (1.0, 0.7)]
SIZES = [(10, PLAIN), (10, BENT), (5_003, PLAIN), (5_003, BENT), (66_001, BENT)]


@dataclass(frozen=True)
class Rows:
    """Float32 inputs of a loss; the teacher is made of two models."""

    hidden: Tensor
    weight: Tensor
    bias: Tensor | None
    taught: Tensor
    taught_weight: Tensor
    taught_bias: Tensor | None
    targets: Tensor
    weights: Tensor
    options: tuple[float, float | None, float]

    @property
    def inputs(self) -> list[Tensor]:
        return [x for x in (self.hidden, self.weight, self.bias) if x is not None]

    def to(self, dtype: torch.dtype) -> Rows:
        """The same numbers in another type, as leaves of their own."""
        tensors = ("hidden", "weight", "bias", "taught", "taught_weight", "taught_bias", "weights")
        made = {name: x.detach().to(dtype) for name in tensors if (x := getattr(self, name)) is not None}
        for name in made.keys() & {"hidden", "weight", "bias"}:
            made[name].requires_grad_()
        return replace(self, **made)

    @property
    def head(self) -> Head:
        return Head(self.weight, self.bias, *self.options[:2])

    @property
    def teacher(self) -> list[TeacherRows]:
        parts = [TeacherRows(self.taught, Head(self.taught_weight, self.taught_bias, *self.options[:2]), 0.7)]
        if self.taught_bias is None:
            parts.append(TeacherRows(self.hidden.detach(), Head(self.weight.detach()), 0.3))
        return parts


def rows_of(vocabulary, kind=PLAIN, n=5, hidden=6):
    torch.manual_seed(vocabulary)
    bias, *options = kind

    def normal(*shape):
        return torch.randn(*shape, device=DEVICE)

    rows = Rows(
        normal(n, hidden),
        normal(vocabulary, hidden),
        normal(vocabulary) if bias else None,
        normal(n, hidden),
        normal(vocabulary, hidden),
        None,
        torch.randint(vocabulary, (n, 2), device=DEVICE)[:, 0],
        torch.rand(n, device=DEVICE).index_fill(0, torch.tensor([1], device=DEVICE), 0.0),
        tuple(options),
    )
    return rows.to(torch.float32)


def scored(rows, **options):
    """Value, log-probs, entropies and gradients of a token loss, and log-probs and gradients of `fused_logprobs`."""

    def loss(logprobs, at):
        return rows.weights[at] * (2 * logprobs.exp() - logprobs**2)

    options |= {"temperature": rows.options[2]}
    value, scores = fused_token_loss(rows.hidden, rows.head, rows.targets, loss, **options)
    apart = fused_logprobs(rows.hidden, rows.head, rows.targets, **options)
    gradients = [torch.autograd.grad(x, rows.inputs) for x in (value, loss(apart.logprobs, slice(None)).sum())]
    return [value, *scores, *gradients[0], *apart, *gradients[1]]


def plainly_scored(rows):
    distribution = torch.distributions.Categorical(logits=rows.head.logits(rows.hidden) / rows.options[2])
    logprobs = distribution.log_prob(rows.targets)
    value = (rows.weights * (2 * logprobs.exp() - logprobs**2)).sum()
    found = [logprobs, distribution.entropy(), *torch.autograd.grad(value, rows.inputs)]
    return [value, *found, *found]


def diverged(rows, divergence: Divergence, **options):
    """Value, divergences and gradients."""
    value, per_row = fused_divergence(
        rows.hidden, rows.head, rows.teacher, divergence, rows.weights, temperature=rows.options[2], **options
    )
    return [value, per_row, *torch.autograd.grad(value, rows.inputs)]


def plainly_diverged(rows, divergence: Divergence):
    taught = sum(part.coefficient * part.head.logits(part.hidden) for part in rows.teacher)
    per_row = divergence.per_token(rows.head.logits(rows.hidden) / rows.options[2], taught / rows.options[2])
    value = (rows.weights * per_row).sum()
    return [value, per_row, *torch.autograd.grad(value, rows.inputs)]


def by_passes(work: Callable[[], list[Tensor]]) -> list[Tensor]:
    """What `work` finds without Triton."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(token_loss, "by_triton", lambda _: False)
        patch.setattr(fused, "by_triton", lambda _: False)
        return work()


def assert_near(found, expected, tolerance, nothing=1e-12):
    """Each tensor by the norm of its error: its own small entries are sums of large ones that cancel."""
    assert len(found) == len(expected)
    for i, (a, b) in enumerate(zip(found, expected, strict=True)):
        a, b = a.detach().double(), b.detach().double()
        assert a.shape == b.shape
        assert torch.linalg.vector_norm(a - b) <= tolerance * torch.linalg.vector_norm(b) + nothing, (i, a, b)


def test_float32_goes_to_the_kernels_chunk_by_chunk_and_the_rest_does_not(monkeypatch):
    seen = []
    for module, name in ((token_kernel, "score"), (divergence_kernel, "diverge")):
        kernel = getattr(module, name)
        monkeypatch.setattr(module, name, lambda *args, name=name, kernel=kernel: (seen.append(name), kernel(*args))[1])
    rows = rows_of(11)
    scored(rows, rows_per_chunk=2)
    assert seen == ["score"] * 9  # three chunks in one pass, and in each of two
    seen.clear()
    diverged(rows, TAID(0.5), rows_per_chunk=2)
    assert seen == ["diverge"] * 3
    seen.clear()
    diverged(rows, TopKJSD(3))
    fused_entropy_gated(rows.hidden, rows.head, rows.teacher, rows.targets, EntropyGatedOPD(), rows.weights)
    scored(rows.to(torch.float64))
    assert seen == []
    assert not by_triton(torch.zeros(1, 2, dtype=torch.float64, device=DEVICE))


def test_on_a_cpu_triton_is_not_even_imported():
    code = """
import sys
import torch
from composer_replication.distillation import TAID, fused_divergence
from composer_replication.kernels import Head, TeacherRows, fused_logprobs
hidden, head = torch.randn(3, 4), Head(torch.randn(5, 4))
fused_logprobs(hidden, head, torch.arange(3))
fused_divergence(hidden, head, [TeacherRows(hidden, head)], TAID(0.5), torch.ones(3))
assert "triton" not in sys.modules
"""
    plain = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    subprocess.run([sys.executable, "-c", code], env=plain, check=True)


@pytest.mark.parametrize(("vocabulary", "kind"), [*((97, kind) for kind in HEADS), *SIZES], ids=str)
def test_a_token_loss(vocabulary, kind):
    rows = rows_of(vocabulary, kind, n=2 if vocabulary > 10_000 else 5)
    found = scored(rows)
    assert_near(found, plainly_scored(rows.to(torch.float64)), 3e-6)
    assert_near(found, by_passes(lambda: scored(rows)), 3e-6)
    assert_near(scored(rows, rows_per_chunk=2), found, 3e-6)


@pytest.mark.parametrize("divergence", DIVERGENCES, ids=str)
@pytest.mark.parametrize(("vocabulary", "kind"), [*((97, kind) for kind in HEADS), *SIZES], ids=str)
def test_a_divergence(vocabulary, kind, divergence):
    rows = rows_of(vocabulary, kind, n=2 if vocabulary > 10_000 else 5)
    found = diverged(rows, divergence)
    expected = plainly_diverged(rows.to(torch.float64), divergence)
    if divergence == TAID(0.0):  # the gradient is zero, and not only nearly
        assert not any(gradient.any() for gradient in found[2:])
        found, expected = found[:2], expected[:2]
    assert_near(found, expected, 2e-5)
    assert_near(found, by_passes(lambda: diverged(rows, divergence))[: len(found)], 2e-5)


@pytest.mark.parametrize("divergence", DIVERGENCES, ids=str)
@pytest.mark.parametrize("impossible", ["both", "student", "teacher"])
def test_impossible_columns(divergence, impossible):
    """A bias of -inf for both sides is as if the columns did not exist; for one of them it is what the plain loss says."""
    rows = rows_of(40, (True, 1.0, None, 0.8))
    rows = replace(rows, weights=rows.weights + 0.1)
    barred = {"both": ([3, 38, 39],) * 2, "student": ([3, 39], []), "teacher": ([], [3, 39])}[impossible]

    def with_bars(value):
        biases = (rows.bias.detach().index_fill(0, torch.tensor(at, device=DEVICE).long(), value) for at in barred)
        return replace(rows, **dict(zip(("bias", "taught_bias"), biases, strict=True)))

    clipped = isinstance(divergence, GeneralizedJSD) and divergence.token_clip is not None
    # the gradient of the plain loss has 0 * inf where it clips; a probability of exp(-1e9) is the same 0 there
    expected = plainly_diverged(with_bars(-1e9 if clipped else -math.inf).to(torch.float64), divergence)
    found = diverged(with_bars(-math.inf).to(torch.float32), divergence)
    infinite = (divergence, impossible) in INFINITE
    assert [x[1].isfinite().tolist() for x in (found, expected)] == [[not infinite] * 5] * 2
    if not infinite:
        at_most = 2 if divergence == TAID(0.0) else None
        assert_near(found[:at_most], expected[:at_most], 2e-5)


def test_impossible_columns_of_a_token_loss():
    rows = rows_of(40, (True, 1.0, None, 0.8))
    bias = rows.bias.detach().index_fill(0, torch.arange(35, 40, device=DEVICE), -math.inf)
    rows = replace(rows, bias=bias, targets=rows.targets % 35).to(torch.float32)
    found = scored(rows)
    short = replace(rows, weight=rows.weight[:35], bias=bias[:35]).to(torch.float64)
    expected = plainly_scored(short)
    for at in (4, 5, 9, 10):  # gradients of the weight and the bias
        assert not found[at][35:].any()
        found[at] = found[at][:35]
    assert_near(found, expected, 3e-6)


@pytest.mark.parametrize("divergence", DIVERGENCES, ids=str)
def test_certain_and_wrong(divergence):
    """Logits of thousands: no overflow, and the divergence of a student that is sure of another token."""
    rows = rows_of(300)
    rows = replace(rows, hidden=400.0 * rows.hidden, taught=300.0 * rows.taught, weights=rows.weights + 0.1).to(torch.float32)
    found, expected = diverged(rows, divergence)[:2], plainly_diverged(rows.to(torch.float64), divergence)[:2]
    assert_near(found, expected, 1e-4)
    assert_near(scored(rows), plainly_scored(rows.to(torch.float64)), 1e-4, nothing=1e-6)


@pytest.mark.parametrize("shift", [-500.0, 500.0])
def test_a_shift_of_all_logits_does_nothing(shift):
    rows = rows_of(5_003)
    shifted = replace(rows, bias=torch.full((5_003,), shift, device=DEVICE)).to(torch.float32)
    for divergence in (GeneralizedJSD(0.0), GeneralizedJSD(0.5), EntropyAwareOPD()):
        teacher = [TeacherRows(rows.taught, Head(rows.taught_weight))]
        found, expected = (fused_divergence(r.hidden, r.head, teacher, divergence, rows.weights)[1] for r in (shifted, rows))
        assert_near([found], [expected], 1e-4)
    assert_near(scored(shifted)[1:3], scored(rows)[1:3], 1e-4)


@pytest.mark.parametrize("divergence", [GeneralizedJSD(b) for b in (0.0, 0.5, 1.0)] + [EntropyAwareOPD()], ids=str)
def test_a_divergence_of_a_ten_millionth_over_a_hundred_thousand_columns(divergence):
    """Where the sum of s log(s / t) has lost all its digits in float32; the gradient keeps its own."""
    rows = rows_of(100_003, n=2)
    near = rows.hidden.detach() + 1e-4 * rows.taught
    rows = replace(rows, taught=near, taught_weight=rows.weight.detach(), weights=torch.ones(2, device=DEVICE)).to(torch.float32)
    expected = plainly_diverged(rows.to(torch.float64), divergence)
    assert expected[1].max() < 1e-6
    assert_near(diverged(rows, divergence), expected, 0.01)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_weights(dtype):
    """The kernels see float32 products; only the gradients are rounded to the weights' type."""
    rows = rows_of(1_003, BENT).to(dtype)
    rows = replace(rows, weights=rows.weights.float())
    for work in (lambda: scored(rows), lambda: diverged(rows, GeneralizedJSD(0.5)), lambda: diverged(rows, EntropyAwareOPD())):
        found, expected = work(), by_passes(work)
        assert [x.dtype for x in found] == [x.dtype for x in expected]
        assert_near(found, expected, 8 * torch.finfo(dtype).eps)
        assert_near([x for x in found if x.dtype != dtype], [x for x in expected if x.dtype != dtype], 1e-5)


def test_what_is_not_a_number_stays_so_and_in_its_row():
    rows = rows_of(50, BENT)
    hidden = rows.hidden.detach().index_fill(0, torch.tensor([2], device=DEVICE), math.nan)
    broken = replace(rows, hidden=hidden).to(torch.float32)
    others = [0, 1, 3, 4]
    for divergence in DIVERGENCES:
        found, whole = diverged(broken, divergence), diverged(rows, divergence)
        assert found[1].isnan().nonzero().tolist() == [[2]]
        assert torch.equal(found[1][others], whole[1][others])
        assert found[2].isnan().any(1).nonzero().tolist() == [[2]]
        assert torch.equal(found[2][others], whole[2][others])
    logprobs, entropy = scored(broken)[1:3]
    assert logprobs.isnan().nonzero().tolist() == entropy.isnan().nonzero().tolist() == [[2]]


def test_a_target_outside_the_vocabulary_is_impossible():
    rows = rows_of(20)
    scores = fused_logprobs(rows.hidden, rows.head, torch.tensor([0, -1, 19, 20, 3], device=DEVICE))
    assert scores.logprobs.isinf().tolist() == [False, True, False, True, False]
