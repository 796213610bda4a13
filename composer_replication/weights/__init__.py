"""New weights from a trainer to its generators, through an object store: whole once, then as what has changed."""

from __future__ import annotations

from composer_replication.weights.publish import PublishedVersion, WeightPublisher
from composer_replication.weights.pull import Pulled, WeightPuller

__all__ = ["PublishedVersion", "Pulled", "WeightPublisher", "WeightPuller"]
