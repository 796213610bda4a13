"""The three channels of the loss, each a value with gradient and its metrics."""

from __future__ import annotations

from composer_replication.loss.channels.common import Result
from composer_replication.loss.channels.dummy_inputs import with_dummy_inputs
from composer_replication.loss.channels.hint import divergence_form, hint_channel
from composer_replication.loss.channels.replay import replay_channel
from composer_replication.loss.channels.rlvr import TokenStreams, rlvr_channel, token_weights

__all__ = [
    "Result",
    "TokenStreams",
    "divergence_form",
    "hint_channel",
    "replay_channel",
    "rlvr_channel",
    "token_weights",
    "with_dummy_inputs",
]
