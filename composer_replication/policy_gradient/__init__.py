"""The rlvr channel's mathematics: advantages, surrogates, weight streams, log-probs of a causal LM. Knows only torch."""

from __future__ import annotations

from composer_replication.policy_gradient.advantages import (
    AdvantageKind,
    group_advantages,
    has_signal,
    soft_overlong_punishment,
)
from composer_replication.policy_gradient.logprobs import token_logprobs
from composer_replication.policy_gradient.objectives import (
    Objective,
    Surrogate,
    clipped_surrogate,
    kl_k3,
    sequence_weights,
)

__all__ = [
    "AdvantageKind",
    "Objective",
    "Surrogate",
    "clipped_surrogate",
    "group_advantages",
    "has_signal",
    "kl_k3",
    "sequence_weights",
    "soft_overlong_punishment",
    "token_logprobs",
]
