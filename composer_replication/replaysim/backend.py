"""The backend interface, and the order in which a recipe's operators run.

Between two deduplicators filters look at single texts only, so their order decides nothing but which of them a dropped pair is
counted for: the first of the recipe that drops it. A deduplicator sees what all operators before it have left.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Protocol

from composer_replication.replaysim.recipe import DEDUPLICATOR, Operator


class Backend(Protocol):
    """Something that runs the operators of a recipe."""

    def check(self, operators: Sequence[Operator]) -> None:
        """Refuse a recipe this cannot run.

        Raises:
            ConfigError: an operator it does not have, or a parameter the operator does not take.
        """

    def verdicts(self, operators: Sequence[Operator], columns: Mapping[str, Sequence[str]]) -> list[int | None]:
        """Return for every row the index of the operator that drops it, None when it stays.

        Args:
            columns: the texts of every row, by field.

        Raises:
            BackendError: the process that runs the operators died, or broke.
            StorageError: there is no room for the files it works with.
        """


def in_turn(
    keep: Callable[[Operator, Sequence[str]], Sequence[bool]], operators: Sequence[Operator], columns: Mapping[str, Sequence[str]]
) -> list[int | None]:
    """Return the verdicts of operators that run one after the other on the remaining texts."""
    left = list(range(len(columns["chosen"])))
    verdicts: list[int | None] = [None] * len(left)
    for index, operator in enumerate(operators):
        texts = columns[operator.text_key]
        kept = keep(operator, [texts[row] for row in left])
        for row, keeps in zip(left, kept, strict=True):
            if not keeps:
                verdicts[row] = index
        left = [row for row, keeps in zip(left, kept, strict=True) if keeps]
    return verdicts


def first_of_each(fingerprints: Iterable[str]) -> list[bool]:
    """Return for each fingerprint whether none before it is the same."""
    seen: set[str] = set()
    kept = []
    for fingerprint in fingerprints:
        kept.append(fingerprint not in seen)
        seen.add(fingerprint)
    return kept


@dataclass(frozen=True, slots=True)
class Pass:
    """One run of an executor: operators of different names on one field."""

    field: str
    operators: tuple[int, ...]
    """Their places in the recipe."""


def plan(operators: Sequence[Operator]) -> list[list[Pass]]:
    """Plan the stages of a recipe for an executor; the passes of one stage are independent and see the same rows.

    An executor keeps a filter's statistic under one name per row, whatever field it was computed from, so that a second filter
    of the same name would judge its field by the first one's. No pass has two fields or two operators of one name.
    """
    stages: list[list[Pass]] = []
    for is_filter, group in groupby(enumerate(operators), key=lambda item: item[1].name != DEDUPLICATOR):
        if not is_filter:
            stages.extend([Pass(operator.text_key, (index,))] for index, operator in group)
            continue
        passes: dict[tuple[str, int], list[int]] = {}
        times: dict[tuple[str, str], int] = {}
        for index, operator in group:
            key = (operator.name, operator.text_key)
            times[key] = times.get(key, 0) + 1
            passes.setdefault((operator.text_key, times[key]), []).append(index)
        stages.append([Pass(field, tuple(indices)) for (field, _), indices in passes.items()])
    return stages
