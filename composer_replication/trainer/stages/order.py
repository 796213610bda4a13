"""The stages that a run may have before RL, in their order."""

from __future__ import annotations

from composer_replication.trainer.stages.pretrain import PRETRAIN
from composer_replication.trainer.stages.sft import SFT

BEFORE_RL = (PRETRAIN, SFT)
