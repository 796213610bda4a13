"""Codecs of pseudo-gradients: fewer bits, fewer values, and error feedback that carries the rest to the next round."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from composer_replication.diloco.codecs.dense import Floats, Integers
from composer_replication.diloco.codecs.patch import Pulse, patch_length, visible
from composer_replication.diloco.codecs.protocol import Codec, VisibleCodec
from composer_replication.diloco.codecs.top_k import TopK
from composer_replication.types.errors import ConfigError, one_of

__all__ = ["CODECS", "Codec", "VisibleCodec", "make_codec"]

_PATCH, _DENSE = b"P", b"D"


class Auto:
    """For each vector the shorter of a patch and 8-bit integers, judged by its density.

    With the weights at hand, what a bfloat16 copy of them would not show is left out of a patch, and not of the integers.
    """

    name = "auto"
    sparse = False
    needs_reference = False

    def __init__(self) -> None:
        self._patch = Pulse()
        self._dense = Integers("int8", 8)

    def encode(self, values: Tensor) -> bytes:
        return self._shorter(values, values != 0)

    def encode_visible(self, values: Tensor, reference: Tensor) -> bytes:
        return self._shorter(values, visible(values, reference))

    def _shorter(self, values: Tensor, there: Tensor) -> bytes:
        if patch_length(values.numel(), int(there.sum())) < self._dense.length(values.numel()):
            return _PATCH + self._patch.encode(torch.where(there, values, 0.0))
        return _DENSE + self._dense.encode(values)

    def decode(self, payload: bytes, size: int) -> Tensor:
        kind = payload[:1]
        if kind not in (_PATCH, _DENSE):
            raise ValueError("the payload is neither a patch nor integers")
        return (self._patch if kind == _PATCH else self._dense).decode(payload[1:], size)


CODECS: Mapping[str, Callable[[], Codec]] = {
    "fp32": lambda: Floats("fp32", torch.float32),
    "bf16": lambda: Floats("bf16", torch.bfloat16),
    "int8": lambda: Integers("int8", 8),
    "int4": lambda: Integers("int4", 4),
    "topk": TopK,
    "pulse": Pulse,
    "auto": Auto,
}


def make_codec(name: str) -> Codec:
    """Return the codec of that name; `topk@0.01` keeps another share than 1/32.

    Raises:
        ConfigError: there is none, or no such share.
    """
    base, _, share = name.partition("@")
    if base == "topk" and share:
        try:
            return TopK(name, float(share))
        except ValueError as error:
            raise ConfigError(f"the codec {name!r}: {error}", fix="write topk@0.01 for one value in a hundred") from error
    if name not in CODECS:
        raise ConfigError(f"no codec is called {name!r}", fix=one_of(name, CODECS))
    return CODECS[name]()
