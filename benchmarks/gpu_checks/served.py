"""A vLLM server that is given the policy's weights after each update."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from pathlib import Path

import torch

from composer_replication.loss.forward.models import save_policy
from composer_replication.rollouts.serving import ServingEngine, SharedFolder, open_server
from composer_replication.rollouts.serving.engine import TOLERANCE
from composer_replication.tokens import byte_level_tokenizer
from composer_replication.trainer.engines.open_engine import ServedPolicy
from composer_replication.trainer.learning.learner import Learner
from gpu_checks import made
from gpu_checks.found import Found, SkippedError
from gpu_checks.sampling import PROMPTS, STOP, distance, like, two_turns

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "tools"))
from vllm_process import WHOLE_PROMPTS, vllm

INTERPRETER = "COMPOSER_TEST_VLLM"
_ON = {
    "cpu": WHOLE_PROMPTS,
    "cuda": ("--dtype", "bfloat16", "--gpu-memory-utilization", "0.4", "--max-model-len", "1024"),
}
"""Options that come last, and so count."""


def check(device: torch.device, folder: Path) -> Found:
    """Start a server, and sample from it before and after two updates."""
    python = _interpreter()
    if python is None:
        raise SkippedError(f"vllm is not installed, is not on the path, and {INTERPRETER} names no interpreter that has it")
    found, size, tokenizer = Found(), made.size_on(device), byte_level_tokenizer()
    config = made.run_config(device, model={"precision": "auto"})
    model = made.make(config, like(size))
    batch = made.batch_for(model, size)
    learner = Learner(model, config)
    save_policy(model, tokenizer, folder / "policy")
    with vllm(python, folder / "policy", folder, *_ON[device.type]) as running:
        engine = ServingEngine(
            open_server("vllm", running.url),
            stop_ids=[STOP],
            probe_ids=PROMPTS[0],
            policy=ServedPolicy(learner.policy, tokenizer, lambda: learner.version, learner),
            transfer=SharedFolder(folder / "weights"),
        )
        for updates in range(3):
            contexts = two_turns(engine, seed=updates)
            apart = [distance(learner, context, sample) for context, sample in contexts]
            found.at_most(f"after {updates} updates: log-probs", max(apart), TOLERANCE)
            found.holds(f"after {updates} updates: the server has this version", engine.policy_version == learner.version)
            learner.update(batch)
            found.holds(f"after {updates} updates: the next one changes log-probs", distance(learner, *contexts[0]) > max(apart))
            engine.reset()
        engine.end()
    return found


def _interpreter() -> str | None:
    """Return an interpreter that has vLLM: the one that is named, this one, or that of the command on the path."""
    if named := os.environ.get(INTERPRETER):
        return named
    if importlib.util.find_spec("vllm") is not None:
        return sys.executable
    command = shutil.which("vllm")
    beside = None if command is None else Path(command).resolve().parent / "python"
    return str(beside) if beside is not None and beside.exists() else None
