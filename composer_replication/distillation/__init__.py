"""The hint and replay channels' mathematics: divergences between a student and a teacher, self-teachers, preference losses.
Knows only torch.

No loss here sends a gradient to the teacher. An all-masked input gives a 0 that is attached to the graph and has zero gradients.
"""

from __future__ import annotations

from composer_replication.distillation.divergence import (
    TAID,
    Divergence,
    EntropyAwareOPD,
    GatedForwardKL,
    GeneralizedJSD,
    TopKJSD,
)
from composer_replication.distillation.dpo import dpo_loss
from composer_replication.distillation.entropy_opd import entropy_aware_opd_loss, entropy_aware_opd_per_token, teacher_entropy
from composer_replication.distillation.fused import fused_divergence
from composer_replication.distillation.fused_gated import fused_entropy_gated
from composer_replication.distillation.jsd import JsdScale, generalized_jsd_loss, generalized_jsd_per_token
from composer_replication.distillation.sampled_token import EntropyGatedOPD, SampledToken, sampled_token_per_token
from composer_replication.distillation.self_teacher import (
    AdapterEMATeacher,
    AdaptersOffTeacher,
    AdapterTrustRegionTeacher,
    EMATeacher,
    FrozenTeacher,
    LiveTeacher,
    SelfTeacher,
    SelfTeacherKind,
    TeacherPart,
    TrustRegionTeacher,
    make_self_teacher,
)
from composer_replication.distillation.simpo import simpo_loss
from composer_replication.distillation.taid import TAIDScheduler, taid_loss, taid_per_token
from composer_replication.distillation.top_k import gated_forward_kl_per_token, top_k_jsd_per_token

__all__ = [
    "TAID",
    "AdapterEMATeacher",
    "AdapterTrustRegionTeacher",
    "AdaptersOffTeacher",
    "Divergence",
    "EMATeacher",
    "EntropyAwareOPD",
    "EntropyGatedOPD",
    "FrozenTeacher",
    "GatedForwardKL",
    "GeneralizedJSD",
    "JsdScale",
    "LiveTeacher",
    "SampledToken",
    "SelfTeacher",
    "SelfTeacherKind",
    "TAIDScheduler",
    "TeacherPart",
    "TopKJSD",
    "TrustRegionTeacher",
    "dpo_loss",
    "entropy_aware_opd_loss",
    "entropy_aware_opd_per_token",
    "fused_divergence",
    "fused_entropy_gated",
    "gated_forward_kl_per_token",
    "generalized_jsd_loss",
    "generalized_jsd_per_token",
    "make_self_teacher",
    "sampled_token_per_token",
    "simpo_loss",
    "taid_loss",
    "taid_per_token",
    "teacher_entropy",
    "top_k_jsd_per_token",
]
