"""Drops the preference pairs that are not worth training on, and says which operator dropped how many."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, TypeAlias

from composer_replication.errors import ConfigError
from composer_replication.replaysim.builtin import BuiltinBackend
from composer_replication.replaysim.data_juicer import DataJuicerBackend
from composer_replication.replaysim.recipe import DEFAULT_RECIPE, Operator, load_recipe
from composer_replication.replaysim.records import NormalizedDPOPair, dj_record_to_normalized, dpo_pair_to_dj_record
from composer_replication.teacher_replay import DPOPair

__all__ = ["DJNormalizer", "NormalizeReport"]

BackendName: TypeAlias = Literal["builtin", "data_juicer"]


class _Backend(Protocol):
    def keep(self, operator: Operator, texts: Sequence[str]) -> list[bool]: ...


@dataclass(frozen=True, slots=True)
class NormalizeReport:
    """What one call of `DJNormalizer.normalize` did."""

    given: int
    kept: int
    dropped: Mapping[str, int]
    """Pairs dropped, by `operator/field`, every operator of the recipe included; `kept` plus these is `given`."""


class DJNormalizer:
    """Runs a recipe over pairs.

    Args:
        recipe: a recipe file; None for `composer_replication/recipes/replaysim/default.yaml`.
        backend: `builtin` needs nothing installed and has the default recipe's four operators; `data_juicer` has them all and
            needs the extra `replaysim`. On the default recipe the two keep the same rows.

    Raises:
        ConfigError: the recipe cannot be run.
        MissingExtraError: the backend is not installed.
    """

    def __init__(self, recipe: Path | str | None = None, backend: BackendName = "builtin") -> None:
        if backend not in ("builtin", "data_juicer"):
            raise ConfigError(f"no backend is called {backend!r}", fix="use 'builtin' or 'data_juicer'")
        self.recipe = DEFAULT_RECIPE if recipe is None else Path(recipe)
        self.operators = load_recipe(self.recipe)
        self.backend = backend
        self._backend: _Backend = BuiltinBackend() if backend == "builtin" else DataJuicerBackend()
        self.report: NormalizeReport | None = None
        """The last run's; None before the first."""
        for operator in self.operators:
            self._backend.keep(operator, [])

    def normalize(self, pairs: Sequence[DPOPair | Mapping[str, Any]]) -> list[NormalizedDPOPair]:
        """The pairs that pass every operator, in order, operator after operator."""
        records = [dpo_pair_to_dj_record(pair) for pair in pairs]
        dropped: dict[str, int] = {}
        for operator in self.operators:
            kept = self._backend.keep(operator, [record[operator.text_key] for record in records])
            name = f"{operator.name}/{operator.text_key}"
            dropped[name] = dropped.get(name, 0) + kept.count(False)
            records = [record for record, keep in zip(records, kept, strict=True) if keep]
        self.report = NormalizeReport(given=len(pairs), kept=len(records), dropped=dropped)
        return [dj_record_to_normalized(record) for record in records]
