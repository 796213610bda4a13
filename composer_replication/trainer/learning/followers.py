"""Several processes that train one policy, as torchrun and accelerate's launcher start them.

The first one runs the run: it samples, grades, records and writes. The others hold the same learner, and follow: whatever the
first one's learner does to weights, each does to its own at the same moment.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from datetime import timedelta
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

import torch.distributed as dist
from torch import Tensor

TIMEOUT = timedelta(days=1)
"""Longest wait of one process for another. Followers wait while the first process rolls out a step."""
_P = ParamSpec("_P")
_R = TypeVar("_R")


class HasFollowers(Protocol):
    """An object of which every follower has its own."""

    followers: Followers | None
    sharded: bool


_Owner = TypeVar("_Owner", bound=HasFollowers)


class Followers:
    """The channel from the first process to the others. Every process opens it at the same time, after
    `torch.distributed.init_process_group`."""

    def __init__(self) -> None:
        self._group = dist.new_group(backend="gloo", timeout=TIMEOUT)

    def tell(self, method: str, *args: Any, **kwargs: Any) -> None:
        """Have every follower call a method of its object."""
        dist.broadcast_object_list([(method, _on_cpu(args), _on_cpu(kwargs))], src=0, group=self._group)

    def dismiss(self) -> None:
        """Let the followers' `follow` return."""
        dist.broadcast_object_list([None], src=0, group=self._group)

    def follow(self, own: Any) -> None:
        """Do to `own` what the first process does to its object, until it dismisses this one."""
        while (told := self._heard()) is not None:
            method, args, kwargs = told
            getattr(own, method)(*args, **kwargs)

    def _heard(self) -> tuple[str, tuple[Any, ...], dict[str, Any]] | None:
        heard: list[Any] = [None]
        dist.broadcast_object_list(heard, src=0, group=self._group)
        found: tuple[str, tuple[Any, ...], dict[str, Any]] | None = heard[0]
        return found


def on_all_ranks(method: Callable[Concatenate[_Owner, _P], _R]) -> Callable[Concatenate[_Owner, _P], _R]:
    """Make followers call the decorated method, too. The object that has followers tells them first."""
    return _broadcast(method, lambda _owner: True)


def on_all_ranks_if_sharded(method: Callable[Concatenate[_Owner, _P], _R]) -> Callable[Concatenate[_Owner, _P], _R]:
    """Make followers call the decorated method, too, if the weights that it reads are sharded among all processes."""
    return _broadcast(method, lambda owner: owner.sharded)


def _broadcast(
    method: Callable[Concatenate[_Owner, _P], _R], needed: Callable[[HasFollowers], bool]
) -> Callable[Concatenate[_Owner, _P], _R]:
    @wraps(method)
    def call(self: _Owner, *args: _P.args, **kwargs: _P.kwargs) -> _R:
        followers, self.followers = self.followers, None  # the calls that this one makes, followers make by themselves
        try:
            if followers is not None and needed(self):
                followers.tell(method.__name__, *args, **kwargs)
            return method(self, *args, **kwargs)
        finally:
            self.followers = followers

    return call  # type: ignore[return-value]  # mypy takes the first parameter's name for part of its type


def launched_processes() -> int:
    """Return how many processes a launcher has started together with this one, itself included."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def is_follower() -> bool:
    """Return whether this process follows the first of those that a launcher has started."""
    return launched_processes() > 1 and int(os.environ.get("RANK", "0")) > 0


def leave_process_group() -> None:
    """End this process's part in torch.distributed, if it has one.

    A thread of it that still runs when the interpreter ends can abort the process.
    """
    if dist.is_initialized():
        dist.destroy_process_group()


def _on_cpu(value: Any) -> Any:
    """Return a value whose tensors, in mappings and tuples too, are on the CPU: they are sent as bytes."""
    if isinstance(value, Tensor):
        return value.detach().cpu()
    if isinstance(value, Mapping):
        return {key: _on_cpu(one) for key, one in value.items()}
    return tuple(map(_on_cpu, value)) if isinstance(value, tuple) else value
