"""AdamW for little device memory: moments in CPU memory, and moments of 8 bits, beside torch's AdamW."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from composer_replication.loss.batch_keys import Batch
from composer_replication.trainer.learning.learner import Learner
from gpu_checks import made
from gpu_checks.found import Found, need, nox
from gpu_checks.precision import two_updates

_OFFLOADED, _OF_8_BITS = 1e-2, 0.1
"""Of the relative difference of how far weights have moved."""


def check_offload(device: torch.device, folder: Path) -> Found:  # noqa: ARG001
    """Compare AdamW in CPU memory: it moves weights as torch's does on the device, and keeps nothing there."""
    found = Found()
    plain, batch = _plain(device)
    for name in ("float32", "bfloat16"):
        learner = _updated(found, name, device, batch, {"offload": True})
        if name == "float32":  # steps of bfloat16 weights are mostly rounding
            found.at_most(f"{name}: moved apart from AdamW", _apart(learner, plain), _OFFLOADED)
        if device.type != "cpu":
            found.at_most(f"{name}: bytes of state on the device", float(_state_bytes(learner, device)), 0.0)
    return found


def check_8bit(device: torch.device, folder: Path) -> Found:  # noqa: ARG001
    """Compare torchao's AdamW, which is compiled at its first step on a GPU."""
    need("torchao", nox("torchao"))
    found = Found()
    plain, batch = _plain(device)
    for name in ("float32", "bfloat16"):
        learner = _updated(found, name, device, batch, {"moments": "8bit"})
        if name == "float32":
            rows = {key: value for key, value in plain.items() if "embed_tokens" in key}
            rest = {key: value for key, value in plain.items() if key not in rows}
            found.at_most(f"{name}: moved apart from AdamW, embeddings aside", _apart(learner, rest), _OF_8_BITS)
            # 256 moments share a scale: those of several tokens, whose gradients differ by orders of magnitude
            found.note(f"{name}: embeddings moved apart from AdamW", _apart(learner, rows))
        weights = sum(parameter.numel() for parameter in learner.policy.parameters())
        found.at_most(f"{name}: bytes of state for each weight", _state_bytes(learner, device) / weights, 3.0)
    return found


def _plain(device: torch.device) -> tuple[Mapping[str, Tensor], Batch]:
    """Return how far two updates of torch's AdamW move weights, and the batch."""
    size, config = made.size_on(device), made.run_config(device)
    model = made.make(config, made.qwen3(size))
    batch = made.batch_for(model, size)
    learner = Learner(model, config)
    for _ in range(2):
        learner.update(batch)
    return _moved(learner), batch


def _updated(found: Found, precision: str, device: torch.device, batch: Batch, optimizer: Mapping[str, Any]) -> Learner:
    """Let a learner take two updates."""
    config = made.run_config(device, model={"precision": precision}, optimizer=dict(optimizer))
    learner = Learner(made.make(config, made.qwen3(made.size_on(device))), config)
    two_updates(found, precision, learner, batch)
    return learner


def _moved(learner: Learner) -> dict[str, Tensor]:
    """Return how far each weight is from where it began: the frozen self-teacher is a copy of the beginning."""
    assert learner.self_teacher is not None
    (part,) = learner.self_teacher.parts(learner.policy)
    start = dict(part.model.named_parameters())
    return {name: weight.detach().float() - start[name].float() for name, weight in learner.policy.named_parameters()}


def _apart(learner: Learner, plain: Mapping[str, Tensor]) -> float:
    return made.relative_error(_moved(learner), plain)


def _state_bytes(learner: Learner, device: torch.device) -> int:
    """Return the bytes that the optimizer's moments take on the device."""
    states = learner.optimizer.state_dict()["state"]
    tensors = [value for value in tree_leaves(states) if isinstance(value, Tensor) and value.device.type == device.type]
    return sum(_size(value) for value in tensors)


def _size(tensor: Tensor) -> int:
    """Return the bytes of a tensor, or of those that one of 8 bits consists of."""
    inner = [name for name in ("codes", "scale") if hasattr(tensor, name)]
    return sum(_size(getattr(tensor, name)) for name in inner) if inner else tensor.untyped_storage().nbytes()
