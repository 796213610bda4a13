"""A run as data: frozen models, read from TOML, overridden by dotted keys. Imports no torch."""

from __future__ import annotations

from composer_replication.config.curriculum import CurriculumConfig
from composer_replication.config.diloco import DilocoConfig
from composer_replication.config.env import EnvConfig
from composer_replication.config.fields import FieldLine, field_lines
from composer_replication.config.load import TEACHER, config_from, load_config, load_teachers, resolve_arm, to_toml
from composer_replication.config.loss import (
    EffortConfig,
    HintConfig,
    HintSpan,
    LossConfig,
    PrmRewardConfig,
    ReplayConfig,
    RewardConfig,
    RlvrConfig,
)
from composer_replication.config.model import LoraConfig, ModelConfig
from composer_replication.config.optimizer import OptimizerConfig
from composer_replication.config.pretrain import PretrainConfig
from composer_replication.config.replay import BackendName, GateConfig, GateRule, NormalizeConfig
from composer_replication.config.rollout import RolloutConfig
from composer_replication.config.run import (
    EvalConfig,
    RunConfig,
    SandboxConfig,
    TasksConfig,
    TeacherConfig,
)
from composer_replication.config.section import is_name
from composer_replication.config.sft import SftConfig
from composer_replication.config.substrate import SubstrateConfig, SubstrateType

__all__ = [
    "TEACHER",
    "BackendName",
    "CurriculumConfig",
    "DilocoConfig",
    "EffortConfig",
    "EnvConfig",
    "EvalConfig",
    "FieldLine",
    "GateConfig",
    "GateRule",
    "HintConfig",
    "HintSpan",
    "LoraConfig",
    "LossConfig",
    "ModelConfig",
    "NormalizeConfig",
    "OptimizerConfig",
    "PretrainConfig",
    "PrmRewardConfig",
    "ReplayConfig",
    "RewardConfig",
    "RlvrConfig",
    "RolloutConfig",
    "RunConfig",
    "SandboxConfig",
    "SftConfig",
    "SubstrateConfig",
    "SubstrateType",
    "TasksConfig",
    "TeacherConfig",
    "config_from",
    "field_lines",
    "is_name",
    "load_config",
    "load_teachers",
    "resolve_arm",
    "to_toml",
]
