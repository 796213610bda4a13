"""Atomic checkpoints: a folder appears whole or not at all, and says by hash what it holds.

    ckpt/ARM/step_00020/
        model.safetensors, config.json, tokenizer...   the model, loadable with from_pretrained; of a model with LoRA
                                                       adapters those alone: adapter_model.safetensors, adapter_config.json
        learner.pt                                     optimizer and what else its learner remembers
        loop.json                                      step, counters, RNG state, fingerprint of the run
        README.md                                      the run's model card, where it has one
        MANIFEST.sha256                                written last

Written beside its place, flushed to disk, then renamed. Only the newest two are kept.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch
from safetensors import SafetensorError
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from composer_replication.loss.forward.models import load_weights, save_policy
from composer_replication.types.errors import CheckpointError, StorageError

KEPT = 2
CARD = "README.md"
"""A model card, written to `ckpt/ARM/` or, for all arms that have none, to `ckpt/`; each checkpoint has a copy."""
_MANIFEST = "MANIFEST.sha256"
_REQUIRED = ("learner.pt", "loop.json")
_OF_THE_MODEL = ("config.json", "adapter_config.json")
_NAME = re.compile(r"step_(\d{5,})")


class Snapshot(NamedTuple):
    """Contents of a checkpoint, as a learner gives them."""

    weights: Mapping[str, torch.Tensor] | None
    """The policy's whole weights where it is sharded (FSDP2); None where the policy itself has all of them."""
    state: Mapping[str, Any]
    """Everything else."""


class Saveable(Protocol):
    """A learner, as far as writing checkpoints needs it: the policy's `Learner` and that of a process reward model."""

    @property
    def policy(self) -> PreTrainedModel: ...

    def snapshot(self) -> Snapshot: ...


class Loadable(Protocol):
    """A learner, as far as reading them needs it."""

    @property
    def policy(self) -> PreTrainedModel: ...

    def load_state_dict(self, state: Mapping[str, Any], weights: Mapping[str, torch.Tensor], /) -> None: ...


def save_checkpoint(
    folder: Path, step: int, learner: Saveable, tokenizer: PreTrainedTokenizerBase, state: Mapping[str, Any]
) -> Path:
    """Write `folder/step_NNNNN`. `state` is the loop's own, plain JSON. Ranks that share a policy's weights out (FSDP2) call it
    at the same time, and the first one writes. Raises StorageError when the disk refuses."""
    target = folder / f"step_{step:05d}"
    partial = folder / f".{target.name}.partial"
    weights, kept = learner.snapshot()
    if weights is not None and torch.distributed.get_rank() > 0:
        return target
    try:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        save_policy(learner.policy, tokenizer, partial, weights)
        _publish(partial, target, dict(kept), {**state, "step": step})
    except (OSError, RuntimeError, SafetensorError) as error:  # how files, torch and safetensors report a full disk
        shutil.rmtree(partial, ignore_errors=True)
        if isinstance(error, RuntimeError) and "inline_container" not in str(error):
            raise  # that is where torch writes archives; it has other troubles too
        raise StorageError(
            f"{target}: the checkpoint could not be written: {error}",
            fix="free disk space and continue with --resume; earlier checkpoints and all metrics are intact",
        ) from error
    return target


def adopt_checkpoint(folder: Path, made: Path, step: int, learner: Mapping[str, Any], state: Mapping[str, Any]) -> Path:
    """`folder/step_NNNNN` out of a folder on the same disk in which another trainer has saved model and optimizer.

    `learner` is what else the learner remembers, `state` the loop's own, plain JSON. Raises StorageError when the disk refuses.
    """
    target = folder / f"step_{step:05d}"
    try:
        _publish(made, target, dict(learner), {**state, "step": step})
    except OSError as error:
        raise StorageError(
            f"{target}: the checkpoint could not be written: {error}", fix="free disk space and continue with --resume"
        ) from error
    return target


def latest_checkpoint(folder: Path) -> Path | None:
    """Return the newest complete checkpoint, or None."""
    found = [p for p in _checkpoints(folder) if (p / _MANIFEST).is_file()]
    return found[-1] if found else None


def read_checkpoint(path: Path) -> dict[str, Any]:
    """Return the loop's state, once every file of the checkpoint has been found as it was saved.

    Raises:
        CheckpointError: a file is missing or does not match its hash.
    """
    fix = f"delete {path} and resume from the checkpoint before it"
    manifest = path / _MANIFEST
    digests = {name: digest for digest, _, name in (line.partition("  ") for line in manifest.read_text().splitlines())}
    for name in _REQUIRED:
        if name not in digests:
            raise CheckpointError(f"{manifest} is damaged: it does not list {name}", fix=fix)
    if not digests.keys() & set(_OF_THE_MODEL):
        raise CheckpointError(f"{manifest} is damaged: it lists none of {', '.join(_OF_THE_MODEL)}", fix=fix)
    for name, digest in digests.items():
        file = path / name
        if not file.is_file() or _digest(file) != digest:
            raise CheckpointError(f"{file}: missing or not what was saved", fix=fix)
    loop: dict[str, Any] = json.loads((path / "loop.json").read_text())
    return loop


def load_checkpoint(path: Path, learner: Loadable) -> None:
    """Restore a learner from a checkpoint that `read_checkpoint` found intact."""
    # each part knows where it belongs; mapped, as several processes of a machine may load it at once
    state = torch.load(path / "learner.pt", map_location="cpu", weights_only=True, mmap=True)
    learner.load_state_dict(state, load_weights(path, like=learner.policy))


def _checkpoints(folder: Path) -> list[Path]:
    """Every checkpoint of an arm, oldest first; folders with other names are somebody else's."""
    found = [(int(match[1]), p) for p in folder.glob("step_*") if (match := _NAME.fullmatch(p.name)) is not None]
    return [path for _, path in sorted(found)]


def _publish(made: Path, target: Path, learner: dict[str, Any], loop: Mapping[str, Any]) -> None:
    """Complete a folder that has the weights, put it in its place, and remove the checkpoints that are too old to keep."""
    torch.save(learner, made / "learner.pt")
    (made / "loop.json").write_text(json.dumps(loop, indent=1))
    cards = [folder / CARD for folder in (target.parent, target.parent.parent) if (folder / CARD).is_file()]
    if cards:
        shutil.copyfile(cards[0], made / CARD)
    _seal(made)
    shutil.rmtree(target, ignore_errors=True)
    made.rename(target)
    _sync(target.parent)
    for old in _checkpoints(target.parent)[:-KEPT]:
        shutil.rmtree(old)


def _seal(folder: Path) -> None:
    """Flush every file to disk and write the manifest last."""
    names = sorted(p for p in folder.iterdir() if p.is_file())
    (folder / _MANIFEST).write_text("".join(f"{_digest(p)}  {p.name}\n" for p in names))
    for path in [*names, folder / _MANIFEST]:
        _sync(path)
    _sync(folder)


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
