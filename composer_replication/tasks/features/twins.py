"""Functions of a project that are each other's copy but for a word or two: one that stays gives the other away."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations

from composer_replication.languages.functions import Function, body_of
from composer_replication.tasks.proofs.leak import MIN_TOKENS, tokens_of

_MOST_WORDS = 2
"""Distinct words that may differ."""


def find_twins(functions: Sequence[Function], files: Mapping[str, bytes]) -> dict[str, frozenset[str]]:
    """Return, by key, the other functions whose bodies have the same tokens but for at most two distinct words, each changed into
    the same other word wherever it is changed.

    Args:
        files: path -> content, in which the functions were found.
    """
    alike: dict[tuple[str, ...], list[tuple[str, list[str]]]] = {}
    for function in functions:
        tokens = tokens_of(body_of(files[function.path], function).decode(errors="replace"))
        if len(tokens) >= MIN_TOKENS:
            shape = tuple("" if token[0].isalnum() or token[0] == "_" else token for token in tokens)
            alike.setdefault(shape, []).append((function.key, tokens))
    found: dict[str, set[str]] = {}
    for group in alike.values():
        for (one, mine), (other, theirs) in combinations(group, 2):
            if len({pair for pair in zip(mine, theirs, strict=True) if pair[0] != pair[1]}) <= _MOST_WORDS:
                found.setdefault(one, set()).add(other)
                found.setdefault(other, set()).add(one)
    return {key: frozenset(others) for key, others in found.items()}
