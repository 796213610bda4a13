"""Text from outside, made safe to print: nothing in it is obeyed by a terminal."""

from __future__ import annotations

import re

_OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters but newline and tab, marks that reorder what is read (Unicode's bidirectional algorithm), and halves of
surrogate pairs, which no encoding can write."""


def visible(text: str) -> str:
    r"""Return `text` with every character that a terminal would obey written as its escape, such as `\x1b`."""
    return _OBEYED.sub(lambda found: ascii(found[0])[1:-1], text)
