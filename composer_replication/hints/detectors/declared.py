"""How a built-in detector is declared: a function of a transcript, decorated with the kinds of error it finds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

from composer_replication.hints.detectors.reading import Reading
from composer_replication.types import Finding

_Detect: TypeAlias = Callable[[Reading], Iterator[Finding]]


@dataclass(frozen=True, slots=True)
class DeclaredDetector:
    """A function as a `Detector`."""

    kinds: tuple[str, ...]
    needs: frozenset[str]
    detect: _Detect


def detector(*kinds: str, needs: Iterable[str] = ()) -> Callable[[_Detect], DeclaredDetector]:
    """Make the decorated function a detector of these kinds; `needs` as in `Detector.needs`."""
    return lambda detect: DeclaredDetector(kinds, frozenset(needs), detect)
