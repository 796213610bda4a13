"""Weights that other processes fetch from a process's memory: by RDMA, or by Monarch's TCP transport where there is none."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from composer_replication.recipes.mesh.errors import WeightsLostError
from composer_replication.recipes.mesh.processes import Process
from composer_replication.recipes.mesh.protocol import WeightHandle
from composer_replication.recipes.monarch.library import (
    ActorError,
    RDMABuffer,
    RDMATcpFallbackWarning,
    get_rdma_backend,
)
from composer_replication.recipes.monarch.processes import answer, at_home
from composer_replication.types.errors import BackendError

SLOTS = 2
"""The present publication and the one before it."""
ALIGNMENT = 64
_LOOK_S = 1.0
"""Seconds between two checks of a fetch in progress that its publication still exists."""
_READ_S = 24 * 3600
"""Monarch ends a read after a minute unless told otherwise; the looks above end one that has lost its other side."""


class TensorSlot(NamedTuple):
    """The place of a tensor in the bytes of a publication."""

    name: str
    dtype: torch.dtype
    shape: torch.Size
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class WeightLocation:
    """The part of a weight handle that is Monarch's own."""

    host: Any
    """The publisher's actor."""
    process: Process
    slot: int
    stamp: int
    """Which of the slot's publications this is."""
    buffer: Any
    entries: tuple[TensorSlot, ...]


@dataclass(slots=True)
class _Slot:
    """Memory that other processes read, and the number of the publication in it."""

    stamp: int = 0
    flat: Tensor | None = None
    buffer: Any = None


class MonarchPort:
    """The `Port` of an actor in this process; `host` is the actor as other processes reach it.

    Publications take turns in two pieces of memory, so no memory is registered again. A publication that is being overwritten is
    never taken for whole: its stamp is withdrawn before the first byte changes, and a fetch asks for the stamp after the last
    byte has come. Of the ranks of a group only the first one publishes; the handles of the others are empty.
    """

    def __init__(self, host: Any, rank: int) -> None:
        self._host = host
        self._rank = rank
        self._writing = asyncio.Lock()
        self._slots = [_Slot() for _ in range(SLOTS)]
        self._published = 0

    async def publish(self, name: str, version: int, weights: Mapping[str, Tensor]) -> WeightHandle:
        """Publish weights; see `Port.publish`. The weights must not change meanwhile.

        Raises:
            BackendError: Monarch has neither RDMA nor its TCP transport here.
        """
        async with self._writing:
            place = None if self._rank else await at_home(asyncio.to_thread(self._write, weights))
        return WeightHandle(version=version, publisher=name, where=place)

    def holds(self, slot: int, stamp: int) -> bool:
        """Return whether that publication is whole now."""
        return self._slots[slot].stamp == stamp

    async def fetch(self, ticket: WeightHandle) -> dict[str, Tensor]:
        """Fetch weights; see `Port.fetch`."""
        return await at_home(self._fetch(ticket))

    async def _fetch(self, ticket: WeightHandle) -> dict[str, Tensor]:
        place: WeightLocation = ticket.where
        flat = _memory(place.entries)
        reading = asyncio.ensure_future(_awaited(place.buffer.read_into(flat, timeout=_READ_S)))
        try:
            while not reading.done():
                await self._look(ticket)
                await asyncio.wait({reading}, timeout=_LOOK_S)
            failure = reading.exception()
            await self._look(ticket)  # after the last byte
        finally:
            reading.cancel()
        if failure is not None:
            raise BackendError(f"the weights of version {ticket.version} did not arrive: {failure}") from failure
        return {entry.name: _view(flat, entry) for entry in place.entries}

    async def _look(self, ticket: WeightHandle) -> None:
        place: WeightLocation = ticket.where
        try:
            held = await answer(place.process, place.host.holds.call_one(place.slot, place.stamp))
        except (ProcessLookupError, ActorError) as error:
            raise WeightsLostError(
                f"the weights of version {ticket.version} are gone with their publisher, {ticket.publisher}"
            ) from error
        if not held:
            raise WeightsLostError(
                f"the weights of version {ticket.version} are gone: {ticket.publisher} has published others since"
            )

    def _write(self, weights: Mapping[str, Tensor]) -> WeightLocation:
        entries = _entries(weights)
        size = _size(entries)
        number = self._published % SLOTS
        self._published += 1
        slot = self._slots[number]
        slot.stamp = 0  # from here on, a reader is told that it is gone
        if slot.flat is None or slot.flat.numel() != size:
            slot.flat = _memory(entries)
            slot.buffer = _shared(slot.flat)
        for entry in {(entry.start, entry.end): entry for entry in entries}.values():  # tied ones once
            _view(slot.flat, entry).copy_(weights[entry.name].detach())
        slot.stamp = self._published
        return WeightLocation(self._host, Process.this(), number, slot.stamp, slot.buffer, tuple(entries))


async def _awaited(future: Any) -> Any:
    return await future


def _entries(weights: Mapping[str, Tensor]) -> list[TensorSlot]:
    """Return a layout in which tied tensors appear once."""
    entries: list[TensorSlot] = []
    known: dict[tuple[Any, ...], tuple[int, int]] = {}
    end = 0
    for name, tensor in weights.items():
        same = (tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride(), tensor.device)
        if same not in known or tensor.numel() == 0:
            start = -(-end // ALIGNMENT) * ALIGNMENT
            end = start + tensor.numel() * tensor.element_size()
            known[same] = (start, end)
        entries.append(TensorSlot(name, tensor.dtype, tensor.shape, *known[same]))
    return entries


def _size(entries: Sequence[TensorSlot]) -> int:
    return max([ALIGNMENT, *(entry.end for entry in entries)])


def _memory(entries: Sequence[TensorSlot]) -> Tensor:
    return torch.empty(_size(entries), dtype=torch.uint8)


def _view(flat: Tensor, entry: TensorSlot) -> Tensor:
    return flat[entry.start : entry.end].view(entry.dtype).view(entry.shape)


def _shared(flat: Tensor) -> Any:
    if get_rdma_backend() == "none":
        raise BackendError(
            "Monarch has neither RDMA nor its TCP transport for weights here",
            fix="leave rdma_allow_tcp_fallback of monarch.config as it is, which is on",
        )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RDMATcpFallbackWarning)  # `MonarchMesh.transport` says so
        return RDMABuffer(flat)
