"""One round: contributions go up, the mean comes down, and all replicas decode the same bytes.

With owners (`scatter`): each chunk of the mean is made by one member, from that chunk of every member, and put once; what it left
out it names. Without (`flat`): every replica reads whole contributions, and the first to have read and checked them all writes
the seal; the sum is a function of what the seal names. Either way the outcome is fixed by objects that are created once.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor

from composer_replication.diloco.membership import Present, RoundStore, agree, among, key_of, ranks_of
from composer_replication.diloco.sending import Published, bounds, check_header, checked, gated, most_bytes
from composer_replication.diloco.setting import Setting, Stopwatch
from composer_replication.diloco.wire import (
    Chunk,
    Contribution,
    DamagedError,
    Reduced,
    Seal,
    digest,
    header_length,
    pack,
    reread,
    unpack,
)
from composer_replication.types.errors import RoundError

Range = tuple[str, int, int]
"""Key, first byte and number of bytes."""
DAMAGED, NORM, NOTHING = "damaged", "norm", "nothing"
"""Why a contribution does not count: it cannot be read, it is too large, or its sender had nothing to give."""


@dataclass(slots=True)
class Exchanged:
    """The outcome of a round."""

    seal: Seal
    mean: Tensor
    """(size,) float32, the same bits in every replica."""
    counted: list[bool]
    """By chunk: whether this replica's contribution is in it."""
    refused: dict[int, str] = field(default_factory=dict)
    rounding: list[tuple[int, int, Tensor]] = field(default_factory=list)
    """Chunks of the mean that this replica rounded (begin, end), and what it cut off, in shares of its own contribution."""


def exchange(setting: Setting, place: RoundStore, sent: Published | None, watch: Stopwatch) -> Exchanged:
    """Hold the round.

    Args:
        sent: this replica's contribution; None for one that only follows.

    Raises:
        RoundError: too few replicas came in time, or what fixes the outcome is damaged.
    """
    return _Flat(setting, place, sent, watch).run() if setting.flat else _Scatter(setting, place, sent, watch).run()


def _mean(parts: Iterable[tuple[float, Tensor]], size: int) -> Tensor:
    """Return the weighted mean in the order given, each operation rounded separately: the same bits on every machine."""
    total, mean = 0.0, torch.zeros(size)
    for weight, values in parts:
        mean += values * weight
        total += weight
    return mean / total if total > 0 else mean


class _Flat:
    def __init__(self, setting: Setting, place: RoundStore, sent: Published | None, watch: Stopwatch) -> None:
        self._setting, self._place, self._sent, self._watch = setting, place, sent, watch
        self._read: dict[int, tuple[Contribution, bytes]] = {}
        self._damaged: set[int] = set()

    def run(self) -> Exchanged:
        sealed = agree(self._setting, self._place, self._watch, self._read_and_vote)
        refused = dict(sealed.refused)
        members = [rank for rank in sealed.members if rank not in refused]
        self._watch.until(lambda: self._all_read(members), lambda: self._unread(members))
        size = self._place.size
        parts = ((self._read[rank][0].weight, self._setting.codec.decode(self._read[rank][1], size)) for rank in members)
        return Exchanged(sealed, _mean(parts, size), [self._setting.rank in members], refused)

    def _read_and_vote(self, keys: Collection[str]) -> Present:
        here = ranks_of(keys, self._setting.world_size)
        for rank in here:
            if rank not in self._read and rank not in self._damaged:
                try:
                    self._read[rank] = reread(partial(self._read_whole, rank))
                except DamagedError:
                    self._damaged.add(rank)
                if rank != self._setting.rank:  # its author, who has it in memory, would not notice that it cannot be read
                    vote = "bad" if rank in self._damaged else "good"
                    self._place.store.create(f"v/{rank}/{self._setting.rank}-{vote}", b"")
        own, others = self._setting.rank, set(here) - {self._setting.rank}
        vouched = any(f"v/{own}/{other}-good" in keys for other in others)
        condemned = not vouched and any(f"v/{own}/{other}-bad" in keys for other in others)
        if condemned:
            self._damaged.add(own)
        headers = [header for header, _ in self._read.values()]
        refused = dict.fromkeys(self._damaged, DAMAGED)
        refused |= dict.fromkeys(gated(self._setting, headers), NORM)
        refused |= {header.rank: NOTHING for header in headers if not header.chunks}
        settled = own not in here or not others or vouched or condemned
        return Present(tuple(sorted({*self._read, *self._damaged})), tuple(sorted(refused.items())), settled)

    def _all_read(self, members: Sequence[int]) -> bool | None:
        """Return True once all are here: the seal vouches for them, so reads that fail are repeated."""
        for rank in members:
            if rank not in self._read:
                try:
                    self._read[rank] = self._read_whole(rank)
                except DamagedError:
                    return None
        return True

    def _unread(self, members: Sequence[int]) -> str:
        first = next(rank for rank in members if rank not in self._read)
        return f"{self._place.store.where(key_of(first))}, which others have read and which cannot be read here"

    def _read_whole(self, rank: int) -> tuple[Contribution, bytes]:
        """Return the header and payload of a contribution. Raises DamagedError."""
        if self._sent is not None and rank == self._setting.rank:
            return self._sent.header, b"".join(self._sent.chunks)
        length = header_length(self._setting.world_size)
        found = self._place.store.get_range(key_of(rank), 0, length + most_bytes(self._place.size)) or b""
        header = check_header(self._setting, self._place, rank, found[:length])
        if header.chunks:
            checked(self._setting, found[length:], header.chunks[0], self._place.size)
        return header, found[length:]


