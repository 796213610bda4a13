"""Codecs of pseudo-gradients: fewer bits, fewer values, and error feedback that carries the rest to the next round."""

from __future__ import annotations

from composer_replication.diloco.codecs.choose import CODECS, make_codec
from composer_replication.diloco.codecs.protocol import Codec, VisibleCodec

__all__ = ["CODECS", "Codec", "VisibleCodec", "make_codec"]
