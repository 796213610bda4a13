"""What a codec is: float32 values to bytes and back."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from torch import Tensor

__all__ = ["Codec", "VisibleCodec"]


class Codec(Protocol):
    """Turns a vector into bytes. Whoever decodes the same bytes, on whatever machine, gets the same bits."""

    @property
    def name(self) -> str:
        """As it is asked for, and as it stands in the header of what it wrote."""

    @property
    def sparse(self) -> bool:
        """Whether most values are left out, so that a sum of several vectors is larger than each."""

    def encode(self, values: Tensor) -> bytes:
        """The payload of a vector.

        Args:
            values: (n,) float32 on the CPU, finite, in the units of the model's parameters.
        """

    def decode(self, payload: bytes, size: int) -> Tensor:
        """The (size,) float32 values that a payload stands for.

        Raises:
            ValueError: the payload is not that of `size` values.
        """


@runtime_checkable
class VisibleCodec(Codec, Protocol):
    """A codec that can leave out what the weights, kept in bfloat16, would not show."""

    @property
    def needs_reference(self) -> bool:
        """Whether it has nothing else to go by."""

    def encode_visible(self, values: Tensor, reference: Tensor) -> bytes:
        """The payload of what changes bfloat16 weights.

        Args:
            values: (n,) float32, what is subtracted from the weights.
            reference: (n,) float32, the weights.
        """
