"""Bad options of a divergence are refused where it is made, so that no path (fused, plain, Triton) computes with them."""

from __future__ import annotations

import math

import mpmath
import pytest
import torch

from composer_replication.distillation import (
    TAID,
    EntropyAwareOPD,
    EntropyGatedOPD,
    GatedForwardKL,
    GeneralizedJSD,
    TopKJSD,
    entropy_aware_opd_per_token,
    fused_divergence,
    gated_forward_kl_per_token,
    generalized_jsd_loss,
    generalized_jsd_per_token,
    taid_per_token,
    top_k_jsd_per_token,
)
from composer_replication.kernels import Head, TeacherRows

PLAIN = {
    GeneralizedJSD: generalized_jsd_per_token,
    TAID: taid_per_token,
    EntropyAwareOPD: entropy_aware_opd_per_token,
    TopKJSD: top_k_jsd_per_token,
    GatedForwardKL: gated_forward_kl_per_token,
}
DEFAULTS = {
    GeneralizedJSD: {"beta": 0.0},
    TAID: {},
    EntropyAwareOPD: {},
    TopKJSD: {"k": 2, "beta": 0.0},
    GatedForwardKL: {"tau": 0.8, "k": 2},
}
BAD = [
    *((GeneralizedJSD, {"beta": beta}, r"jsd beta must be in \[0, 1\]") for beta in (-0.1, 1.1, math.nan)),
    (GeneralizedJSD, {"scale": "TRL"}, "unknown jsd scale 'TRL': expected 'trl' or 'continuous'"),
    *((GeneralizedJSD, {"token_clip": clip}, "token_clip must be above 0") for clip in (0.0, -1.0, math.nan)),
    *((TAID, {"t": t}, r"TAID's t must be in \[0, 1\]") for t in (-1.0, 2.0, math.nan)),
    *((EntropyAwareOPD, {"h_max": h_max}, "h_max must be above 0") for h_max in (0.0, -2.0, math.nan)),
    (TopKJSD, {"k": 0}, "k of a top-k divergence must be at least 1"),
    (TopKJSD, {"beta": 2.0}, r"jsd beta must be in \[0, 1\]"),
    (TopKJSD, {"support": "teachr"}, "unknown support 'teachr': expected 'student' or 'teacher'"),
    *((GatedForwardKL, {"tau": tau}, "tau must be at least 0") for tau in (-0.1, math.nan)),
    (GatedForwardKL, {"k": 0}, "k of a gated forward KL must be at least 1"),
]


@pytest.mark.parametrize(("form", "bad", "message"), BAD)
def test_a_bad_option_is_refused_by_name_value_and_range(form, bad, message):
    """By the value that is handed to the fused path, and by the plain function."""
    (value,) = bad.values()
    with pytest.raises(ValueError, match=message) as refused:
        form(**DEFAULTS[form] | bad)
    assert "got" not in str(refused.value) or str(refused.value).endswith(f"got {value}")
    with pytest.raises(ValueError, match=message):
        PLAIN[form](torch.zeros(1, 4), torch.zeros(1, 4), **DEFAULTS[form] | bad)


@pytest.mark.parametrize(
    ("bad", "message"),
    [({"tau": -1.0}, "tau must be at least 0"), ({"k": 0}, "must be at least 1"), ({"alpha": -0.5}, "alpha must be at least 0")],
)
def test_bad_options_of_the_gated_form_are_refused(bad, message):
    with pytest.raises(ValueError, match=message):
        EntropyGatedOPD(**bad)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"beta": 2.0}, "jsd beta must be in"),
        ({"token_clip": 0.0}, "token_clip must be"),
        ({"top_k": 0}, "top_k must be at least 1"),
    ],
)
def test_bad_options_of_the_reduced_loss_are_refused(bad, message):
    with pytest.raises(ValueError, match=message):
        generalized_jsd_loss(torch.zeros(1, 4), torch.zeros(1, 4), **bad)


