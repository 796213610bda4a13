"""The hint channel's loss forms, each as a small value object. A bad option raises ValueError when the value is made, so the
paths to the loss need no further checks.

`per_token` is plain and differentiable, on logits [..., V]. `fused.py` forms the same values and gradients from hidden states,
without the logits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol

from torch import Tensor

from composer_replication.distillation.entropy_opd import check_h_max, entropy_aware_opd_per_token
from composer_replication.distillation.jsd import JsdScale, check_jsd, generalized_jsd_per_token, warn_if_weak
from composer_replication.distillation.taid import check_t, taid_per_token
from composer_replication.distillation.top_k import (
    Support,
    check_gate,
    check_top_k,
    gated_forward_kl_per_token,
    top_k_jsd_per_token,
)


class Divergence(Protocol):
    """A loss between a student's and a teacher's distribution over the vocabulary."""

    name: ClassVar[str]
    """Name of its metric."""

    def per_token(self, student: Tensor, teacher: Tensor) -> Tensor:
        """Return the loss [...] of student and teacher logits [..., V]; no gradient goes to the teacher."""
        ...


@dataclass(frozen=True, slots=True)
class GeneralizedJSD:
    """See `jsd.py`; beta 0 is the forward KL(teacher || student) and beta 1 the reverse."""

    name: ClassVar[str] = "jsd"
    beta: float = 0.0
    scale: JsdScale = "trl"
    token_clip: float | None = None
    """Upper limit on every vocabulary entry's term (arXiv:2601.18734)."""

    def __post_init__(self) -> None:
        check_jsd(self.beta, self.scale, self.token_clip)
        warn_if_weak(self.beta, self.scale)

    def per_token(self, student: Tensor, teacher: Tensor) -> Tensor:
        return generalized_jsd_per_token(student, teacher, beta=self.beta, scale=self.scale, token_clip=self.token_clip)


@dataclass(frozen=True, slots=True)
class TAID:
    """See `taid.py`; `t` in [0, 1] moves the target from the student to the teacher."""

    name: ClassVar[str] = "taid"
    t: float

    def __post_init__(self) -> None:
        check_t(self.t)

    def per_token(self, student: Tensor, teacher: Tensor) -> Tensor:
        return taid_per_token(student, teacher, t=self.t)


@dataclass(frozen=True, slots=True)
class EntropyAwareOPD:
    """See `entropy_opd.py`; `h_max` in nats, None means log V."""

    name: ClassVar[str] = "entropy_opd"
    h_max: float | None = None

    def __post_init__(self) -> None:
        check_h_max(self.h_max)

    def per_token(self, student: Tensor, teacher: Tensor) -> Tensor:
        return entropy_aware_opd_per_token(student, teacher, h_max=self.h_max)


@dataclass(frozen=True, slots=True)
class TopKJSD:
    """See `top_k.py`."""

    name: ClassVar[str] = "top_k_jsd"

    k: int
    beta: float = 0.0
    tail: bool = True
    support: Support = "student"

    def __post_init__(self) -> None:
        check_top_k(self.k, self.beta, self.support)

    def per_token(self, student: Tensor, teacher: Tensor) -> Tensor:
        return top_k_jsd_per_token(student, teacher, k=self.k, beta=self.beta, tail=self.tail, support=self.support)


@dataclass(frozen=True, slots=True)
class GatedForwardKL:
    """See `top_k.py`; the paper's tau is 0.8 nats and its k 16."""

    name: ClassVar[str] = "gated_forward_kl"

    tau: float = 0.8
    k: int = 16

    def __post_init__(self) -> None:
        check_gate(self.tau, self.k)

    def per_token(self, student: Tensor, teacher: Tensor) -> Tensor:
        return gated_forward_kl_per_token(student, teacher, tau=self.tau, k=self.k)
