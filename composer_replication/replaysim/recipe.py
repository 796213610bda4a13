"""A recipe: which operators a pair has to pass, in data-juicer's YAML form."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml

from composer_replication.errors import ConfigError

__all__ = ["DEFAULT_RECIPE", "KNOWN_OPERATORS", "Operator", "load_recipe"]

DEFAULT_RECIPE = Path(str(files("composer_replication"))) / "recipes" / "replaysim" / "default.yaml"

KNOWN_OPERATORS: Mapping[str, Mapping[str, type]] = {
    "text_length_filter": {"min_len": int, "max_len": int},
    "words_num_filter": {"min_num": int, "max_num": int},
    "special_characters_filter": {"min_ratio": float, "max_ratio": float},
    "document_deduplicator": {"lowercase": bool, "ignore_non_character": bool},
}
"""Operators both backends have, with their parameters. data-juicer ignores a parameter it does not know; we do not."""

_FIELDS = ("chosen", "rejected")
_TOP_KEYS = frozenset({"project_name", "process"})


@dataclass(frozen=True, slots=True)
class Operator:
    """One line of a recipe."""

    name: str
    text_key: str
    """The field it reads: `chosen` or `rejected`."""
    parameters: Mapping[str, Any]


def load_recipe(path: Path) -> tuple[Operator, ...]:
    """The operators of a recipe file, in order.

    Raises:
        ConfigError: the file cannot be read, is not of the form `process: [{operator: {text_key: ..., ...}}]`, reads a field
            other than `chosen` or `rejected`, or gives a known operator a parameter it does not have.
    """
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"the recipe {path} cannot be read: {error.strerror}", fix="name an existing recipe file") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"the recipe {path} is no YAML: {error}", fix="correct the file") from error
    if not isinstance(data, dict) or not isinstance(data.get("process"), list):
        raise ConfigError(f"the recipe {path} has no list named process", fix="list its operators under `process:`")
    unread = sorted(set(data) - _TOP_KEYS)
    if unread:
        raise ConfigError(f"the recipe {path}: {unread[0]} has no effect here", fix=f"remove {unread[0]}; only process is run")
    return tuple(_operator(path, index, entry) for index, entry in enumerate(data["process"]))


def _operator(path: Path, index: int, entry: Any) -> Operator:
    where = f"the recipe {path}, process[{index}]"
    if not isinstance(entry, dict) or len(entry) != 1:
        raise ConfigError(f"{where} is not one operator", fix="write `- operator_name: {text_key: chosen, ...}`")
    ((name, body),) = entry.items()
    if not isinstance(body, dict) or body.get("text_key") not in _FIELDS:
        raise ConfigError(f"{where}: {name} has no text_key", fix="add text_key: chosen or text_key: rejected")
    parameters = {key: value for key, value in body.items() if key != "text_key"}
    known = KNOWN_OPERATORS.get(name)
    for key, value in parameters.items() if known is not None else ():
        if known is None or key not in known:
            raise ConfigError(f"{where}: {name} has no parameter {key}", fix=f"use one of: {', '.join(known or ())}")
        wanted = (int, float) if known[key] is float else known[key]
        if not isinstance(value, wanted) or (isinstance(value, bool) and known[key] is not bool):
            raise ConfigError(f"{where}: {name}.{key} is {value!r}", fix=f"give it a {known[key].__name__}")
    return Operator(name, body["text_key"], parameters)
