"""data-juicer's own operator classes, called in process and with fresh statistics for every field.

data-juicer's executor keeps a filter's statistic under one name per row, so a second filter of the same kind on another field
reuses the first field's value and never looks at its own. Fresh statistics per call avoid that.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Sequence
from typing import Any

from composer_replication.errors import ConfigError, MissingExtraError
from composer_replication.replaysim.recipe import Operator

__all__ = ["DataJuicerBackend"]

_NEEDED = ("data_juicer", "aiohttp", "ray")
"""data-juicer imports `aiohttp` without declaring it, and installs `ray` by itself while it is imported when it is not there."""


class DataJuicerBackend:
    """Knows every filter of the installed data-juicer and its `document_deduplicator`.

    Raises:
        MissingExtraError: data-juicer or something it needs is not installed.
    """

    def __init__(self) -> None:
        missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
        if missing:
            raise MissingExtraError(
                f"the data_juicer backend needs {', '.join(missing)}, which is not installed",
                fix="pip install 'composer-replication[replaysim]', or use DJNormalizer(backend='builtin')",
            )
        self._registry: Any = importlib.import_module("data_juicer.ops").OPERATORS.modules
        self._base: Any = importlib.import_module("data_juicer.ops.base_op")
        self._names: Any = importlib.import_module("data_juicer.utils.constant")

    def keep(self, operator: Operator, texts: Sequence[str]) -> list[bool]:
        """Which of `texts` pass. A deduplicator passes the first of each kind.

        Raises:
            ConfigError: data-juicer has no such operator, or it neither filters nor deduplicates single texts.
        """
        found = self._registry.get(operator.name)
        if found is None:
            raise ConfigError(f"data-juicer has no operator {operator.name}", fix="correct the recipe")
        op: Any = found(text_key=operator.text_key, skip_op_error=False, **operator.parameters)
        if isinstance(op, self._base.Filter):
            return self._filter(op, operator.text_key, texts)
        if operator.name == "document_deduplicator":
            return self._deduplicate(op, operator.text_key, texts)
        raise ConfigError(
            f"{operator.name} is neither a filter nor document_deduplicator", fix="run it on the pairs with data-juicer itself"
        )

    def _filter(self, op: Any, key: str, texts: Sequence[str]) -> list[bool]:
        if not texts:
            return []
        batch = {key: list(texts), self._names.Fields.stats: [{} for _ in texts]}
        return [bool(kept) for kept in op.process_batched(op.compute_stats_batched(batch))]

    def _deduplicate(self, op: Any, key: str, texts: Sequence[str]) -> list[bool]:
        seen: set[str] = set()
        kept = []
        for text in texts:
            fingerprint = op.compute_hash({key: text})[self._names.HashKeys.hash]
            kept.append(fingerprint not in seen)
            seen.add(fingerprint)
        return kept
