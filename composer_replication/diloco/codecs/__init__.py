"""How a pseudo-gradient travels: fewer bits, fewer values, and what that leaves behind carried to the next round."""

from __future__ import annotations

from composer_replication.diloco.codecs.choose import CODECS, make_codec
from composer_replication.diloco.codecs.protocol import Codec, VisibleCodec

__all__ = ["CODECS", "Codec", "VisibleCodec", "make_codec"]
