"""A recipe: which operators a pair has to pass, in data-juicer's YAML form."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml

from composer_replication.types.errors import ConfigError

DEFAULT_RECIPE = Path(str(files("composer_replication"))) / "recipes" / "replaysim" / "default.yaml"

DEDUPLICATOR = "document_deduplicator"
"""The one operator that looks at more than one text."""

KNOWN_OPERATORS: Mapping[str, Mapping[str, int | float | bool]] = {
    "text_length_filter": {"min_len": 10, "max_len": sys.maxsize},
    "words_num_filter": {"min_num": 10, "max_num": sys.maxsize},
    "special_characters_filter": {"min_ratio": 0.0, "max_ratio": 0.25},
    DEDUPLICATOR: {"lowercase": False, "ignore_non_character": False},
}
"""Operators every backend has, with their parameters and data-juicer's defaults; a filter's are its least and its most.
data-juicer ignores a parameter it does not know; we do not."""

FIELDS = ("chosen", "rejected")
_EXPONENT = re.compile(r"[-+]?\d+[eE][-+]?\d+")
_TOP_KEYS = frozenset({"project_name", "process"})


@dataclass(frozen=True, slots=True)
class Operator:
    """One line of a recipe."""

    name: str
    text_key: str
    """The field it reads: `chosen` or `rejected`."""
    parameters: Mapping[str, Any]

    @property
    def title(self) -> str:
        """`name/field`, by which drops are counted."""
        return f"{self.name}/{self.text_key}"


def load_recipe(path: Path) -> tuple[Operator, ...]:
    """Load the operators of a recipe file, in order.

    Raises:
        ConfigError: the file cannot be read, is not of the form `process: [{operator: {text_key: ..., ...}}]`, reads a field
            other than `chosen` or `rejected`, or gives a known operator a parameter it does not have or limits that let nothing
            through.
    """
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"the recipe {path} cannot be read: {error.strerror}", fix="name an existing recipe file") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"the recipe {path} is not YAML: {error}", fix="correct the file") from error
    if not isinstance(data, dict) or not isinstance(data.get("process"), list):
        raise ConfigError(f"the recipe {path} has no list named process", fix="list its operators under `process:`")
    unread = sorted(str(key) for key in set(data) - _TOP_KEYS)
    if unread:
        raise ConfigError(f"the recipe {path}: {unread[0]} has no effect here", fix=f"remove {unread[0]}; only process is run")
    return tuple(_operator(f"the recipe {path}, process[{index}]", entry) for index, entry in enumerate(data["process"]))


def _operator(where: str, entry: Any) -> Operator:
    if not isinstance(entry, dict) or len(entry) != 1:
        raise ConfigError(f"{where} is not one operator", fix="write `- operator_name: {text_key: chosen, ...}`")
    ((name, body),) = entry.items()
    if not isinstance(body, dict) or body.get("text_key") not in FIELDS:
        raise ConfigError(f"{where}: {name} has no text_key", fix="add text_key: chosen or text_key: rejected")
    known = KNOWN_OPERATORS.get(str(name), {})
    parameters = {str(key): _value(value, known.get(key)) for key, value in body.items() if key != "text_key"}
    operator = Operator(str(name), body["text_key"], parameters)
    if known:
        _check_parameters(where, operator, known)
    return operator


def _value(value: Any, known: float | None) -> Any:
    """Read a value as data-juicer does: `1e-06` is a float to it and in YAML 1.2, and text in YAML 1.1."""
    return float(value) if isinstance(known, float) and isinstance(value, str) and _EXPONENT.fullmatch(value) else value


def _check_parameters(where: str, operator: Operator, known: Mapping[str, int | float | bool]) -> None:
    for key, value in operator.parameters.items():
        if key not in known:
            raise ConfigError(f"{where}: {operator.name} has no parameter {key}", fix=f"use one of: {', '.join(known)}")
        wanted = type(known[key])
        if type(value) is not wanted and not (wanted is float and type(value) is int):
            raise ConfigError(f"{where}: {operator.name}.{key} is {value!r}", fix=f"give it a {wanted.__name__}")
    if operator.name != DEDUPLICATOR:
        (low, least), (high, most) = {**known, **operator.parameters}.items()
        if not least <= most:
            raise ConfigError(
                f"{where}: nothing passes {operator.name} with {low} {least} and {high} {most}", fix=f"set {low} below {high}"
            )
