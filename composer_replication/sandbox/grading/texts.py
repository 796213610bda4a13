"""Source of programs that run inside a sandbox, written from the texts of this package's own modules."""

from __future__ import annotations

import base64
import importlib.util
import marshal
import zlib
from functools import cache
from pathlib import Path

_FORMAT = 4
"""Of marshal: the one that every Python from 3.4 on reads."""


@cache
def text_of(module: str) -> str:
    """Return the text of a module of this package, by its path without `.py`."""
    return Path(__file__).parent.joinpath(f"{module}.py").read_text(encoding="utf-8")


@cache
def program_of(*modules: str) -> str:
    """Return a program that runs the texts of modules behind each other in one namespace.

    It brings their bytecode, which an interpreter of the same version as this one need not compile again.
    """
    texts = [(text, marshal.dumps(compile(text, "<string>", "exec", dont_inherit=True))) for text in map(text_of, modules)]
    packed = base64.b64encode(zlib.compress(marshal.dumps(texts, _FORMAT))).decode()  # Linux takes 128 KiB as one argument
    return (
        "import binascii, importlib.util, marshal, zlib\n"
        f"_readable = importlib.util.MAGIC_NUMBER == {importlib.util.MAGIC_NUMBER!r}\n"
        f"for text, code in marshal.loads(zlib.decompress(binascii.a2b_base64('{packed}'))):\n"
        "    exec(marshal.loads(code) if _readable else compile(text, '<string>', 'exec'))\n"
    )
