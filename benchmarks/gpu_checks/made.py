"""Models, run files and batches that checks share: real architectures with random weights, larger on a GPU."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor
from transformers import PreTrainedConfig, PreTrainedModel, Qwen2Config, Qwen3Config

from composer_replication.config import LoraConfig, ModelConfig, RunConfig
from composer_replication.loss.batch_keys import Batch
from composer_replication.loss.forward import evaluating, sequence_logprobs
from composer_replication.loss.forward.models import make_policy

LOSS: dict[str, Any] = {
    "rlvr": {"objective": "dapo", "epsilon_low": 0.2, "epsilon_high": 0.28},
    "hint": {"weight": 0.7, "beta": 0.5, "self_teacher": "frozen"},
    "replay": {"weight": 0.4, "variant": "dpo", "anchor": 0.5, "dpo_beta": 0.3},
}
"""All three channels."""


@dataclass(frozen=True, slots=True)
class Size:
    """Sizes of a model and of its batch."""

    hidden: int
    layers: int
    vocabulary: int
    rows: int
    tokens: int
    """Of the longest row."""


SIZES = {
    "cuda": Size(hidden=1024, layers=6, vocabulary=65_536, rows=4, tokens=384),
    "cpu": Size(hidden=64, layers=3, vocabulary=1_000, rows=4, tokens=48),
}
"""Small enough for float64 and whole logits in the 24 GB of one card; and for seconds of one core."""


def size_on(device: torch.device) -> Size:
    """Return the sizes for a kind of device."""
    return SIZES[device.type]


def qwen3(size: Size, **options: Any) -> PreTrainedConfig:
    """Return a Qwen3 with a tied head. Weights are drawn wider than usual, so that no distribution is nearly uniform."""
    heads = max(2, size.hidden // 128)
    shape = {
        "hidden_size": size.hidden,
        "intermediate_size": 3 * size.hidden,
        "num_hidden_layers": size.layers,
        "num_attention_heads": heads,
        "num_key_value_heads": heads // 2,
        "head_dim": size.hidden // heads,
        "vocab_size": size.vocabulary,
        "max_position_embeddings": 4096,
        "tie_word_embeddings": True,
        "initializer_range": 1.5 / size.hidden**0.5,
    }
    return Qwen3Config(**{**shape, **options})


def qwen2(size: Size) -> PreTrainedConfig:
    """Return a Qwen2, whose attention has biases, with a head apart from the embeddings."""
    options = qwen3(size, tie_word_embeddings=False).to_dict()
    shape = {name: value for name, value in options.items() if name not in ("model_type", "architectures", "head_dim")}
    return Qwen2Config(**shape)


def run_config(device: torch.device, **sections: Any) -> RunConfig:
    """Return a run file's content. Its learning rate is so high that two updates show, and falls with the width of the model."""
    rate = 0.064 / size_on(device).hidden
    model = {"path": "made", "device": str(device), "precision": "float32", **sections.pop("model", {})}
    optimizer = {"learning_rate": rate, "warmup_steps": 0, "max_grad_norm": 1e6, **sections.pop("optimizer", {})}
    return RunConfig.model_validate({"model": model, "optimizer": optimizer, "loss": LOSS, **sections})


def make(config: RunConfig, like: PreTrainedConfig) -> PreTrainedModel:
    """Return a policy whose weights are the same each time, but for their type."""
    exact = _drawn(config.model.model_copy(update={"precision": "float32", "compile": False, "lora": LoraConfig()}), like)
    policy = _drawn(config.model, like)
    whole = cast(Any, policy).get_base_model() if config.model.lora.rank else policy
    own = {name.replace(".base_layer.", "."): parameter for name, parameter in whole.named_parameters()}
    with torch.no_grad():
        for name, weight in exact.named_parameters():
            own[name].copy_(weight)
    return policy


def _drawn(config: ModelConfig, like: PreTrainedConfig) -> PreTrainedModel:
    torch.manual_seed(0)
    return make_policy(config, like)