@pytest.mark.parametrize("form", [GeneralizedJSD(1.0), GeneralizedJSD(0.5), TopKJSD(3, 1.0)], ids=str)
def test_a_row_of_weight_0_has_no_influence(form):
    """A teacher without mass where the student has some is infinitely far away."""
    torch.manual_seed(0)
    hidden, weight = torch.randn(3, 4, dtype=torch.float64), torch.randn(7, 4, dtype=torch.float64)
    taught = torch.randn(3, 7, dtype=torch.float64)
    taught[1, 2] = -math.inf
    results = []
    for kept in ([0, 1, 2], [0, 2]):
        leaves = hidden[kept].requires_grad_(), weight.clone().requires_grad_()
        teacher = TeacherRows(taught[kept], Head(torch.eye(7, dtype=torch.float64)))
        weights = torch.tensor([0.5, 0.0, 2.0], dtype=torch.float64)[kept]
        value, per_row = fused_divergence(leaves[0], Head(leaves[1]), [teacher], form, weights)
        of_hidden, of_weight = torch.autograd.grad(value, leaves)
        results.append((value, of_weight, of_hidden[[0, -1]], per_row[[0, -1]]))
        if len(kept) == 3:
            assert of_hidden[1].tolist() == [0.0] * 4
    for with_it, without in zip(*results, strict=True):
        torch.testing.assert_close(with_it, without)


def bucketed(student: list[mpmath.mpf], teacher: list[mpmath.mpf], chosen: list[int], beta: float) -> mpmath.mpf:
    """D_b of the chosen entries and one bucket for the rest, at 60 digits: b KL(t || m) + (1 - b) KL(s || m) at the mean m, and
    the two KLs themselves at the ends (arXiv:2306.13649, equation 1)."""

    def project(logits: list[mpmath.mpf]) -> list[mpmath.mpf]:
        p = [mpmath.exp(z) for z in logits]
        p = [value / sum(p) for value in p]
        return [*(p[i] for i in chosen), sum(value for i, value in enumerate(p) if i not in chosen)]

    def kl(p: list[mpmath.mpf], q: list[mpmath.mpf]) -> mpmath.mpf:
        return sum(a * mpmath.log(a / b) for a, b in zip(p, q, strict=True))

    s, t = project(student), project(teacher)
    if beta in (0.0, 1.0):
        return kl(t, s) if beta == 0.0 else kl(s, t)
    mean = [beta * b + (1 - beta) * a for a, b in zip(s, t, strict=True)]
    return beta * kl(t, mean) + (1 - beta) * kl(s, mean)


@pytest.mark.parametrize("beta", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("support", ["student", "teacher"])
@pytest.mark.parametrize("sure", [0.0, 8.0, 25.0, 60.0])
def test_the_tail_of_a_sure_student_is_exact(sure, support, beta):
    """The student is sure of an entry and the teacher of another outside the support: the tail has next to no mass, and its
    gradient is all that tells the student."""
    torch.manual_seed(3)
    student, teacher = torch.randn(12, dtype=torch.float64), torch.randn(12, dtype=torch.float64)
    student[0] += sure
    teacher[7] += sure / 2
    student[7] -= 4
    chosen = (student if support == "student" else teacher).topk(3).indices.tolist()
    leaf = student.clone().requires_grad_()
    value = top_k_jsd_per_token(leaf, teacher, k=3, beta=beta, support=support)
    value.backward()
    with mpmath.workdps(60):
        t = [mpmath.mpf(v) for v in teacher.tolist()]

        def exact(*z: mpmath.mpf) -> mpmath.mpf:
            return bucketed(list(z), t, chosen, beta)

        at = tuple(mpmath.mpf(v) for v in student.tolist())
        expected = float(exact(*at))
        gradient = [float(mpmath.diff(exact, at, tuple(int(i == j) for j in range(12)))) for i in range(12)]
    assert value.item() == pytest.approx(expected, rel=1e-9)
    torch.testing.assert_close(leaf.grad, torch.tensor(gradient, dtype=torch.float64), rtol=1e-7, atol=1e-12)
