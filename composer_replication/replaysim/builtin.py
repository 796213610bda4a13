"""The recipe's four operators in plain Python, row for row what data-juicer 1.6 decides."""

from __future__ import annotations

import json
import re
import string
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from composer_replication.replaysim.backend import first_of_each, in_turn
from composer_replication.replaysim.recipe import DEDUPLICATOR, KNOWN_OPERATORS, Operator
from composer_replication.replaysim.special_characters import SPECIAL_CHARACTERS
from composer_replication.types.errors import ConfigError

_NON_CHARACTERS = re.compile(rf"(?:[^\S\x1c-\x1f]|\d|[{re.escape(string.punctuation)}])+")
_BLANKS = dict.fromkeys(map(ord, " \n\t"), " ")
_WITHOUT_SPECIAL = {**dict.fromkeys(map(ord, SPECIAL_CHARACTERS)), **_BLANKS}
"""Table for `str.translate`, which is much faster than a loop: blanks become spaces, other special characters are removed."""


def _words(text: str) -> int:
    """Count words: what stands between blanks and is more than special characters."""
    return sum(map(bool, text.translate(_WITHOUT_SPECIAL).split(" ")))


def _special_ratio(text: str) -> float:
    rest = text.translate(_WITHOUT_SPECIAL)
    return (len(text) - len(rest) + rest.count(" ")) / len(text) if text else 0.0


_STATISTICS: Mapping[str, Callable[[str], float]] = {
    "text_length_filter": len,
    "words_num_filter": _words,
    "special_characters_filter": _special_ratio,
}


class BuiltinBackend:
    """Needs nothing installed; knows the operators of `KNOWN_OPERATORS`."""

    def check(self, operators: Sequence[Operator]) -> None:
        """Refuse a recipe this cannot run.

        Raises:
            ConfigError: an operator is not one of the four.
        """
        for operator in operators:
            if operator.name not in KNOWN_OPERATORS:
                raise ConfigError(
                    f"the builtin backend has no operator {operator.name}",
                    fix=f"use one of {', '.join(KNOWN_OPERATORS)}, or DJNormalizer(backend='data_juicer')",
                )

    def verdicts(self, operators: Sequence[Operator], columns: Mapping[str, Sequence[str]]) -> list[int | None]:
        """Return for every row the index of the operator that drops it, None when it stays."""
        return in_turn(_keep, operators, columns)


def _keep(operator: Operator, texts: Sequence[str]) -> list[bool]:
    first, second = {**KNOWN_OPERATORS[operator.name], **operator.parameters}.values()
    if operator.name != DEDUPLICATOR:
        statistic = _STATISTICS[operator.name]
        return [first <= statistic(text) <= second for text in texts]
    return first_of_each(_fingerprints(operator, texts))


def _fingerprints(operator: Operator, texts: Sequence[str]) -> Iterator[str]:
    lowercase, marks = map(bool, {**KNOWN_OPERATORS[DEDUPLICATOR], **operator.parameters}.values())
    return (_fingerprint(text, lowercase=lowercase, ignore_non_character=marks) for text in texts)


def states_lost(operators: Sequence[Operator], pairs: Sequence[Mapping[str, Any]], dropped_by: Sequence[str | None]) -> int:
    """Return pairs that the deduplicator dropped for the text of a pair at ANOTHER state: in another conversation the same action
    is no duplicate.

    Args:
        dropped_by: `NormalizeReport.dropped_by`.
    """
    lost = 0
    for operator in operators:
        if operator.name == DEDUPLICATOR:
            alike: defaultdict[str, list[int]] = defaultdict(list)
            for index, fingerprint in enumerate(_fingerprints(operator, [pair[operator.text_key] for pair in pairs])):
                if dropped_by[index] in (None, operator.title):
                    alike[fingerprint].append(index)
            for indices in alike.values():
                seen: set[str] = set()
                for index in indices if len(indices) > 1 else ():
                    conversation = json.dumps(pairs[index]["state_messages"], sort_keys=True)
                    lost += dropped_by[index] is not None and conversation not in seen
                    seen.add(conversation)
    return lost


def _fingerprint(text: str, *, lowercase: bool, ignore_non_character: bool) -> str:
    text = text.lower() if lowercase else text
    return (_NON_CHARACTERS.sub("", text) if ignore_non_character else text).strip()
