"""The state all replicas agree on: the parameters as of the last synchronisation and the outer optimizers' momentum.

After `s` rounds it is a pure function of what it was after an earlier round and of what the rounds since have decided. A replica
that joins late, or has fallen behind, gets there by applying those results one after the other.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor

from composer_replication.diloco.fragments import Fragment
from composer_replication.diloco.trees import Tree
from composer_replication.types.errors import CheckpointError

Load: TypeAlias = Callable[[dict[str, Any]], None]
Save: TypeAlias = Callable[[], dict[str, Any]]
_ORIGINALS, _OUTER = "original_parameters", "outer_optimizer"
"""torchft's names in the state of a fragment."""


@dataclass(frozen=True, slots=True)
class RoundKey:
    """Position of a round in the store."""

    fragment: int
    number: int
    """Number of the round within its fragment, from 0."""

    @property
    def name(self) -> str:
        """Name of the fragment."""
        return f"fragment{self.fragment}"


@dataclass(frozen=True, slots=True)
class _FragmentPart:
    fragment: Fragment
    outer: torch.optim.Optimizer
    load: Load
    save: Save


class GlobalState:
    """The global state of a model in fragments, of which round `s` synchronises fragment `s % n`.

    Args:
        fragments: the model's.
        outers: the outer optimizer of each.
        registered: how torchft loads and saves each fragment's state.
    """

    def __init__(
        self, fragments: Sequence[Fragment], outers: Sequence[torch.optim.Optimizer], registered: Sequence[tuple[Load, Save]]
    ) -> None:
        parts = zip(fragments, outers, registered, strict=True)
        self._parts = [_FragmentPart(fragment, outer, load, save) for fragment, outer, (load, save) in parts]

    def place(self, round: int) -> RoundKey:  # noqa: A002 - the term of the field
        """Return which fragment a round synchronises, and how often it was synchronised before."""
        return RoundKey(round % len(self._parts), round // len(self._parts))

    def floors(self, round: int) -> list[RoundKey]:  # noqa: A002
        """Return the first round of each fragment that is not before this round."""
        n = len(self._parts)
        return [RoundKey(fragment, (round - fragment + n - 1) // n) for fragment in range(n)]

    def size_of(self, round: int) -> int:  # noqa: A002
        """Return how many values the round's fragment has."""
        return self._part(round).fragment.size

    def originals(self, round: int) -> Tensor:  # noqa: A002
        """Return the global parameters of the round's fragment, [size] on the CPU."""
        return torch.cat([p.reshape(-1) for p in self._part(round).save()[_ORIGINALS].values()]).cpu()

    def progress(self, round: int) -> Tensor:  # noqa: A002
        """Return the current pseudo-gradient of the round's fragment: global minus local parameters, [size] on the CPU."""
        part = self._part(round)
        originals = part.save()[_ORIGINALS]
        with torch.no_grad():
            found = [originals[name].to(p.device) - p for name, p in part.fragment.named_parameters()]
            return torch.cat([difference.reshape(-1) for difference in found]).cpu()

    def apply(self, round: int, result: Tensor) -> None:  # noqa: A002
        """Take the outer step of a round with its result [size]; the fragment's local parameters become the global ones."""
        part = self._part(round)
        originals, start = part.save()[_ORIGINALS], 0
        with torch.no_grad():
            for name, p in part.fragment.named_parameters():
                p.copy_(originals[name])
                p.grad = result[start : start + p.numel()].view_as(p).to(p.device)
                start += p.numel()
            part.outer.step()
            part.outer.zero_grad()
            part.load({_ORIGINALS: dict(part.fragment.named_parameters()), _OUTER: part.outer.state_dict()})

    def tree(self) -> Tree:
        """Return copies of the whole state."""
        return [part.save() for part in self._parts]

    def load(self, tree: Tree) -> None:
        """Restore what `tree` returned; the local parameters become the global ones.

        Raises:
            CheckpointError: the state is of another model, or of one cut into other fragments.
        """
        try:
            shapes = [{name: p.shape for name, p in saved[_ORIGINALS].items()} for saved in tree]
        except (TypeError, KeyError, AttributeError) as error:
            raise CheckpointError(
                "diloco: this is not a saved global state", fix="restore the state, or start a new job"
            ) from error
        if shapes != [{name: p.shape for name, p in part.fragment.named_parameters()} for part in self._parts]:
            raise CheckpointError(
                "diloco: the saved global state is of another model, or of one cut into other fragments",
                fix="join with the model and the number of fragments that the job began with",
            )
        for part, saved in zip(self._parts, tree, strict=True):
            part.load(saved)
        self.reset_local()

    def reset_local(self) -> None:
        """Set the local parameters to the global ones."""
        with torch.no_grad():
            for part in self._parts:
                originals = part.save()[_ORIGINALS]
                for name, p in part.fragment.named_parameters():
                    p.copy_(originals[name])

    def local(self) -> Tree:
        """Return copies of the local parameters that differ from the global ones."""
        found: list[dict[str, Tensor]] = []
        for part in self._parts:
            originals = part.save()[_ORIGINALS]
            here = {name: p.detach().cpu() for name, p in part.fragment.named_parameters()}
            found.append({name: p.clone() for name, p in here.items() if not torch.equal(p, originals[name].cpu())})
        return found

    def load_local(self, tree: Tree) -> None:
        """Restore what `local` returned, once the global state is that of the same round."""
        self.reset_local()
        with torch.no_grad():
            for part, saved in zip(self._parts, tree, strict=True):
                here = dict(part.fragment.named_parameters())
                for name, p in saved.items():
                    here[name].copy_(p)

    def digest(self) -> str:
        """Return the SHA-256 of the global parameters and the outer momentum, the same wherever the state is the same."""
        sha = hashlib.sha256()
        for part in self._parts:
            saved = part.save()
            momentum = saved[_OUTER]["state"]
            tensors = [*saved[_ORIGINALS].values(), *(momentum[key].get("momentum_buffer") for key in sorted(momentum))]
            for tensor in tensors:
                if tensor is not None:
                    sha.update(memoryview(tensor.detach().cpu().contiguous().view(torch.uint8).numpy()).cast("B"))
        return sha.hexdigest()

    def _part(self, round: int) -> _FragmentPart:  # noqa: A002
        return self._parts[self.place(round).fragment]
