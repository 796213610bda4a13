"""Which experts of a mixture a server sent tokens through, as vLLM and SGLang write it."""

from __future__ import annotations

import base64
import binascii
import io
from typing import Any

import numpy as np
from numpy.typing import NDArray

from composer_replication.types.routed_experts import RoutedExperts


def experts_of_npy(text: Any) -> RoutedExperts:
    """Read a base64 `.npy` [n, L, K], as vLLM writes it. Raises ValueError."""
    try:
        found = np.load(io.BytesIO(base64.b64decode(text, validate=True)), allow_pickle=False)
    except (TypeError, EOFError, binascii.Error) as error:
        raise ValueError(f"no .npy file in base64: {error}") from error
    return _written(found)


def experts_of_int32(text: Any, chosen: int, tokens: int) -> RoutedExperts:
    """Read base64 of little-endian int32 [tokens, L, chosen], as SGLang writes it. Raises ValueError."""
    try:
        found = np.frombuffer(base64.b64decode(text, validate=True), "<i4")
    except (TypeError, binascii.Error) as error:
        raise ValueError(f"no integers in base64: {error}") from error
    if tokens < 1 or len(found) % (tokens * chosen):
        raise ValueError(f"{len(found)} integers are not {chosen} for each of {tokens} tokens and some layers")
    return _written(found.reshape(tokens, -1, chosen))


def _written(found: NDArray[Any]) -> RoutedExperts:
    if found.ndim != 3 or not np.issubdtype(found.dtype, np.integer) or not found.size:
        raise ValueError(f"an array of {found.dtype} and the shape {list(found.shape)}")
    tokens, layers, chosen = found.shape
    return RoutedExperts.of(found.astype("<i2").tobytes(), (tokens, layers, chosen))
