"""The codec interface: float32 values to bytes and back."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from torch import Tensor


class Codec(Protocol):
    """Turns a vector into bytes. Decoding the same bytes gives the same bits on any machine."""

    name: str
    """Name by which it is requested, and which stands in the header of what it wrote."""
    sparse: bool
    """True when it drops most values, so that a sum of several vectors is larger than each."""

    def encode(self, values: Tensor) -> bytes:
        """Encode a vector.

        Args:
            values: (n,) float32 on the CPU, finite, in the units of the model's parameters.
        """

    def decode(self, payload: bytes, size: int) -> Tensor:
        """Decode the (size,) float32 values of a payload.

        Raises:
            ValueError: the payload is not that of `size` values.
        """


@runtime_checkable
class VisibleCodec(Codec, Protocol):
    """A codec that can leave out what the weights, kept in bfloat16, would not show."""

    needs_reference: bool
    """True when it cannot encode without a reference."""

    def encode_visible(self, values: Tensor, reference: Tensor) -> bytes:
        """Encode the changes of bfloat16 weights.

        Args:
            values: (n,) float32, what is subtracted from the weights.
            reference: (n,) float32, the weights.
        """
