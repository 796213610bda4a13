"""The three channels of the loss, each a value with gradient and its metrics."""

from __future__ import annotations

from composer_replication.channels.common import Result
from composer_replication.channels.hint import hint_channel
from composer_replication.channels.replay import DpoVariant, replay_channel
from composer_replication.channels.rlvr import RlvrOptions, rlvr_channel, token_weights
from composer_replication.channels.stand_ins import with_stand_ins

__all__ = [
    "DpoVariant",
    "Result",
    "RlvrOptions",
    "hint_channel",
    "replay_channel",
    "rlvr_channel",
    "token_weights",
    "with_stand_ins",
]
