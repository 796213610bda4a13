"""Drops the preference pairs that are not worth training on, and says which operator dropped which."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from composer_replication.config import BackendName, NormalizeConfig
from composer_replication.replaysim.backend import Backend
from composer_replication.replaysim.builtin import BuiltinBackend
from composer_replication.replaysim.data_juicer import DataJuicerBackend
from composer_replication.replaysim.executor import ExecutorBackend
from composer_replication.replaysim.recipe import DEFAULT_RECIPE, FIELDS, load_recipe
from composer_replication.replaysim.records import NormalizedDPOPair, dj_record_to_normalized, dpo_pair_to_dj_record, problem_of
from composer_replication.teacher_replay import DPOPair
from composer_replication.types.errors import ConfigError


@dataclass(frozen=True, slots=True)
class NormalizeReport:
    """The result of one call of `DJNormalizer.normalize`."""

    given: int
    kept: int
    dropped: Mapping[str, int]
    """Pairs dropped, by `operator/field`, every operator of the recipe included; `kept` plus these is `given`."""
    dropped_by: tuple[str | None, ...]
    """For every pair given, the first `operator/field` of the recipe that dropped it; None for a pair that was kept."""


class DJNormalizer:
    """Runs a recipe over pairs. Two backends keep the same pairs on the operators that both have.

    Args:
        recipe: a recipe file; None for `composer_replication/recipes/replaysim/default.yaml`.
        backend: `builtin` needs nothing installed and has the default recipe's four operators. The others have data-juicer's
            filters and its `document_deduplicator`, and need the extra `replaysim`: `data_juicer` calls them in this process,
            `executor` in data-juicer's own executor in a separate process, `ray` in its executor for Ray.
        ray_address: of the cluster for `ray`; None starts one on this machine for the call. Every node has to see the folder
            for temporary files (`TMPDIR`).

    Raises:
        ConfigError: the recipe cannot be run.
        MissingExtraError: the backend is not installed.
    """

    def __init__(
        self, recipe: Path | str | None = None, backend: BackendName = "builtin", *, ray_address: str | None = None
    ) -> None:
        self.recipe = DEFAULT_RECIPE if recipe is None else Path(recipe)
        self.operators = load_recipe(self.recipe)
        self.backend = backend
        self._backend = _open(backend, ray_address)
        self._backend.check(self.operators)
        self.report: NormalizeReport | None = None
        """The last run's; None before the first."""

    @classmethod
    def of(cls, options: NormalizeConfig) -> DJNormalizer:
        """Return the normaliser that a run file describes. Raises ConfigError and MissingExtraError as the constructor."""
        return cls(options.recipe, options.backend, ray_address=options.ray_address)

    def normalize(self, pairs: Sequence[DPOPair | Mapping[str, Any]]) -> list[NormalizedDPOPair]:
        """Return the pairs that pass every operator, in the order given.

        Raises:
            ConfigError: an entry is not a `DPOPair`.
            BackendError: the process that runs the operators died, or broke.
            StorageError: there is no room for the files it works with.
        """
        rows: Sequence[Mapping[str, Any]] = pairs
        for index, pair in enumerate(rows):
            problem = problem_of(pair)
            if problem is not None:
                raise ConfigError(f"pairs[{index}] is not a pair: {problem}", fix="pass what extract_dpo_pairs returns")
        columns = {field: [pair[field] for pair in rows] for field in FIELDS}
        verdicts = self._backend.verdicts(self.operators, columns)
        titles = [operator.title for operator in self.operators]
        dropped_by = tuple(None if verdict is None else titles[verdict] for verdict in verdicts)
        counts = Counter(title for title in dropped_by if title is not None)
        self.report = NormalizeReport(
            given=len(rows),
            kept=dropped_by.count(None),
            dropped={title: counts[title] for title in titles},
            dropped_by=dropped_by,
        )
        return [
            dj_record_to_normalized(dpo_pair_to_dj_record(pair)) for pair, by in zip(rows, dropped_by, strict=True) if by is None
        ]


def _open(backend: str, ray_address: str | None) -> Backend:
    if ray_address is not None and backend != "ray":
        raise ConfigError(f"a Ray address is given, but the backend is {backend!r}", fix="use backend='ray'")
    match backend:
        case "builtin":
            return BuiltinBackend()
        case "data_juicer":
            return DataJuicerBackend()
        case "executor" | "ray":
            return ExecutorBackend(ray_address=ray_address, ray=backend == "ray")
        case _:
            raise ConfigError(f"no backend is called {backend!r}", fix=f"use one of {', '.join(get_args(BackendName))}")
