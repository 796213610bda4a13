"""Codecs by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from composer_replication.diloco.codecs.dense import Floats, Integers
from composer_replication.diloco.codecs.protocol import Codec
from composer_replication.errors import ConfigError, one_of

__all__ = ["CODECS", "make_codec"]

CODECS: Mapping[str, Callable[[], Codec]] = {
    "fp32": lambda: Floats("fp32", torch.float32),
    "bf16": lambda: Floats("bf16", torch.bfloat16),
    "int8": lambda: Integers("int8", 8),
    "int4": lambda: Integers("int4", 4),
}


def make_codec(name: str) -> Codec:
    """The codec of that name.

    Raises:
        ConfigError: there is none.
    """
    if name not in CODECS:
        raise ConfigError(f"no codec is called {name!r}", fix=one_of(name, CODECS))
    return CODECS[name]()
