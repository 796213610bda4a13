"""The agent's environment: the coding environment, its tools, and the scripts that prove a task sound."""

from __future__ import annotations

from composer_replication.envs.coding import CodingEnv, TestCache
from composer_replication.envs.oracle import noop_script, oracle_script
from composer_replication.envs.source import AnyTask, EnvSource, EnvTask
from composer_replication.envs.tools import CODING_TOOLS
from composer_replication.envs.workspace import Workspace
from composer_replication.rollouts.protocol import ClosableEnv, Env, TextEnv, TurnEnv

__all__ = [
    "CODING_TOOLS",
    "AnyTask",
    "ClosableEnv",
    "CodingEnv",
    "Env",
    "EnvSource",
    "EnvTask",
    "TestCache",
    "TextEnv",
    "TurnEnv",
    "Workspace",
    "noop_script",
    "oracle_script",
]