class _Scatter:
    def __init__(self, setting: Setting, place: RoundStore, sent: Published | None, watch: Stopwatch) -> None:
        self._setting, self._place, self._sent, self._watch = setting, place, sent, watch
        self._headers: dict[int, Contribution | None] = {}
        self._bounds = bounds(setting, place.size)
        self._members: tuple[int, ...] = ()
        self._mean = torch.zeros(place.size)
        self._made: dict[int, Reduced] = {}
        self._rounding: list[tuple[int, int, Tensor]] = []
        self._ahead: dict[Range, bytes | None] = {}
        """Ranges read before they are requested."""

    def run(self) -> Exchanged:
        sealed = agree(self._setting, self._place, self._watch, self._read_headers)
        members = self._members = sealed.members
        self._headers = {rank: header for rank, header in self._headers.items() if header is not None}  # it may be there by now
        sealed_at = self._watch.passed
        parts = [part for part, (begin, end) in enumerate(self._bounds) if end > begin]
        for part in parts:
            if members[part % len(members)] == self._setting.rank:
                self._publish_chunk(part)

        def gather() -> bool | None:
            keys = set(self._place.store.list("o"))
            missing = [part for part in parts if part not in self._made]
            self._read_ahead(self._stored_range(part) for part in missing if _chunk_key(part) in keys)
            for part in missing:
                if _chunk_key(part) in keys:
                    self._fetch_chunk(part)
                elif self._watch.passed - sealed_at > self._takeover_delay(part, members):
                    self._publish_chunk(part)
            return True if len(self._made) == len(parts) else None

        self._watch.until(gather, lambda: f"chunks {[part for part in parts if part not in self._made]} of the mean")
        own, made = self._setting.rank, self._made
        counted = [part not in made or own in made[part].members for part in range(len(self._bounds))]
        refused = {rank: reason for chunk in made.values() for rank, reason in chunk.refused}
        return Exchanged(sealed, self._mean, counted, refused, self._rounding)

    def _read_headers(self, keys: Collection[str]) -> Present:
        """Return the members present, and read their headers while waiting for others."""
        here = ranks_of(keys, self._setting.world_size)
        self._headers_of(here)
        return Present(tuple(here))

    def _takeover_delay(self, part: int, members: Sequence[int]) -> float:
        """Return the seconds to wait for a chunk: one replica after the other may take over from its owner."""
        owner = part % len(members)
        rank = self._setting.rank
        turn = (members.index(rank) - owner) % len(members) if rank in members else len(members)
        return self._setting.takeover_s * (1 + turn / len(members))

    def _publish_chunk(self, part: int) -> None:
        """Reduce a chunk and put it, or take what another replica has put meanwhile."""
        found, refused = self._read_contributions(part)
        header, payload, values = self._reduce(part, found, refused)
        block = pack(header, header_length(self._setting.world_size))
        if not self._place.store.create(_chunk_key(part), block + payload):
            return self._fetch_chunk(part)
        begin, end = self._bounds[part]
        decoded = self._setting.codec.decode(payload, end - begin)
        self._store_in_mean(part, header, decoded)
        return self._record_rounding(part, found, values - decoded)

    def _record_rounding(self, part: int, found: Mapping[int, tuple[float, Tensor]], cut: Tensor) -> None:
        """Record what this replica rounded off for all, as its own residual."""
        self._rounding.append((*self._bounds[part], cut * self._rounding_factor(found)))

    def _rounding_factor(self, found: Mapping[int, tuple[float, Tensor]]) -> float:
        """Return the factor that makes this replica's contribution count exactly once in the mean."""
        total = math.fsum(weight for weight, _ in found.values())
        own = found[self._setting.rank][0] if self._setting.rank in found else total / max(1, len(found))
        return total / own if own > 0 else 0.0

    def _reduce(
        self, part: int, found: Mapping[int, tuple[float, Tensor]], refused: Mapping[int, str]
    ) -> tuple[Reduced, bytes, Tensor]:
        begin, end = self._bounds[part]
        mean = _mean([found[rank] for rank in sorted(found)], end - begin)
        payload = self._setting.codec.encode(mean)
        header = Reduced(
            run=self._setting.run,
            name=self._place.name,
            round=self._place.round,
            chunk=part,
            codec=self._setting.codec.name,
            size=end - begin,
            by=self._setting.rank,
            members=tuple(sorted(found)),
            refused=tuple(sorted(refused.items())),
            payload=Chunk(len(payload), digest(payload)),
        )
        return header, payload, mean

    def _read_contributions(self, part: int) -> tuple[dict[int, tuple[float, Tensor]], dict[int, str]]:
        """Return weight and values of a chunk by rank, and which ranks do not count and why."""
        headers = self._headers_of(self._members)
        too_large = gated(self._setting, [header for header in headers.values() if header is not None])
        wanted = {
            rank: header for rank, header in headers.items() if header is not None and header.chunks and rank not in too_large
        }
        self._read_ahead(self._range(rank, header, part) for rank, header in wanted.items() if not self._is_own(rank))
        found, refused = {}, {}
        for rank, header in headers.items():
            if header is None:
                refused[rank] = DAMAGED
            elif not header.chunks:
                refused[rank] = NOTHING
            elif rank in too_large:
                refused[rank] = NORM
            else:
                try:
                    found[rank] = header.weight, reread(partial(self._chunk, rank, header, part))
                except DamagedError:
                    refused[rank] = DAMAGED
        return found, refused

    def _headers_of(self, ranks: Iterable[int]) -> dict[int, Contribution | None]:
        """Return headers by rank; None for one that is damaged or missing."""
        ranks = list(ranks)
        self._read_ahead(self._header_range(rank) for rank in ranks if rank not in self._headers and not self._is_own(rank))
        return {rank: self._header(rank) for rank in ranks}

    def _header(self, rank: int) -> Contribution | None:
        if self._sent is not None and self._is_own(rank):
            return self._sent.header
        if rank not in self._headers:
            try:
                read = partial(self._read, self._header_range(rank))
                self._headers[rank] = reread(lambda: check_header(self._setting, self._place, rank, read()))
            except DamagedError:
                self._headers[rank] = None
        return self._headers[rank]

    def _chunk(self, rank: int, header: Contribution, part: int) -> Tensor:
        """Return a chunk of a contribution. Raises DamagedError."""
        begin, end = self._bounds[part]
        if self._sent is not None and self._is_own(rank):
            return self._setting.codec.decode(self._sent.chunks[part], end - begin)
        return checked(self._setting, self._read(self._range(rank, header, part)), header.chunks[part], end - begin)

    def _is_own(self, rank: int) -> bool:
        """Return whether this replica has the contribution in memory and need not read it."""
        return self._sent is not None and rank == self._setting.rank

    def _header_range(self, rank: int) -> Range:
        return key_of(rank), 0, header_length(self._setting.world_size)

    def _range(self, rank: int, header: Contribution, part: int) -> Range:
        start = header_length(self._setting.world_size) + sum(chunk.length for chunk in header.chunks[:part])
        return key_of(rank), start, header.chunks[part].length

    def _stored_range(self, part: int) -> Range:
        begin, end = self._bounds[part]
        return _chunk_key(part), 0, header_length(self._setting.world_size) + most_bytes(end - begin)

    def _read_ahead(self, asked: Iterable[Range]) -> None:
        """Read in one batch the ranges that are requested one by one next."""
        asked = list(asked)
        self._ahead.update(zip(asked, self._place.store.get_many(asked), strict=True))

    def _read(self, asked: Range) -> bytes | None:
        """Return what was read ahead, the first time; then what is in the store."""
        return self._ahead.pop(asked) if asked in self._ahead else self._place.store.get_range(*asked)

    def _fetch_chunk(self, part: int) -> None:
        """Read a chunk that has been put.

        Raises:
            RoundError: it is damaged, and making it again gives other bytes.
        """
        try:
            header, values = reread(partial(self._stored_chunk, part))
        except DamagedError as error:
            header, values = self._rebuild_chunk(part, error)
        self._store_in_mean(part, header, values)
        if self._sent is not None and header.by == self._setting.rank:
            self._record_earlier_rounding(part, header, values)

    def _record_earlier_rounding(self, part: int, header: Reduced, decoded: Tensor) -> None:
        """Record the rounding of a chunk that this replica reduced in an earlier, unfinished attempt at this round."""
        found = self._contributions_in(part, header)
        if found is not None:
            mean = _mean([found[rank] for rank in sorted(found)], decoded.numel())
            self._record_rounding(part, found, mean - decoded)

    def _contributions_in(self, part: int, header: Reduced) -> dict[int, tuple[float, Tensor]] | None:
        """Return the contributions in a chunk of the mean; None where one of them can no longer be read."""
        found, _ = self._read_contributions(part)
        return {rank: found[rank] for rank in header.members} if set(header.members) <= set(found) else None

    def _stored_chunk(self, part: int) -> tuple[Reduced, Tensor]:
        """Return a stored chunk of the mean. Raises DamagedError."""
        header, payload = self._stored_header(part)
        begin, end = self._bounds[part]
        return header, checked(self._setting, payload, header.payload, end - begin)

    def _stored_header(self, part: int) -> tuple[Reduced, bytes]:
        begin, end = self._bounds[part]
        length = header_length(self._setting.world_size)
        found = self._read(self._stored_range(part)) or b""
        header = unpack(Reduced, found[:length])
        mine = (self._setting.run, self._place.name, self._place.round, part, self._setting.codec.name, end - begin)
        if (header.run, header.name, header.round, header.chunk, header.codec, header.size) != mine:
            raise DamagedError("it is that of another round")
        if not among(header.members, self._members) or not among([rank for rank, _ in header.refused], self._members):
            raise DamagedError(f"it names {header.members} of the members {self._members}, and refuses {header.refused}")
        return header, found[length:]

    def _rebuild_chunk(self, part: int, error: DamagedError) -> tuple[Reduced, Tensor]:
        """Reduce a damaged chunk again from the same contributions; accept it if it has the checksum that the header names."""
        begin, end = self._bounds[part]
        try:
            header = reread(partial(self._stored_header, part))[0]
            found = self._contributions_in(part, header)
            if found is not None:
                made, payload, _ = self._reduce(part, found, {})
                if made.payload == header.payload:
                    return header, self._setting.codec.decode(payload, end - begin)
        except DamagedError:
            pass
        raise RoundError(
            f"{self._place.store.where(_chunk_key(part))} is damaged: {error}",
            fix="start all replicas again from their last state, in another folder of the store",
        ) from error

    def _store_in_mean(self, part: int, header: Reduced, values: Tensor) -> None:
        begin, end = self._bounds[part]
        self._mean[begin:end] = values
        self._made[part] = header


def _chunk_key(part: int) -> str:
    """Return the key of a chunk of the mean, within its round."""
    return f"o/{part}"
