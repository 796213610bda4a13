"""Loading the policy, and saving it."""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, Literal, cast

import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError, safe_open
from torch import nn
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils import logging as transformers_logging

from composer_replication.config import ModelConfig, RunConfig
from composer_replication.config.model import Precision
from composer_replication.loss.forward.adapters import (
    ADAPTER_FILE,
    add_adapters,
    base_model_of,
    has_adapters,
    merge_adapters,
    read_adapters,
    save_adapters,
    with_adapters,
)
from composer_replication.loss.forward.modes import compile_blocks, set_compute_dtype, unwrapped
from composer_replication.loss.forward.router_replay import enable_router_replay
from composer_replication.loss.forward.routers import set_router_balance
from composer_replication.types.errors import ConfigError, ModelError

# How a damaged config.json surfaces inside transformers: TypeError and AttributeError (not an object), ZeroDivisionError (no
# key/value heads), StrictDataclassError (a field of another type).
_DATA_ALONE: Mapping[str, Any] = {"trust_remote_code": False, "use_safetensors": True}
"""No pickle and no code of a model's author. Left open, transformers would ask on the terminal whether to run that code."""
_LOAD_ERRORS = (
    OSError,
    ValueError,
    KeyError,
    RuntimeError,
    TypeError,
    ZeroDivisionError,
    AttributeError,
    StrictDataclassError,
    SafetensorError,
)


def resolve_device(name: str) -> torch.device:
    """Return the device a configuration names; `auto` and `cuda` are this process's own of those that a launcher has started.

    Raises ModelError when CUDA is asked for and absent.
    """
    if name == "auto" and not torch.cuda.is_available():
        return torch.device("cpu")
    if name in ("auto", "cuda"):
        name = f"cuda:{os.environ.get('LOCAL_RANK', 0)}"
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise ModelError("model.device is cuda, but torch finds no CUDA device", fix="set model.device to auto or cpu")
    device = torch.device(name)
    if device.index is not None:
        if device.index >= torch.cuda.device_count():
            raise ModelError(f"model.device is {name}, but torch finds {torch.cuda.device_count()} CUDA devices", fix="lower it")
        torch.cuda.set_device(device)  # accelerate puts models on the current device
    return device


def resolve_precision(config: ModelConfig) -> Precision:
    """Return what `model.precision = auto` means on the device that a configuration names. Raises ModelError as
    `resolve_device`."""
    if config.precision != "auto":
        return config.precision
    return "float32" if resolve_device(config.device).type == "cpu" else "mixed"


def resolve_checkpointing(config: RunConfig, model: nn.Module | None = None) -> bool:
    """Return what `optimizer.gradient_checkpointing = auto` means on the run's device, for `model` or for one that can
    checkpoint. Raises ModelError as `resolve_device`."""
    can = model is None or bool(getattr(unwrapped(model), "supports_gradient_checkpointing", False))
    return config.optimizer.checkpoints(on_gpu=can and resolve_device(config.model.device).type == "cuda")


def weights_dtype(config: ModelConfig) -> torch.dtype:
    """Return the type of the policy's weights; its LoRA adapters are float32 all the same."""
    precision = resolve_precision(config)
    in_full = precision == "float32" or (precision == "mixed" and config.lora.rank == 0)
    return torch.float32 if in_full else torch.bfloat16


