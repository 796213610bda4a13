"""Membership of a round: the first replica to write the seal decides, and the others read it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from composer_replication.diloco.setting import Setting, Stopwatch
from composer_replication.diloco.store import Store
from composer_replication.diloco.wire import DamagedError, Seal, pack, reread, unpack
from composer_replication.types.errors import ConfigError, RoundError

SEAL = "seal"
_MANY = 16
"""Polls after which it is likely that no other replica will come to this round."""


@dataclass(frozen=True, slots=True)
class RoundStore:
    """A round of one fragment: where its objects are."""

    store: Store
    name: str
    round: int
    size: int
    before: Store | None
    """Store of the same fragment's previous round."""
    check: Callable[[], None]
    """Raises RoundExpiredError once the round may have been removed."""


@dataclass(frozen=True, slots=True)
class Present:
    """The replicas that have come so far."""

    members: tuple[int, ...]
    refused: tuple[tuple[int, str], ...] = ()
    settled: bool = True
    """False: it is worth waiting, up to the deadline, for what others say of this replica's own contribution."""


def ranks_of(keys: Collection[str], world_size: int) -> list[int]:
    """Return the ranks whose contributions are among the keys of a round; other objects there are ignored."""
    there = set(keys)
    return [rank for rank in range(world_size) if key_of(rank) in there]


def among(found: Sequence[int], whole: Collection[int]) -> bool:
    """Return whether these are some of those, ascending and each once."""
    return list(found) == sorted(set(found) & set(whole))


def key_of(rank: int) -> str:
    """Return the key of a contribution, within its round."""
    return f"p/{rank}"


def agree(setting: Setting, place: RoundStore, watch: Stopwatch, look: Callable[[Collection[str]], Present]) -> Seal:
    """Return the seal of the round, writing it if there is none yet.

    Args:
        look: says who is present, given the keys of the round.

    Raises:
        RoundError: too few came, or the seal is damaged.
        RoundExpiredError: the others have left this round long behind.
        ConfigError: the others hold this round over a model of another size, or with another codec or run.
    """
    present, looks = Present(()), 0

    def step() -> Seal | None:
        nonlocal present, looks
        looks += 1
        if looks >= _MANY and looks & (looks - 1) == 0:  # seldom: it costs a request
            place.check()
        keys = place.store.list()
        if SEAL in keys:
            return _read(setting, place)
        present = look(keys)
        if not _complete(setting, place, watch.passed, present):
            return None
        sealed = Seal(
            run=setting.run,
            name=place.name,
            round=place.round,
            codec=setting.codec.name,
            size=place.size,
            by=setting.rank,
            members=present.members,
            refused=present.refused,
        )
        return sealed if place.store.create(SEAL, pack(sealed)) else _read(setting, place)

    def missing() -> str:
        here = {*present.members, *(rank for rank, _ in present.refused)}
        ranks = ", ".join(str(rank) for rank in range(setting.world_size) if rank not in here)
        return f"rank {ranks} in round {place.round} of {place.name!r}: {len(here)} came, and the quorum is {setting.quorum}"

    return watch.until(step, missing)


def _complete(setting: Setting, place: RoundStore, passed: float, present: Present) -> bool:
    here = {*present.members, *(rank for rank, _ in present.refused)}
    if len(here) < setting.quorum:
        return False
    return passed >= setting.deadline_s or (present.settled and (len(here) == setting.world_size or _gone(setting, place, here)))


def _gone(setting: Setting, place: RoundStore, here: Collection[int]) -> bool:
    """Return whether the missing replicas sent nothing in the previous round either, not even too late."""
    if place.before is None:
        return False
    keys = place.before.list()
    return SEAL in keys and not set(ranks_of(keys, setting.world_size)) - set(here)


def _read(setting: Setting, place: RoundStore) -> Seal:
    sealed = _whole(setting, place)
    mine = (setting.run, place.name, place.round, setting.codec.name, place.size)
    theirs = (sealed.run, sealed.name, sealed.round, sealed.codec, sealed.size)
    names = ("run", "name", "round", "codec", "size")
    for what, here, there in zip(names, mine, theirs, strict=True):
        if here != there:
            raise ConfigError(
                f"round {place.round} of {place.name!r}: {what} is {there} at rank {sealed.by}, {here} at rank {setting.rank}",
                fix="give every replica the same run file and the same model, and every run a separate folder",
            )
    return sealed


def _whole(setting: Setting, place: RoundStore) -> Seal:
    def read() -> Seal:
        sealed = unpack(Seal, place.store.get(SEAL))
        refused = [rank for rank, _ in sealed.refused]
        if not sealed.members or not among(sealed.members, range(setting.world_size)) or not among(refused, sealed.members):
            raise DamagedError(f"it names the members {sealed.members} of {setting.world_size} replicas, and refuses {refused}")
        return sealed

    try:
        return reread(read)
    except DamagedError as error:
        raise RoundError(
            f"{place.store.where(SEAL)} is damaged: {error}",
            fix="start all replicas again from their last state, in another folder of the store",
        ) from error
