"""Open the environments that a run file names in `[env]`."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from importlib.metadata import entry_points
from operator import attrgetter
from typing import Any

from composer_replication.config import EnvConfig
from composer_replication.envs.source import EnvSource
from composer_replication.types.errors import ConfigError

ENTRY_POINTS = "composer_replication.envs"
"""Entry point group: installed packages name functions that make an `EnvSource`."""
BUILT_IN = {
    "function": "composer_replication.integrations.function_env:FunctionSource",
    "gymnasium": "composer_replication.integrations.gymnasium_source:GymnasiumSource",
    "openenv": "composer_replication.integrations.openenv_source:OpenEnvSource",
    "verifiers": "composer_replication.integrations.verifiers_source:VerifiersSource",
}
"""Environments of other frameworks, each imported when it is asked for."""


def open_source(config: EnvConfig) -> EnvSource:
    """Return the source that `[env]` names, made with its options.

    Raises:
        ConfigError: nothing has that name, its options are wrong, or what it returns is no `EnvSource`.
        MissingExtraError: the framework is not installed.
    """
    assert config.use is not None
    make = load_object(config.use, "env.use", {**{p.name: p.value for p in entry_points(group=ENTRY_POINTS)}, **BUILT_IN})
    try:
        source = make(**config.options)
    except TypeError as error:
        raise ConfigError(f"env.options do not fit env.use = {config.use!r}: {error}", fix="correct [env.options]") from error
    if not isinstance(source, EnvSource):
        raise ConfigError(
            f"env.use = {config.use!r} returned a {type(source).__name__}, which has no `train`, `held_out` and `make`",
            fix="return an object of the protocol composer_replication.envs.EnvSource (docs/environments.md)",
        )
    return source


def load_object(path: str, field: str, known: dict[str, str] | None = None) -> Callable[..., Any]:
    """Return the object at `package.module:name`, or under a short name of `known`. Raises ConfigError when there is none."""
    known = known or {}
    module, _, name = known.get(path, path).partition(":")
    names = f"one of {', '.join(sorted(known))}, or " if known else ""
    fix = f"name {names}a function as package.module:name"
    if not name:
        raise ConfigError(f"{field} = {path!r} names nothing", fix=fix)
    try:
        found: Callable[..., Any] = attrgetter(name)(importlib.import_module(module))
    except (ModuleNotFoundError, AttributeError) as error:
        if isinstance(error, ModuleNotFoundError) and error.name is not None and not module.startswith(error.name):
            raise  # a module that it needs in turn
        raise ConfigError(f"{field} = {path!r} cannot be imported: {error}", fix=fix) from error
    return found
