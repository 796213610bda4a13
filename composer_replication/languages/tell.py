"""The private channel of a program in a sandbox, and what it reads of a pipe of its own.

This text comes first in every program of a language that runs in a sandbox.
"""

from __future__ import annotations

import json
import os
import zlib
from typing import Any, NoReturn


def tell(nonce: str, answer: Any) -> NoReturn:
    """Write an answer to the private channel, and end."""
    channel = int(os.environ["COMPOSER_RESULT_FD"])
    rest = memoryview(nonce.encode() + zlib.compress(json.dumps(answer).encode()))
    while rest:
        rest = rest[os.write(channel, rest) :]
    os._exit(0)