def load_policy(config: ModelConfig) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Load the causal language model and tokenizer of a folder or a Hugging Face id, ready to be trained as `config` says.

    Raises ModelError as `load_model`, and ConfigError and MissingExtraError as `add_adapters`.
    """
    adapted = (Path(config.path) / ADAPTER_FILE).is_file()
    if adapted and config.lora.rank:
        raise ConfigError(
            f"model.path = {config.path} holds LoRA adapters, and model.lora.rank = {config.lora.rank} asks for others on top: a "
            "checkpoint would not say what those stand on",
            fix=f"write the merged model with `composer weights merge {config.path} FOLDER`, and set model.path to FOLDER",
        )
    source = base_model_of(Path(config.path)) if adapted else config.path
    options = {} if config.attention == "auto" else {"attn_implementation": config.attention}
    model, tokenizer = load_model(
        config.model_copy(update={"path": source}), AutoModelForCausalLM, **options, dtype=weights_dtype(config)
    )
    if adapted:
        model = merge_adapters(model, Path(config.path))
        model.config._name_or_path = config.path  # where TRL loads a reference from
    return _prepared(model, config), tokenizer


def load_to_sample(
    path: str, precision: Precision = "auto", *, device: str = "auto"
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Load a policy that nothing trains: with `auto` in float32 on a CPU, and in bfloat16 on a GPU, in half the memory that
    `load_policy` needs.

    Adapters stay beside what they were trained on, in float32: added to bfloat16 weights, most of what they learned would be
    rounded away. Raises as `load_policy`.
    """
    config = ModelConfig(path=path, precision=precision, device=device)
    if resolve_precision(config) == "float32":
        return load_policy(config)
    config = config.model_copy(update={"precision": "bfloat16"})
    if not (Path(path) / ADAPTER_FILE).is_file():
        return load_policy(config)
    model, tokenizer = load_policy(config.model_copy(update={"path": base_model_of(Path(path))}))
    model = with_adapters(model, Path(path))
    set_compute_dtype(model, torch.bfloat16)
    return model, tokenizer


def make_policy(config: ModelConfig, like: PreTrainedConfig) -> PreTrainedModel:
    """Return a policy of an architecture with random weights, ready to be trained as `config` says. Raises as `load_policy` what
    is not of its files."""
    options = {} if config.attention == "auto" else {"attn_implementation": config.attention}
    like = copy.deepcopy(like)
    like.name_or_path = config.path  # where adapters look for what they stand on
    with _fitting(config.path, device := resolve_device(config.device)), device:
        model = cast(Any, AutoModelForCausalLM).from_config(like, dtype=weights_dtype(config), **options)
    return _prepared(model.eval(), config)


def _prepared(model: PreTrainedModel, config: ModelConfig) -> PreTrainedModel:
    """Give a policy its adapters, the type that it computes in, and compiled blocks."""
    if config.lora.rank:
        model = add_adapters(model, config.lora)
    if resolve_precision(config) != "float32":
        set_compute_dtype(model, torch.bfloat16)
    set_router_balance(model, config.router_balance)
    if config.router_replay:
        enable_router_replay(model)
    if config.compile:
        compile_blocks(model)
    return model


def load_outline(path: str) -> tuple[PreTrainedConfig, int, PreTrainedTokenizerBase]:
    """Load a model's configuration, number of parameters and tokenizer, without its weights.

    The weight files of a folder are checked: all of them are there, and none is cut short. Raises as `load_policy`.
    """
    architecture = load_architecture(path)
    source = base_model_of(Path(path)) if (Path(path) / ADAPTER_FILE).is_file() else path
    tokenizer, _ = load_tokenizer(source)
    with _loading(source):
        _check_weights(Path(source))
        with torch.device("meta"):
            model = cast(Any, AutoModelForCausalLM).from_config(architecture)
    return architecture, int(model.num_parameters()), tokenizer


def _check_weights(folder: Path) -> None:
    """Check that a folder, if it is one, has all of its weight files, and that each is as long as its header says. Raises
    ModelError, and SafetensorError for a file that is cut short."""
    files = sorted(folder.glob("*.safetensors")) if folder.is_dir() else []
    named = [name for index in folder.glob("*.safetensors.index.json") for name in _shards(index)] if folder.is_dir() else []
    missing = sorted({*named} - {path.name for path in files})
    if folder.is_dir() and (missing or not files):
        raise ModelError(
            f"the model cannot be loaded from the folder {folder}: it holds no {missing[0] if missing else 'model.safetensors'}",
            fix="give a folder that the model was written to with save_pretrained, in the format of safetensors",
        )
    for path in files:
        with safe_open(path, "pt"):
            pass


