"""The recipe's four operators in plain Python, row for row what data-juicer 1.6 decides."""

from __future__ import annotations

import re
import string
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from composer_replication.errors import ConfigError
from composer_replication.replaysim.recipe import KNOWN_OPERATORS, Operator
from composer_replication.replaysim.special_characters import SPECIAL_CHARACTERS

__all__ = ["BuiltinBackend"]

_BLANKS = re.compile(r"[ \n\t]")
_NON_CHARACTERS = re.compile(rf"[^\S\x1c-\x1f]|\d|[{re.escape(string.punctuation)}]")

_SPECIAL = "".join(sorted(SPECIAL_CHARACTERS))


def _text_length(text: str, p: Mapping[str, Any]) -> bool:
    return bool(p.get("min_len", 10) <= len(text) <= p.get("max_len", sys.maxsize))


def _words(text: str, p: Mapping[str, Any]) -> bool:
    """A word is what stands between blanks and is more than special characters."""
    words = sum(1 for word in _BLANKS.split(text) if word.strip(_SPECIAL))
    return bool(p.get("min_num", 10) <= words <= p.get("max_num", sys.maxsize))


def _special_characters(text: str, p: Mapping[str, Any]) -> bool:
    ratio = sum(c in SPECIAL_CHARACTERS for c in text) / len(text) if text else 0.0
    return bool(p.get("min_ratio", 0.0) <= ratio <= p.get("max_ratio", 0.25))


_FILTERS: Mapping[str, Callable[[str, Mapping[str, Any]], bool]] = {
    "text_length_filter": _text_length,
    "words_num_filter": _words,
    "special_characters_filter": _special_characters,
}


class BuiltinBackend:
    """Needs nothing installed; knows the operators of `KNOWN_OPERATORS`."""

    def keep(self, operator: Operator, texts: Sequence[str]) -> list[bool]:
        """Which of `texts` pass. A deduplicator passes the first of each kind.

        Raises:
            ConfigError: the operator is not one of the four.
        """
        if operator.name in _FILTERS:
            return [_FILTERS[operator.name](text, operator.parameters) for text in texts]
        if operator.name == "document_deduplicator":
            return _first_of_each([_fingerprint(text, operator.parameters) for text in texts])
        raise ConfigError(
            f"the builtin backend has no operator {operator.name}",
            fix=f"use one of {', '.join(KNOWN_OPERATORS)}, or DJNormalizer(backend='data_juicer')",
        )


def _fingerprint(text: str, p: Mapping[str, Any]) -> str:
    text = text.lower() if p.get("lowercase", False) else text
    return (_NON_CHARACTERS.sub("", text) if p.get("ignore_non_character", False) else text).strip()


def _first_of_each(fingerprints: Sequence[str]) -> list[bool]:
    seen: set[str] = set()
    kept = []
    for fingerprint in fingerprints:
        kept.append(fingerprint not in seen)
        seen.add(fingerprint)
    return kept
