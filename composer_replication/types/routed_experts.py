"""The experts of a mixture that tokens went through when they were read."""

from __future__ import annotations

import base64
import binascii
import zlib
from dataclasses import dataclass
from typing import Self

UNKNOWN = -1
"""In the place of an expert: the router chooses."""
_BYTES = 2


@dataclass(frozen=True, slots=True)
class RawExperts:
    """Experts by token, layer and rank, as a rollout hands them on from turn to turn."""

    data: bytes
    """Little-endian int16 in a row."""
    shape: tuple[int, int, int]
    """As in `RoutedExperts`."""

    def written(self) -> RoutedExperts:
        """Return them as a trajectory keeps them."""
        return RoutedExperts.of(self.data, self.shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutedExperts:
    """Experts by token, layer and rank: int16 in a row, as one text."""

    shape: tuple[int, int, int]
    """Tokens, layers that route, and experts that a token goes through in each."""
    data: str
    """Base64 of zlib of little-endian int16, `UNKNOWN` where nothing is known of a token."""

    @classmethod
    def of(cls, raw: bytes, shape: tuple[int, int, int]) -> Self:
        """Write down little-endian int16 of a shape."""
        return cls(shape=shape, data=base64.b64encode(zlib.compress(raw, 1)).decode())

    def raw(self) -> bytes:
        """Return the int16. Raises ValueError where the text is no such data."""
        tokens, layers, chosen = self.shape
        size = _BYTES * tokens * layers * chosen
        try:
            unpacker = zlib.decompressobj()
            found = unpacker.decompress(base64.b64decode(self.data, validate=True), size + 1)
        except (binascii.Error, zlib.error) as error:
            raise ValueError(f"routed experts of {tokens} tokens cannot be read: {error}") from error
        if len(found) != size:
            raise ValueError(f"routed experts of {tokens} tokens, {layers} layers and {chosen} experts hold other data")
        return found
