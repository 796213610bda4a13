"""The run that a folder of the store belongs to, and the rounds still in it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import TypeAdapter

from composer_replication.diloco.store import Store
from composer_replication.diloco.wire import DamagedError, parsed
from composer_replication.types.errors import ConfigError, ObjectStoreError, RoundExpiredError

_RUN = "run.json"
_FACTS: TypeAdapter[dict[str, Any]] = TypeAdapter(dict[str, Any])
_ROUND = re.compile(r"rounds/[^/]+/([0-9]{8,18})/.+")
_FLOOR = re.compile(r"floors/[^/]+/([0-9]{8,18})")


def claim(store: Store, facts: Mapping[str, object]) -> None:
    """Write down what run this folder is of; every later replica compares.

    Raises:
        ConfigError: it is another run's.
        ObjectStoreError: what is there cannot be read.
    """
    text = json.dumps(dict(facts), sort_keys=True, indent=1).encode()
    if store.create(_RUN, text):
        return
    found = store.get(_RUN)
    try:
        theirs = parsed(_FACTS, found or b"")
    except DamagedError as error:
        raise ObjectStoreError(
            f"{store.where(_RUN)} is damaged: {error}", fix="remove the folder, or name another one"
        ) from error
    differing = [key for key in facts if theirs.get(key) != facts[key]]
    if differing:
        said = "; ".join(f"{key} is {theirs.get(key)!r} there and {facts[key]!r} here" for key in differing)
        raise ConfigError(f"{store.uri} belongs to another run: {said}", fix="name a separate folder for each run")


def round_key(name: str, number: int) -> str:
    """Return the folder of a round."""
    return f"rounds/{name}/{number:08d}"


def newest_round(store: Store, name: str) -> int | None:
    """Return the newest sealed round of a fragment; None where there is none."""
    there = _numbered(_ROUND, store.list(f"rounds/{name}"))
    return max((number for key, number in there.items() if key == f"{round_key(name, number)}/seal"), default=None)


def check_floor(store: Store, name: str, number: int) -> None:
    """Make sure that no object of a round had been removed when it was read.

    The floor is raised before anything is removed. What was read while it was not yet above the round was therefore the round's
    own, and not something that a straggler put into an emptied folder.

    Raises:
        RoundExpiredError: the floor is above the round.
    """
    floor = max(_numbered(_FLOOR, store.list(f"floors/{name}")).values(), default=0)
    if number < floor:
        raise RoundExpiredError(
            f"round {number} of {name!r} has been removed: the others are at round {floor} or later",
            fix="load the newest state from the store and go on from there",
        )


def collect(store: Store, name: str, floor: int) -> None:
    """Remove the rounds of a fragment below `floor`. Safe in any number of replicas at once, and at any time."""
    floors = _numbered(_FLOOR, store.list(f"floors/{name}"))
    if floor not in floors.values():
        store.create(f"floors/{name}/{floor:08d}", b"")
    rounds = _numbered(_ROUND, store.list(f"rounds/{name}"))
    for there in (floors, rounds):
        store.delete(*(key for key, number in there.items() if number < floor))


def _numbered(ours: re.Pattern[str], keys: Iterable[str]) -> dict[str, int]:
    """Return the round of each key; unknown objects are ignored."""
    return {key: int(found[1]) for key in keys if (found := ours.fullmatch(key)) is not None}
