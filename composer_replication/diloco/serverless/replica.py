"""A replica's view of itself."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass

from composer_replication.types.errors import ConfigError

_VARIABLE = "COMPOSER_REPLICA"


@dataclass(frozen=True)
class Replica:
    """One of the replicas of a job."""

    rank: int
    """Rank, from 0."""
    world_size: int
    rendezvous_uri: str
    """The object store that they share."""
    job: str

    def environment(self) -> dict[str, str]:
        """Return the environment variable that tells a process which replica it is."""
        return {_VARIABLE: json.dumps(asdict(self))}


def this_replica() -> Replica:
    """Return the replica that this process is, or was started by.

    Raises:
        ConfigError: it is none.
    """
    written = os.environ.get(_VARIABLE)
    if written is None:
        raise ConfigError(
            "this process is not a replica", fix="launch it through an executor of composer_replication.diloco.serverless"
        )
    return Replica(**json.loads(written))
