"""LoRA: with its adapters off the model is the base, bit for bit; merged, it is what it was; nothing else is trained."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from composer_replication.loss.forward import evaluating
from composer_replication.loss.forward.adapters import merge_adapters, save_adapters
from composer_replication.trainer.learning.learner import Learner
from gpu_checks import made
from gpu_checks.found import Found, need
from gpu_checks.precision import two_updates

_RANK = 8
_MOST = {"float32": (1e-5, 1e-4), "mixed": (5e-3, 5e-2)}
"""Of the relative difference of merged weights, and of their logits: `mixed` keeps frozen and merged weights in bfloat16."""


def check(device: torch.device, folder: Path) -> Found:
    """Train adapters for two updates on weights in float32 and in bfloat16."""
    need("peft", "pip install 'composer-replication[peft]'")
    found, size = Found(), made.size_on(device)
    like = made.qwen3(size)
    batch = made.batch_for(made.make(made.run_config(device), like), size)
    ids = batch["input_ids"]
    for precision, (of_weights, of_logits) in _MOST.items():
        options = {"precision": precision, "lora": {"rank": _RANK}}
        config = made.run_config(device, model=options, optimizer={"learning_rate": 1e-2})
        learner = Learner(made.make(config, like), config)
        alone = made.run_config(device, model={"precision": "float32" if precision == "float32" else "bfloat16"})
        base = made.make(alone, like)  # as the adapters' frozen weights are: in bfloat16 where matrices are multiplied in it
        start = {name: weight.clone() for name, weight in base.state_dict().items()}
        two_updates(found, precision, learner, batch)
        assert learner.self_teacher is not None
        (part,) = learner.self_teacher.parts(learner.policy)
        with part.context(), evaluating(part.model):
            off = part.model(input_ids=ids, use_cache=False).logits
        plain = _logits(base, ids)
        found.holds(f"{precision}: with its adapters off it is the base, bit for bit", torch.equal(off, plain))
        trained = _logits(learner.policy, ids)
        found.holds(f"{precision}: with its adapters on it is not", not torch.equal(trained, plain))
        save_adapters(learner.policy, folder / precision, None)
        merged = merge_adapters(base, folder / precision)
        expected = _merged(learner.policy, start, _RANK)
        now = merged.state_dict()
        apart = made.relative_error({name: now[name] for name in expected}, expected)
        found.at_most(f"{precision}: merged weights", apart, of_weights)
        found.at_most(f"{precision}: logits of the merged model", _apart(_logits(merged, ids), trained), of_logits)
    return found


def _logits(model: torch.nn.Module, ids: Tensor) -> Tensor:
    with evaluating(model):
        logits: Tensor = model(input_ids=ids, use_cache=False).logits
    return logits


def _apart(found: Tensor, expected: Tensor) -> float:
    return float((found.double() - expected.double()).norm() / expected.double().norm())


def _merged(policy: torch.nn.Module, base: dict[str, Tensor], rank: int) -> dict[str, Tensor]:
    """Return W + alpha / rank * B A in float64 of every weight that has an adapter."""
    state, found = policy.state_dict(), {}
    for name, a in state.items():
        if ".lora_A." not in name:
            continue
        b = state[name.replace(".lora_A.", ".lora_B.")]
        plain = name.removeprefix("base_model.model.").replace(".lora_A.default", "")
        found[plain] = base[plain].double() + 32.0 / rank * (b.double() @ a.double())
    return found
