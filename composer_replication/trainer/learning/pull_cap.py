"""A cap on how hard a channel pulls beside the policy gradient."""

from __future__ import annotations

import math
from collections.abc import Mapping

LEAST = 0.1
"""Smallest share of its weight that a capped channel keeps."""
_NEWEST = 0.3
"""Weight of the newest step in the moving average: the gradient of a single batch says little."""


class PullCap:
    """The share of a channel's weight that is applied: what brings its pull down to `most` times the policy gradient's, at least
    `LEAST` and at most 1.

    Pulls are the norms of the channels' gradients on the hidden states before the head (`*/pull`). Their ratio at the whole
    weight is followed as a moving average of its logarithm.
    """

    def __init__(self, channel: str, most: float) -> None:
        self.channel, self.most = channel, most
        self.share = 1.0
        self._log_ratio: float | None = None

    def follow(self, metrics: Mapping[str, float]) -> None:
        """Follow a step; one in which either of the two has no gradient says nothing."""
        pull, policy = metrics.get(f"{self.channel}/pull", 0.0), metrics.get("rlvr/pull", 0.0)
        if pull <= 0.0 or policy <= 0.0:
            return
        newest = math.log(pull / self.share / policy)
        before = newest if self._log_ratio is None else self._log_ratio
        self._log_ratio = before + _NEWEST * (newest - before)
        self.share = min(1.0, max(LEAST, self.most / math.exp(self._log_ratio)))

    def state_dict(self) -> dict[str, float | None]:
        """Return what a resumed run needs."""
        return {"share": self.share, "log_ratio": self._log_ratio}

    def load_state_dict(self, state: Mapping[str, float | None]) -> None:
        """Restore what `state_dict` returned."""
        self.share, self._log_ratio = state["share"] or LEAST, state["log_ratio"]