def load_architecture(path: str) -> PreTrainedConfig:
    """Load the configuration of the model of a folder or a Hugging Face id, without its weights. Raises as `load_policy`."""
    source = base_model_of(Path(path)) if (Path(path) / ADAPTER_FILE).is_file() else path
    with _loading(source):
        return cast(PreTrainedConfig, AutoConfig.from_pretrained(source, trust_remote_code=False))


def window_of(config: PreTrainedConfig) -> int:
    """Return the most positions that a model reads; 2**30 where its configuration names no limit."""
    return int(getattr(config.get_text_config(decoder=True), "max_position_embeddings", None) or 1 << 30)


def blocks_of(like: PreTrainedConfig) -> int:
    """Return the number of blocks of an architecture."""
    return int(like.get_text_config().num_hidden_layers)


def with_blocks(like: PreTrainedConfig, count: int) -> PreTrainedConfig:
    """Return an architecture with so many blocks, the first ones."""
    like = copy.deepcopy(like)
    text = like.get_text_config()
    text.num_hidden_layers = count
    if getattr(text, "layer_types", None):
        text.layer_types = text.layer_types[:count]
    return like


def load_model(
    config: ModelConfig, auto: Any, *, dtype: torch.dtype = torch.float32, **options: Any
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Load the model and tokenizer of a folder or a Hugging Face id.

    Args:
        auto: one of transformers' `AutoModelFor...` classes; `options` go to its `from_pretrained`.

    Raises:
        ModelError: it cannot be loaded, or its tokenizer has no chat template or EOS token.
    """
    device = resolve_device(config.device)
    onto = {} if device.type == "cpu" else {"device_map": {"": device}}  # straight to the device: CPU memory may be smaller
    with _fitting(config.path, device), _loading(config.path):
        tokenizer = cast(Any, AutoTokenizer).from_pretrained(config.path, trust_remote_code=False)
        model = auto.from_pretrained(config.path, dtype=dtype, **_DATA_ALONE, **onto, **options)
    return model, _fit_for_chat(tokenizer, config.path)


@contextmanager
def _fitting(path: str, device: torch.device) -> Iterator[None]:
    """Say what to do when a device runs out of memory inside. Raises ModelError."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise ModelError(
            f"{path} does not fit on {device}: {error}",
            fix="set model.lora.rank = 16 or model.precision = bfloat16, free the device, or take a smaller model",
        ) from error


def load_tokenizer(path: str) -> tuple[PreTrainedTokenizerBase, GenerationConfig | None]:
    """Load the tokenizer of a folder or Hugging Face id, and the model's generation settings where it has any. Raises as
    `load_model` does."""
    with _loading(path):
        tokenizer = cast(Any, AutoTokenizer).from_pretrained(path, trust_remote_code=False)
    try:
        return _fit_for_chat(tokenizer, path), GenerationConfig.from_pretrained(path)
    except OSError:  # no generation config
        return tokenizer, None


@contextmanager
def _loading(path: str) -> Iterator[None]:
    """Convert errors of loading from a folder or an id into a clear ModelError."""
    local = Path(path).is_dir()
    if local:
        _refuse_incomplete(Path(path))
    elif path.startswith((".", "/", "~")):
        raise ModelError(f"no such folder: {path}", fix="give a model folder or a Hugging Face model id")
    try:
        with no_progress_bars() if local else nullcontext():  # a download may take long and shows its own
            yield
    except torch.OutOfMemoryError:  # a RuntimeError, and no fault of the folder
        raise
    except _LOAD_ERRORS as error:
        why = " ".join(str(error).split())[:300] or type(error).__name__
        what = f"the folder {path}" if local else f"{path} (there is no such folder, so it was taken for a model id)"
        raise ModelError(
            f"the model cannot be loaded from {what}: {why}",
            fix="give a folder written by save_pretrained, or a Hugging Face model id that can be downloaded",
        ) from error


