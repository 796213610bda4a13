"""Distillation on the sampled tokens alone, without the rest of the vocabulary.

On a token y drawn from the student, log s(y) - log t(y) is an unbiased estimate of KL(student || teacher), and

    (log s(y) - log t(y)).detach() * log s(y)

has the gradient of the same estimate's expectation: the policy gradient whose advantage is log t(y) - log s(y)
(https://thinkingmachines.ai/blog/on-policy-distillation/; SDPO's sampled-token form, arXiv:2601.20802). It is all that a teacher
behind an interface can serve, and noisier than a divergence over the vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from composer_replication.distillation._numerics import check_within
from composer_replication.distillation.divergence import GatedForwardKL
from composer_replication.distillation.top_k import check_gate


def sampled_token_per_token(student_logprobs: Tensor, teacher_logprobs: Tensor) -> Tensor:
    """Return (log s - log t).detach() * log s of the sampled tokens: [...] and [...] -> [...]. No gradient goes to the teacher;
    the value is not a divergence, only the gradient has a meaning."""
    return (student_logprobs - teacher_logprobs).detach() * student_logprobs


@dataclass(frozen=True, slots=True)
class SampledToken:
    """The reverse KL, estimated on the sampled tokens."""

    name: ClassVar[str] = "sampled_token"


@dataclass(frozen=True, slots=True)
class EntropyGatedOPD:
    """Entropy-aware on-policy distillation as its paper has it: the sampled-token reverse KL everywhere, and the top-k forward KL
    ADDED where the teacher's entropy is at least tau (arXiv:2603.07079)."""

    name: ClassVar[str] = "entropy_gated"

    tau: float = 0.8
    """Entropy threshold in nats."""
    k: int = 16
    alpha: float = 1.0
    """Weight of the added term."""

    def __post_init__(self) -> None:
        check_gate(self.tau, self.k)
        check_within("alpha", self.alpha, 0.0)

    @property
    def gated(self) -> GatedForwardKL:
        """The added term."""
        return GatedForwardKL(self.tau, self.k)
