"""Resume an arm from its newest checkpoint, or refuse one that was made of something else.

`loss.forward.model_checkpoint` writes and reads the folders.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import torch

from composer_replication.loss.forward.model_checkpoint import latest_checkpoint, read_checkpoint
from composer_replication.types.errors import CheckpointError


def trained_on(fingerprint: Mapping[str, str], pairs: str | None) -> dict[str, Any]:
    """Return the part of a loop's state that `restore` reads: the fingerprint, the digest of the pairs, and the RNG state."""
    return {"fingerprint": dict(fingerprint), "pairs": pairs, "rng": torch.get_rng_state().tolist()}


class Restorable(Protocol):
    """A learner, on one process or several, that goes back to a checkpoint."""

    def restore(self, folder: Path, /) -> None: ...


def restore(folder: Path, learner: Restorable, *, fingerprint: Mapping[str, str], pairs: str | None) -> dict[str, Any] | None:
    """Restore the newest checkpoint, RNG included, and return the loop's state; None when there is no checkpoint.

    Raises:
        CheckpointError: it is damaged, or its policy, tasks or pairs were others. The learner is as it was then.
    """
    saved = latest_checkpoint(folder)
    if saved is None:
        return None
    state = read_checkpoint(saved)
    refuse_others(saved, state, fingerprint=fingerprint, pairs=pairs, store=folder / "pairs.jsonl")
    learner.restore(saved)
    torch.set_rng_state(torch.tensor(state["rng"], dtype=torch.uint8))
    return state


def refuse_others(
    saved: Path, state: Mapping[str, Any], *, fingerprint: Mapping[str, str], pairs: str | None, store: Path
) -> None:
    """Raise CheckpointError when `saved` was made with another fingerprint, or with other pairs than `store` holds now.

    `state` is as `trained_on` returned it.
    """
    for name, digest in fingerprint.items():
        if state["fingerprint"].get(name) != digest:
            raise CheckpointError(
                f"{saved} was made with other {name} than the run file names now",
                fix=f"restore the {name}, or give the new run another name",
            )
    if state["pairs"] != pairs:
        raise CheckpointError(f"{store}: missing or not what was collected", fix="restore it, or give the new run another name")