def _fit_for_chat(tokenizer: Any, path: str) -> Any:
    """Check and return the tokenizer: it has a chat template and an EOS token, and gets a padding token if it has none."""
    if getattr(tokenizer, "chat_template", None) is None:
        raise ModelError(
            f"the tokenizer of {path} has no chat template",
            fix="use an instruction-tuned model, or put a chat_template.jinja with tool calls beside its tokenizer",
        )
    if tokenizer.eos_token_id is None:
        raise ModelError(f"the tokenizer of {path} has no EOS token", fix="set eos_token in its configuration")
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token_id = tokenizer.eos_token_id
    return tokenizer


def _refuse_incomplete(folder: Path) -> None:
    """Reject an incomplete model folder with a clear message; transformers' own is hard to read."""
    for names, what in ((("config.json",), "model"), (("tokenizer.json", "tokenizer_config.json"), "tokenizer")):
        if not any((folder / name).is_file() for name in names):
            raise ModelError(
                f"the model cannot be loaded from the folder {folder}: it holds no {what} (no {' or '.join(names)})",
                fix="give a folder that model and tokenizer were written to with save_pretrained",
            )
    for index in folder.glob("*.safetensors.index.json"):
        away = [name for name in _shards(index) if Path(name).name != name]
        if away:
            raise ModelError(f"{index} names a file in another folder: {away[0]}", fix="give a folder that holds all its weights")


def _shards(index: Path) -> list[str]:
    """Return the files that an index of weights names. Raises ModelError."""
    try:
        return [str(name) for name in json.loads(index.read_bytes())["weight_map"].values()]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ModelError(f"{index} is damaged: {error}", fix="write the model again with save_pretrained") from error


def load_weights(folder: Path, *, like: PreTrainedModel) -> dict[str, torch.Tensor]:
    """Read the weights that `save_policy` wrote, under the names that a model `like` this has in memory: files may use others. Of
    a model with adapters they are the adapters' alone."""
    if has_adapters(like):
        return read_adapters(folder)
    with no_progress_bars():
        return type(like).from_pretrained(folder, dtype=like.dtype).state_dict()


def write_merged(adapters: Path, into: Path, dtype: Literal["float32", "bfloat16"]) -> None:
    """Add LoRA adapters to the model that they were trained on, in float32, and write the whole model in another type.

    Raises:
        ModelError: as `load_policy`.
        OSError: the disk refuses.
    """
    model, tokenizer = load_policy(ModelConfig(path=str(adapters), device="cpu", precision="float32"))
    save_policy(model.bfloat16() if dtype == "bfloat16" else model, tokenizer, into)


def save_policy(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    folder: Path,
    weights: Mapping[str, torch.Tensor] | None = None,
    dtype: torch.dtype | None = None,
) -> None:
    """Write model and tokenizer as `load_policy` and transformers read them. Of a model with adapters only the adapters are
    written.

    Args:
        weights: instead of the model's own, where those are sharded.
        dtype: round the weights to this type, but for adapters.
    """
    with no_progress_bars():
        if has_adapters(model):
            save_adapters(model, folder, weights)
        else:
            found = None if weights is None else dict(weights)
            if dtype not in (None, model.dtype):
                found = _rounded(model.state_dict() if found is None else found, dtype)
            model.save_pretrained(folder, state_dict=found)
    tokenizer.save_pretrained(folder)


def _rounded(weights: Mapping[str, torch.Tensor], dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """Return copies of weights on the CPU, rounded where they are of floats. What several names share, they share."""
    made: dict[tuple[int, torch.Size], torch.Tensor] = {}
    for value in weights.values():
        key = value.data_ptr(), value.shape
        if key not in made:
            made[key] = value.detach().to(dtype if value.is_floating_point() else value.dtype).cpu()
    return {name: made[value.data_ptr(), value.shape] for name, value in weights.items()}


@contextmanager
def no_progress_bars() -> Iterator[None]:
    """Keep transformers' bars out of the terminal that shows ours."""
    shown = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]  # without annotations
    try:
        yield
    finally:
        if shown:
            transformers_logging.enable_progress_bar()  # type: ignore[no-untyped-call]
