"""LoRA adapters on a policy, by peft. peft is imported only where there are adapters."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import PreTrainedModel

from composer_replication.config import LoraConfig
from composer_replication.loss.forward.modes import unwrapped
from composer_replication.types.errors import CheckpointError, ConfigError, MissingExtraError, ModelError

ADAPTER_FILE = "adapter_model.safetensors"
"""File that `save_adapters` writes; a folder with it holds adapters."""
_BY_PEFT = "name a folder that peft or a run with model.lora.rank wrote"
_ADAPTER = re.compile(r"\.(lora_(?:embedding_)?[AB])(?=\.|$)")
_SEED = 0
"""Seeds the initial adapters, so that every process and replica of a run starts from the same ones."""


def add_adapters(model: PreTrainedModel, lora: LoraConfig) -> Any:
    """Return a peft model that trains adapters of float32 on the frozen `model`.

    Raises:
        ConfigError: none of the model's layers has a name in `lora.targets`.
        MissingExtraError: peft is not installed.
    """
    peft = _peft()
    targets: Any = "all-linear" if lora.targets == ("all-linear",) else list(lora.targets)
    options = peft.LoraConfig(task_type="CAUSAL_LM", r=lora.rank, lora_alpha=lora.alpha, target_modules=targets)
    with torch.random.fork_rng([model.device] if model.device.type == "cuda" else []), _quietly():
        torch.manual_seed(_SEED)
        try:
            adapted = peft.get_peft_model(model, options)
        except ValueError as error:
            raise ConfigError(
                f"model.lora.targets = {list(lora.targets)}: {error}", fix="name linear layers of the model, or leave it out"
            ) from error
    (made,) = adapted.peft_config.values()
    if Path(made.base_model_name_or_path).is_dir():  # what is saved must find it from any folder
        made.base_model_name_or_path = str(Path(made.base_model_name_or_path).absolute())
    return adapted


def has_adapters(model: nn.Module) -> bool:
    """Return whether `model` is a peft model, inside every wrapper."""
    return hasattr(unwrapped(model), "peft_config")


def save_adapters(model: Any, folder: Path, weights: Mapping[str, Tensor] | None) -> None:
    """Write the adapters as peft reads them. There is no config.json: with one, transformers takes a folder for a whole model."""
    state = None if weights is None else dict(weights)
    model.save_pretrained(folder, state_dict=state, save_embedding_layers=False)  # "auto" asks the Hub


def read_adapters(folder: Path) -> dict[str, Tensor]:
    """Return the weights that `save_adapters` wrote, under the names that they have in a peft model."""
    saved = load_file(folder / ADAPTER_FILE)
    return {_ADAPTER.sub(r".\1.default", name): tensor for name, tensor in saved.items()}


def policy_weights(model: nn.Module) -> dict[str, Tensor]:
    """Return a model's weights by name, not copied; of a model with adapters those alone, which are all that is trained."""
    state: dict[str, Tensor] = unwrapped(model).state_dict()
    return {name: tensor for name, tensor in state.items() if _ADAPTER.search(name)} if has_adapters(model) else state


def load_policy_weights(model: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Give a model what `policy_weights` returned of one like it.

    Raises CheckpointError when they are those of other adapters.
    """
    if not has_adapters(model):
        model.load_state_dict(weights)
        return
    own = policy_weights(model).keys()
    if own != weights.keys():
        raise CheckpointError(
            f"the checkpoint has other LoRA adapters than the run: {sorted(own ^ weights.keys())[0]} is in one of the two",
            fix="resume with the model.lora that it was saved with",
        )
    model.load_state_dict(weights, strict=False)


def base_model_of(folder: Path) -> str:
    """Return the path or id of the model that a folder's adapters were trained on. Raises ModelError and MissingExtraError."""
    named = _configuration(folder).base_model_name_or_path
    if not named:
        raise ModelError(f"{folder}/adapter_config.json names no base model", fix=_BY_PEFT)
    return str(named)


def rank_of(folder: Path) -> int:
    """Return the rank of a folder's adapters. Raises ModelError and MissingExtraError."""
    return int(_configuration(folder).r)


def _configuration(folder: Path) -> Any:
    try:
        return _peft().PeftConfig.from_pretrained(str(folder))
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise ModelError(f"the LoRA adapters in {folder} have no readable configuration: {error}", fix=_BY_PEFT) from error


def with_adapters(model: PreTrainedModel, folder: Path) -> Any:
    """Return a peft model of `model` and the adapters of `folder`, in float32, which nothing trains. Raises MissingExtraError."""
    with _quietly():
        return _peft().PeftModel.from_pretrained(model, str(folder), autocast_adapter_dtype=True)


def merge_adapters(model: PreTrainedModel, folder: Path) -> PreTrainedModel:
    """Return `model` with the adapters of `folder` added to its weights. Raises MissingExtraError."""
    with _quietly():
        merged: PreTrainedModel = _peft().PeftModel.from_pretrained(model, str(folder)).merge_and_unload()
    return merged


@contextmanager
def _quietly() -> Iterator[None]:
    """Suppress warnings that peft causes itself: it asks for `is_gradient_checkpointing`, whose name has changed, and prepares
    for adapters on experts that are no linear layers."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"The following (rank|alpha)_pattern keys did not match", RuntimeWarning)
        warnings.filterwarnings("ignore", ".is_gradient_checkpointing. is deprecated", FutureWarning)
        yield


def _peft() -> Any:
    try:
        import peft
    except ImportError as error:
        raise MissingExtraError(
            "LoRA adapters need peft, which is not installed", fix="pip install 'composer-replication[peft]'"
        ) from error
    return peft
