"""Preference pairs worth training on, from replayed traces."""

from __future__ import annotations

from composer_replication.replaysim.normalize import replay_and_normalize_trace, replay_and_normalize_trace_sync
from composer_replication.replaysim.normalizer import DJNormalizer, NormalizeReport
from composer_replication.replaysim.records import NormalizedDPOPair, dj_record_to_normalized, dpo_pair_to_dj_record

__all__ = [
    "DJNormalizer",
    "NormalizeReport",
    "NormalizedDPOPair",
    "dj_record_to_normalized",
    "dpo_pair_to_dj_record",
    "replay_and_normalize_trace",
    "replay_and_normalize_trace_sync",
]
