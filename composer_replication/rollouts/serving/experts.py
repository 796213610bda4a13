"""Which experts of a mixture a server sent tokens through, as vLLM and SGLang write it."""

from __future__ import annotations

import base64
import binascii
import io
from typing import Any

import numpy as np
from numpy.typing import NDArray

from composer_replication.types.routed_experts import RawExperts


def experts_of_npy(text: Any) -> RawExperts:
    """Read a base64 `.npy` [n, L, K], as vLLM writes it. Raises ValueError."""
    try:
        found = np.load(io.BytesIO(base64.b64decode(text, validate=True)), allow_pickle=False)
    except (TypeError, EOFError, binascii.Error) as error:
        raise ValueError(f"no .npy file in base64: {error}") from error
    return _written(found)


def experts_of_bytes(text: Any, kind: Any, chosen: int, tokens: int) -> RawExperts:
    """Read base64 of little-endian integers [tokens, L, chosen], as SGLang writes it. Raises ValueError.

    Args:
        kind: name of their type; older servers name none, and write int32.
    """
    try:
        dtype = np.dtype(kind or "int32").newbyteorder("<")
        found = np.frombuffer(base64.b64decode(text, validate=True), dtype)
    except (TypeError, ValueError, binascii.Error) as error:
        raise ValueError(f"no integers in base64: {error}") from error
    if tokens < 1 or len(found) % (tokens * chosen):
        raise ValueError(f"{len(found)} integers are not {chosen} for each of {tokens} tokens and some layers")
    return _written(found.reshape(tokens, -1, chosen))


def _written(found: NDArray[Any]) -> RawExperts:
    if found.ndim != 3 or not np.issubdtype(found.dtype, np.integer) or not found.size:
        raise ValueError(f"an array of {found.dtype} and the shape {list(found.shape)}")
    tokens, layers, chosen = found.shape
    return RawExperts(found.astype("<i2").tobytes(), (tokens, layers, chosen))
