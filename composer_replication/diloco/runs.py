"""What a folder of the store belongs to, and which of its rounds are still there."""

from __future__ import annotations

import json
from collections.abc import Mapping

from composer_replication.diloco.store import Store
from composer_replication.errors import ConfigError, ObjectStoreError, RoundExpiredError

__all__ = ["check_floor", "claim", "collect", "newest_round", "round_key"]

_RUN = "run.json"


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
        theirs = json.loads(found or b"")
    except ValueError as error:
        raise ObjectStoreError(f"{store.where(_RUN)} is damaged", fix="remove the folder, or name another one") from error
    differing = [key for key in facts if theirs.get(key) != facts[key]]
    if differing:
        said = "; ".join(f"{key} is {theirs.get(key)!r} there and {facts[key]!r} here" for key in differing)
        raise ConfigError(f"{store.uri} belongs to another run: {said}", fix="name a folder of its own for each run")


def round_key(name: str, number: int) -> str:
    """The folder of a round."""
    return f"rounds/{name}/{number:08d}"


def newest_round(store: Store, name: str) -> int | None:
    """The newest sealed round of a fragment; None where there is none."""
    sealed = [key for key in store.list(f"rounds/{name}") if key.endswith("/seal")]
    return max((int(key.split("/")[2]) for key in sealed), default=None)


def check_floor(store: Store, name: str, number: int) -> None:
    """Make sure that no object of a round had been removed when it was read.

    The floor is raised before anything is removed. What was read while it was not yet above the round was therefore the round's
    own, and not something that a straggler put into an emptied folder.

    Raises:
        RoundExpiredError: the floor is above the round.
    """
    floor = _floor(store, name)
    if number < floor:
        raise RoundExpiredError(
            f"round {number} of {name!r} has been removed: the others are at round {floor} or later",
            fix="load the newest state from the store and go on from there",
        )


def collect(store: Store, name: str, floor: int) -> None:
    """Remove the rounds of a fragment below `floor`. Safe in any number of replicas at once, and at any time."""
    floors = store.list(f"floors/{name}")
    marker = f"floors/{name}/{floor:08d}"
    if marker not in floors:
        store.create(marker, b"")
    store.delete(*(key for key in floors if key < marker))
    store.delete(*(key for key in store.list(f"rounds/{name}") if int(key.split("/")[2]) < floor))


def _floor(store: Store, name: str) -> int:
    return max((int(key.rsplit("/", 1)[1]) for key in store.list(f"floors/{name}")), default=0)
