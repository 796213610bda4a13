"""Sampling from a vLLM or SGLang server over HTTP, and loading the policy's weights into it. Imports no torch."""

from composer_replication.rollouts.serving.engine import ServingEngine, open_server
from composer_replication.rollouts.serving.http import KEY_VARIABLE
from composer_replication.rollouts.serving.prompt_scorer import PromptScorer
from composer_replication.rollouts.serving.started import StartedVllm, VllmOptions, require_vllm, visible_gpus
from composer_replication.rollouts.serving.weights import SharedFolder, WeightTransfer

__all__ = [
    "KEY_VARIABLE",
    "PromptScorer",
    "ServingEngine",
    "SharedFolder",
    "StartedVllm",
    "VllmOptions",
    "WeightTransfer",
    "open_server",
    "require_vllm",
    "visible_gpus",
]
