"""A process reward model: token classification with two labels, read at the last token of each step.

Any Hugging Face model that has a token classification head will do, as long as it is causal: a step's score then depends on what
came before it alone, and scoring a finished trace gives the scores that its beginnings would have got.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoModelForTokenClassification, PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from composer_replication.loss.forward import evaluating
from composer_replication.loss.forward.models import load_model
from composer_replication.prm.data import IGNORED, Example, Limit
from composer_replication.prm.options import model_config
from composer_replication.types.errors import ModelError

_LOADER = logging.getLogger("transformers.modeling_utils")
_LABELS = {0: "bad step", 1: "good step"}
_HEAD: dict[str, Any] = {"num_labels": 2, "id2label": _LABELS, "label2id": {name: i for i, name in _LABELS.items()}}


def make_prm(config: PreTrainedConfig, *, seed: int = 0) -> PreTrainedModel:
    """Make an untrained process reward model of an architecture.

    Raises:
        ModelError: the architecture has no token classification head, or is not causal.
    """
    for name, value in _HEAD.items():
        setattr(config, name, value)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        try:
            model = cast(Any, AutoModelForTokenClassification).from_config(config)
        except ValueError as error:
            raise ModelError(
                f"{type(config).__name__} has no token classification head: {' '.join(str(error).split())[:200]}",
                fix="take a model that transformers has one for",
            ) from error
    return _causal(model.eval(), type(config).__name__)


def start_prm(path: str, *, device: str = "auto", seed: int = 0) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Load a pretrained model with a new head, or a process reward model to train on; with its tokenizer.

    Raises:
        ConfigError: `device` is none.
        ModelError: it cannot be loaded, has no token classification head, is not causal, or has no chat template.
    """
    with torch.random.fork_rng():
        torch.manual_seed(seed)  # of the head
        model, tokenizer = load_model(model_config(path, device), _NewHead, **_HEAD)
    return _causal(model, path), _without_length_warning(tokenizer)


def load_prm(path: str, *, device: str = "auto") -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Load a trained process reward model and its tokenizer.

    Raises:
        ConfigError, ModelError: as `start_prm`, or it is not one that `composer prm train` wrote, so its head would say nothing.
    """
    model, tokenizer = load_model(model_config(path, device), AutoModelForTokenClassification)
    if model.config.id2label != _LABELS:
        raise ModelError(f"{path} is not a process reward model", fix="name the folder `model` that `composer prm train` wrote")
    return _causal(model, path), _without_length_warning(tokenizer)


class _NewHead:
    """`AutoModelForTokenClassification` without transformers' report, where that only says that the head is new."""

    @staticmethod
    def from_pretrained(path: str, **options: Any) -> PreTrainedModel:
        reports: list[logging.LogRecord] = []

        def hold(record: logging.LogRecord) -> bool:
            held = "LOAD REPORT" in record.getMessage()
            reports.extend([record] if held else [])
            return not held

        _LOADER.addFilter(hold)
        try:
            model, found = cast(Any, AutoModelForTokenClassification).from_pretrained(path, output_loading_info=True, **options)
            body = f"{model.base_model_prefix}."
            if not any(key.startswith(body) for key in (*found["missing_keys"], *found["unexpected_keys"])):
                reports.clear()
        finally:
            _LOADER.removeFilter(hold)
            for report in reports:
                _LOADER.handle(report)
        return cast(PreTrainedModel, model)


def _without_length_warning(tokenizer: PreTrainedTokenizerBase) -> PreTrainedTokenizerBase:
    """Return the tokenizer without its warning about long traces: such steps are left out and counted."""
    tokenizer.deprecation_warnings["sequence-length-is-longer-than-the-specified-maximum"] = True
    return tokenizer


