"""data-juicer's own operator classes, called in process and with fresh statistics for every field.

data-juicer's executor keeps a filter's statistic under one name per row, so a second filter of the same kind on another field
reuses the first field's value and never looks at its own. Fresh statistics per call avoid that.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import inspect
import os
import subprocess
import typing
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pydantic import TypeAdapter, ValidationError

from composer_replication.replaysim.backend import first_of_each, in_turn
from composer_replication.replaysim.recipe import DEDUPLICATOR, Operator
from composer_replication.types.errors import ConfigError, MissingExtraError

_NEEDED = ("data_juicer", "aiohttp", "ray")
"""data-juicer imports `aiohttp` without declaring it, and installs `ray` by itself while it is imported when it is not there."""

NO_INSTALLS = {"PIP_NO_INDEX": "1", "UV_NO_INDEX": "1", "UV_OFFLINE": "1", "GIT_ALLOW_PROTOCOL": "none"}
"""An operator whose package is missing has data-juicer install it while it runs; with this environment that fails instead."""


@contextlib.contextmanager
def without_installs() -> Iterator[None]:
    """Set `NO_INSTALLS` for this process while the body runs."""
    before = {name: os.environ.get(name) for name in NO_INSTALLS}
    os.environ.update(NO_INSTALLS)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


class DataJuicerBackend:
    """Knows every filter of the installed data-juicer and its `document_deduplicator`.

    Raises:
        MissingExtraError: data-juicer or something it needs is not installed.
    """

    def __init__(self) -> None:
        missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
        if missing:
            raise MissingExtraError(
                f"the backends other than builtin need {', '.join(missing)}, which is not installed",
                fix="pip install 'composer-replication[replaysim]', or use DJNormalizer(backend='builtin')",
            )
        with without_installs():
            self._registry: Any = importlib.import_module("data_juicer.ops").OPERATORS.modules
            self._filter: type = importlib.import_module("data_juicer.ops.base_op").Filter
        names = importlib.import_module("data_juicer.utils.constant")
        self._stats: str = names.Fields.stats
        self.hash_key: str = names.HashKeys.hash
        """The key under which a deduplicator's `compute_hash` leaves what it compares."""

    def check(self, operators: Sequence[Operator]) -> None:
        """Make every operator once, with only its own parameters: data-juicer ignores those it does not know.

        Raises:
            ConfigError: data-juicer has no such operator, it neither filters nor deduplicates single texts, or a parameter is
                not the operator's or not of its type.
            MissingExtraError: the operator needs a package that is not installed.
        """
        for operator in operators:
            self._check_parameters(operator)
            self.make(operator)

    def verdicts(self, operators: Sequence[Operator], columns: Mapping[str, Sequence[str]]) -> list[int | None]:
        """Return for every row the index of the operator that drops it, None when it stays."""
        return in_turn(self._keep, operators, columns)

    def make(self, operator: Operator) -> Any:
        """Make data-juicer's object for one line of the recipe, which raises what goes wrong with a text."""
        try:
            with without_installs():
                return self._find(operator)(text_key=operator.text_key, skip_op_error=False, **operator.parameters)
        except (ImportError, subprocess.CalledProcessError) as error:
            raise MissingExtraError(
                f"{operator.name} needs a package that is not installed: {error}", fix="install it beside data-juicer"
            ) from error
        except (TypeError, ValueError) as error:
            raise ConfigError(f"{operator.title} cannot be made: {error}", fix="correct its parameters in the recipe") from error

    def _find(self, operator: Operator) -> type:
        found: type | None = self._registry.get(operator.name)
        if found is None:
            raise ConfigError(f"data-juicer has no operator {operator.name}", fix="correct the recipe")
        if operator.name != DEDUPLICATOR and not issubclass(found, self._filter):
            raise ConfigError(
                f"{operator.name} is neither a filter nor {DEDUPLICATOR}", fix="run it on the pairs with data-juicer itself"
            )
        return found

    def _check_parameters(self, operator: Operator) -> None:
        init: Any = self._find(operator).__init__  # type: ignore[misc]
        kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
        known = [name for name, p in inspect.signature(init).parameters.items() if p.kind in kinds and name != "self"]
        types = typing.get_type_hints(init, include_extras=True)
        for name, value in operator.parameters.items():
            if name not in known:
                raise ConfigError(f"{operator.name} has no parameter {name}", fix=f"use one of: {', '.join(known)}")
            try:
                TypeAdapter(types.get(name, Any)).validate_python(value)
            except ValidationError as error:
                reason = error.errors()[0]["msg"]
                raise ConfigError(f"{operator.name}.{name} is {value!r}: {reason}", fix="correct the recipe") from error

    def _keep(self, operator: Operator, texts: Sequence[str]) -> list[bool]:
        op = self.make(operator)
        with without_installs():
            if operator.name == DEDUPLICATOR:
                return first_of_each(op.compute_hash({op.text_key: text})[self.hash_key] for text in texts)
            if not op.is_batched_op():
                rows = ({operator.text_key: text, self._stats: {}} for text in texts)
                return [bool(op.process(op.compute_stats(row))) for row in rows]
            table = {operator.text_key: list(texts), self._stats: [{} for _ in texts]}
            return [bool(kept) for kept in op.process(op.compute_stats(table))] if texts else []
