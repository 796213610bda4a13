"""New weights from a trainer to its generators, through an object store: whole once, then as what has changed."""

from __future__ import annotations

from composer_replication.weights.publish import PublishedVersion, WeightPublisher
from composer_replication.weights.pull import Pulled, WeightPuller
from composer_replication.weights.relay import Relay, RelayClient

__all__ = ["PublishedVersion", "Pulled", "Relay", "RelayClient", "WeightPublisher", "WeightPuller"]