def batch_for(model: PreTrainedModel, size: Size) -> Batch:
    """Return a batch with all three channels: rows of different lengths with two turns each, of which some ratios are clipped, a
    hint in half of them, and a pair for each two rows."""
    drawn = torch.Generator().manual_seed(0)
    ids = torch.randint(size.vocabulary, (size.rows, size.tokens), generator=drawn)
    lengths = torch.tensor([size.tokens - row * size.tokens // (2 * size.rows) for row in range(size.rows)])
    position = torch.arange(size.tokens)
    attention = (position < lengths[:, None]).long()
    first, second = size.tokens // 4, size.tokens // 2
    turn = (position >= first) & (position < second - second // 8) | (position >= second)
    weights = (attention * turn).float()
    batch: Batch = {
        "input_ids": ids,
        "attention_mask": attention,
        "response_mask": weights.long(),
        "advantages": weights * torch.randn((size.rows, 1), generator=drawn),
        "rlvr_weights": weights,
        "rlvr_denominator": weights.sum(),
    }
    batch |= _hints(ids[::2], first, second - second // 8, drawn) | _pairs(ids[: size.rows // 2], drawn)
    on = {key: value.to(model.device) for key, value in batch.items()}
    return on | _scores(model, on, drawn)


def _hints(students: Tensor, start: int, end: int, drawn: torch.Generator) -> Batch:
    """Return a hint before the first turn of every second row."""
    count, hint = len(students), 9
    compared = torch.arange(start, end).expand(count, -1)
    inserted = students[:, torch.randperm(students.shape[1], generator=drawn)[:hint]]
    teacher = torch.cat([students[:, :start], inserted, students[:, start:end]], 1)
    return {
        "ctx_teacher_input_ids": teacher,
        "ctx_teacher_attention_mask": torch.ones_like(teacher),
        "student_row": 2 * torch.arange(count),
        "student_response_idx": compared,
        "teacher_response_idx": compared + hint,
        "sdpo_loss_mask": torch.ones(compared.shape),
        "hint_denominator": torch.tensor(float(count)),
    }


def _pairs(prompts: Tensor, drawn: torch.Generator) -> Batch:
    """Return a pair after each prompt, whose answers have different lengths."""
    pairs, prompt = len(prompts), prompts.shape[1] // 2
    batch: Batch = {"dpo_weights": torch.linspace(0.5, 1.0, pairs), "replay_denominator": torch.tensor(float(pairs))}
    for side, answer in (("chosen", prompt // 2), ("rejected", prompt // 3)):
        ids = torch.cat([prompts[:, :prompt], prompts[:, torch.randperm(prompt, generator=drawn)[:answer]]], 1)
        batch |= {
            f"dpo_{side}_input_ids": ids,
            f"dpo_{side}_attention_mask": torch.ones_like(ids),
            f"dpo_{side}_response_mask": (torch.arange(prompt + answer) >= prompt).long().expand(pairs, -1).contiguous(),
        }
    return batch


def _scores(model: PreTrainedModel, batch: Mapping[str, Tensor], drawn: torch.Generator) -> Batch:
    """Return the recorded log-probs, which are up to 0.4 nats from the model's own, and the reference's of the pairs."""
    rows = batch["input_ids"], batch["attention_mask"], batch["response_mask"]
    found: Batch = {}
    with evaluating(model):
        own = sequence_logprobs(model, *rows)
        for side in ("chosen", "rejected"):
            ids, mask, wanted = (batch[f"dpo_{side}_{what}"] for what in ("input_ids", "attention_mask", "response_mask"))
            found[f"dpo_{side}_ref_logprobs"] = sequence_logprobs(model, ids, mask, wanted).sum(-1) + 0.3
    moved = 0.4 * (2.0 * torch.rand(own.shape, generator=drawn) - 1.0).to(own)
    return found | {"old_logprobs": (own + moved) * batch["response_mask"]}


def in_float64(model: PreTrainedModel) -> PreTrainedModel:
    """Return a copy in float64."""
    return copy.deepcopy(model).double()


def gradient(model: torch.nn.Module, loss: Tensor) -> dict[str, Tensor]:
    """Return the gradient of a loss by the names of the trained parameters, and leave none behind."""
    named = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
    found = torch.autograd.grad(loss, [parameter for _, parameter in named], allow_unused=True)
    return {name: torch.zeros_like(p) if g is None else g for (name, p), g in zip(named, found, strict=True)}


def relative_error(found: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> float:
    """Return ||found - expected|| / ||expected|| over all tensors, in float64."""
    off = sum(float((found[name].double() - value.double()).square().sum()) for name, value in expected.items())
    size = sum(float(value.double().square().sum()) for value in expected.values())
    return float((off / size) ** 0.5)
