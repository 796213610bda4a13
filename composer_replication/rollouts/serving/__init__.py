"""Sampling from a vLLM or SGLang server over HTTP, and loading the policy's weights into it. Imports no torch."""

from __future__ import annotations

from composer_replication.rollouts.serving.engine import ServingEngine, open_server
from composer_replication.rollouts.serving.http import KEY_VARIABLE, Http
from composer_replication.rollouts.serving.sglang import SglangServer
from composer_replication.rollouts.serving.vllm import VllmServer
from composer_replication.rollouts.serving.weights import PolicySource, SharedFolder, WeightTransfer
from composer_replication.rollouts.serving.wire import Answer, Ask, Facts, Server

__all__ = [
    "KEY_VARIABLE",
    "Answer",
    "Ask",
    "Facts",
    "Http",
    "PolicySource",
    "Server",
    "ServingEngine",
    "SglangServer",
    "SharedFolder",
    "VllmServer",
    "WeightTransfer",
    "open_server",
]
