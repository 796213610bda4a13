"""The rlvr channel's mathematics: advantages, surrogates, weight streams, importance weights, penalties. Knows only torch."""

from __future__ import annotations

from composer_replication.policy_gradient.advantages import (
    AdvantageKind,
    group_advantages,
    has_signal,
    process_advantages,
    soft_overlong_punishment,
)
from composer_replication.policy_gradient.effort import Effort, EffortWeights, concave_penalty, effort_penalty
from composer_replication.policy_gradient.entropy_control import EntropyControl
from composer_replication.policy_gradient.importance import (
    ImportanceKind,
    check_importance,
    importance_weights,
    off_policy_mask,
)
from composer_replication.policy_gradient.kl import KlEstimator, kl_k1_penalty, kl_k3, kl_to_reference
from composer_replication.policy_gradient.logprobs import token_logprobs
from composer_replication.policy_gradient.objectives import Objective, sequence_weights, surrogate_of
from composer_replication.policy_gradient.surrogates import (
    THRESHOLDS,
    Surrogate,
    SurrogateKind,
    clipped_surrogate,
    surrogate,
    thresholds,
)

__all__ = [
    "THRESHOLDS",
    "AdvantageKind",
    "Effort",
    "EffortWeights",
    "EntropyControl",
    "ImportanceKind",
    "KlEstimator",
    "Objective",
    "Surrogate",
    "SurrogateKind",
    "check_importance",
    "clipped_surrogate",
    "concave_penalty",
    "effort_penalty",
    "group_advantages",
    "has_signal",
    "importance_weights",
    "kl_k1_penalty",
    "kl_k3",
    "kl_to_reference",
    "off_policy_mask",
    "process_advantages",
    "sequence_weights",
    "soft_overlong_punishment",
    "surrogate",
    "surrogate_of",
    "thresholds",
    "token_logprobs",
]
