"""The three channels of the loss, each a value with gradient and its metrics."""

from __future__ import annotations

from composer_replication.loss.channels.common import Result
from composer_replication.loss.channels.dummy_inputs import with_stand_ins
from composer_replication.loss.channels.hint import hint_channel
from composer_replication.loss.channels.replay import DpoVariant, replay_channel
from composer_replication.loss.channels.rlvr import RlvrOptions, rlvr_channel, token_weights

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
