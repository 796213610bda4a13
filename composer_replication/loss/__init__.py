"""Compose one loss of three channels from a model and a batch.

`compose_loss` is the interface; `build_batch`, `collate`, `without_idle_rows` and `split` make what it reads.
"""

from __future__ import annotations

from composer_replication.loss.batch import build_batch, collate
from composer_replication.loss.batch_keys import Batch
from composer_replication.loss.compose import LossComponents, compose_loss, loss_options
from composer_replication.loss.forward import sequence_logprobs
from composer_replication.loss.micro_batches import split, without_idle_rows

__all__ = [
    "Batch",
    "LossComponents",
    "build_batch",
    "collate",
    "compose_loss",
    "loss_options",
    "sequence_logprobs",
    "split",
    "without_idle_rows",
]
