"""The channels of the loss, by name."""

from __future__ import annotations

CHANNELS = ("rlvr", "hint", "replay")


def switched_off(channel: str) -> str:
    """Return the reason why a channel is off whose weight the run file sets to 0."""
    return f"loss.{channel}.weight is 0"