def _causal(model: PreTrainedModel, name: str) -> PreTrainedModel:
    """Return the model if what follows a token does not change its score. Raises ModelError otherwise."""
    first = torch.tensor([[1, 2, 3, 4], [1, 2, 3, 5]], device=model.device) % model.config.get_text_config().vocab_size
    with evaluating(model):
        one, other = model(input_ids=first, use_cache=False).logits[:, :3]
    if not torch.allclose(one, other, atol=1e-5):
        raise ModelError(f"{name} is not causal: the score of a step would depend on what follows it", fix="take a causal model")
    return model


def limit_of(model: PreTrainedModel, max_tokens: int) -> Limit:
    """Return `max_tokens`, or the positions the model has where these are fewer."""
    window = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    return Limit(max_tokens, "max_tokens") if window is None or window >= max_tokens else Limit(window, "the model's limit")


def pad(examples: Sequence[Example], pad_id: int) -> dict[str, Tensor]:
    """Pad examples into one batch: `input_ids` and `attention_mask` int64 [B, T], `labels` float32 [B, T], all padded on the
    right."""
    ids = pad_sequence([torch.tensor(e.input_ids) for e in examples], batch_first=True, padding_value=pad_id)
    labels = pad_sequence([torch.tensor(e.labels()) for e in examples], batch_first=True, padding_value=IGNORED)
    lengths = torch.tensor([[len(e.input_ids)] for e in examples])
    return {"input_ids": ids, "attention_mask": (torch.arange(ids.shape[1]) < lengths).long(), "labels": labels}


def step_logits(model: nn.Module, batch: dict[str, Tensor], positions: Tensor) -> Tensor:
    """Return log-odds that a step is good [n], at `positions` bool [B, T]."""
    device = next(model.parameters()).device
    ids, mask = batch["input_ids"].to(device), batch["attention_mask"].to(device)
    logits: Tensor = model(input_ids=ids, attention_mask=mask, use_cache=False).logits.float()[positions.to(device)]
    return logits[:, 1] - logits[:, 0]


def parts(examples: Sequence[Example], tokens: int) -> Iterator[list[int]]:
    """Yield indices of examples of similar length, each part at most `tokens` tokens with its padding, or one example."""
    part: list[int] = []
    for index in sorted(range(len(examples)), key=lambda i: (len(examples[i].input_ids), i)):
        if part and (len(part) + 1) * len(examples[index].input_ids) > tokens:
            yield part
            part = []
        part.append(index)
    if part:
        yield part


def score(
    model: PreTrainedModel,
    examples: Sequence[Example],
    *,
    pad_id: int,
    tokens: int = 16_384,
    on_done: Callable[[int], None] | None = None,
) -> list[list[float]]:
    """Return the probability that each step is good: one list per example, in the order of its steps, labelled or not.

    Args:
        tokens: most tokens of one forward pass, padding counted.
        on_done: told how many more examples have their scores.
    """
    found: list[list[float]] = [[] for _ in examples]
    with evaluating(model):
        for part in parts(examples, tokens):
            some = [examples[i] for i in part]
            batch = pad(some, pad_id)
            wanted = torch.zeros_like(batch["input_ids"], dtype=torch.bool)
            for row, example in enumerate(some):
                wanted[row, [step.end for step in example.steps]] = True
            values = iter(step_logits(model, batch, wanted).sigmoid().tolist())
            for index, example in zip(part, some, strict=True):
                found[index] = [next(values) for _ in example.steps]
            if on_done is not None:
                on_done(len(part))
    return found


def score_by_turn(
    model: PreTrainedModel, examples: Sequence[Example], *, pad_id: int, on_done: Callable[[int], None] | None = None
) -> dict[tuple[str, int], float]:
    """Return the probability that each step is good, by trajectory id and turn; see `score`."""
    scores = score(model, examples, pad_id=pad_id, on_done=on_done)
    return {
        (example.trajectory_id, step.turn): p
        for example, row in zip(examples, scores, strict=True)
        for step, p in zip(example.steps, row, strict=True)
    }
