"""Loading of TOML and dotted overrides into a `RunConfig`, with errors that name file, field and fix."""

from __future__ import annotations

import difflib
import json
import os
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, get_args

import tomli_w
from pydantic import TypeAdapter, ValidationError

from composer_replication.config.run import RunConfig, TeacherConfig, TeachersFile
from composer_replication.config.section import Section
from composer_replication.types.errors import ConfigError

_SHARED = (
    "name",
    "out",
    "threads",
    "model",
    "pretrain",
    "sft",
    "tasks",
    "env",
    "substrate",
    "sandbox",
    "diloco",
    "arms",
    "rollout.env_workers",
)
"""Keys that all arms of a run share."""
_FILES = {
    "loss.replay.pairs": "make pairs with `composer pairs extract STATES ANSWERS --out FILE`",
    "loss.replay.normalize.recipe": "name a recipe in YAML, or leave it out for the one of the package",
    "rollout.server_python": "name the interpreter of an environment that has vLLM",
}
"""Fields that name a file to be read, each with the fix for one that is missing."""
_TRACES = "name a file that `composer rollout --out` or `composer traces import --out` wrote"
_SOURCES = "name a folder, a .jsonl or .jsonl.gz file, or hf:NAME"
_FOLDERS = {"reward.prm.path": "name the folder `model` that `composer prm train` wrote"}
"""Fields that name a folder to be read, likewise."""
_PATHS = _FILES | _FOLDERS
TEACHER = "teacher:"
"""Begins the name of a policy that is a teacher; the teacher's own name follows."""


def load_config(path: Path, overrides: Sequence[str] = (), *, env_given: bool = False) -> RunConfig:
    """Read a run file.

    Args:
        overrides: `--dotted.key VALUE` or `--dotted.key=VALUE` words as they come from a command line; values are TOML, or text.

        env_given: the caller brings an environment, so the file need not name one.

    Raises:
        ConfigError: the file is missing or no TOML, a key is unknown, a value has the wrong type, or a path does not exist.
    """
    data = _read(path, "a run file")
    for key, value in _parse_overrides(overrides):
        _set(data, key, value, where="the command line")
    where = f"{path} and the command line" if overrides else str(path)
    return _with_env(_validate(data, where, base=path.parent), where, env_given=env_given)


def config_from(data: Mapping[str, Any], *, base: Path | None = None, env_given: bool = False) -> RunConfig:
    """Return the run that nested dictionaries describe, as a run file would.

    Args:
        base: folder that paths are relative to; by default the working directory.
        env_given: the caller brings an environment, so `data` need not name one.

    Raises:
        ConfigError: as `load_config`.
    """
    return _with_env(_validate(data, "the run", base=base or Path.cwd()), "the run", env_given=env_given)


def _with_env(config: RunConfig, where: str, *, env_given: bool) -> RunConfig:
    if config.tasks.train is None and config.env.use is None and not env_given:
        raise ConfigError(f"{where}: tasks.train is missing", fix="name a folder of tasks, or an environment in [env]")
    return config


def load_teachers(path: Path) -> tuple[TeacherConfig, ...]:
    """Read a file of teachers: the `[[teachers]]` tables of a run file, and nothing else. Raises ConfigError."""
    try:
        return TeachersFile.model_validate(_read(path, "a file of teachers")).teachers
    except ValidationError as error:
        raise _invalid(error, str(path)) from None


def resolve_arm(config: RunConfig, arm: str) -> RunConfig:
    """Return the run of one arm alone, with the arm's overrides applied. When an arm changes a choice (`loss.hint.form`, say),
    the fields the run set only for its own choice are dropped. Raises ConfigError for an unknown arm or a wrong override."""
    if arm not in config.arms:
        raise ConfigError(f"no arm {arm!r} in the run", fix=f"use one of: {', '.join(config.arms)}")
    data = config.model_dump(mode="json", exclude_none=True)
    for key, value in config.arms[arm].items():
        if any(key == shared or key.startswith(shared + ".") for shared in _SHARED):
            raise ConfigError(f"arms.{arm}: {key} is the same for all arms", fix=f"set {key} for the run, or make two runs")
        _set(data, key, value, where=f"arms.{arm}")
    _leave_out_unread(data, config.arms[arm])
    return _validate(data, f"arms.{arm}", base=Path())


def to_toml(config: RunConfig) -> str:
    """Write the resolved run as a run file."""
    return tomli_w.dumps(config.model_dump(mode="json", exclude_none=True))


def _read(path: Path, what: str) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file", fix=f"give the path of {what} (TOML)") from None
    except IsADirectoryError:
        raise ConfigError(f"{path} is a folder", fix=f"give the path of {what} (TOML)") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not valid TOML: {error}", fix="correct the line it names") from None


def _parse_overrides(words: Sequence[str]) -> list[tuple[str, Any]]:
    pairs: list[tuple[str, Any]] = []
    remaining = list(words)
    while remaining:
        word = remaining.pop(0)
        if not word.startswith("--") or word == "--":
            raise ConfigError(f"unexpected argument {word!r}", fix="overrides are written --dotted.key VALUE")
        key, equals, text = word[2:].partition("=")
        if not equals:
            if not remaining:
                raise ConfigError(f"--{key}: a value is missing", fix=f"write --{key} VALUE")
            text = remaining.pop(0)
        pairs.append((key if key.startswith("arms.") else key.replace("-", "_"), _value(text)))  # arm names may contain "-"
    return pairs


def _value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _set(data: dict[str, Any], key: str, value: Any, *, where: str) -> None:
    *folders, last = key.split(".")
    for folder in folders:
        inner: Any = data.setdefault(folder, {})
        if not isinstance(inner, dict):
            what = "a list, which only the run file can set" if isinstance(inner, list) else "a value, not a section"
            raise ConfigError(f"{where}: {key}: {folder!r} is {what}", fix="name a field of a section")
        data = inner
    data[last] = value


def _leave_out_unread(data: dict[str, Any], overrides: Mapping[str, Any]) -> None:
    """Drop from `data` the fields that the overrides' choices leave unread, unless they are overrides themselves."""
    for key, choice in overrides.items():
        *folders, chooser = key.split(".")
        section, table = _section_at(folders), data
        if section is None:
            continue
        for folder in folders:
            table = table[folder]
        choice = _as_read(section, chooser, choice)
        for name in section.model_fields:
            if ".".join((*folders, name)) not in overrides and any(
                rule.chooser == chooser and choice not in rule.choices for rule in section.readers(name)
            ):
                table.pop(name, None)


def _as_read(section: type[Section], name: str, value: Any) -> Any:
    """Convert a value to the field's type ("True" is valid for a bool), or return it unchanged: validation reports it later."""
    field = section.model_fields.get(name)
    if field is None:
        return value
    kind: Any = field.annotation
    try:
        return TypeAdapter(kind).validate_python(value)
    except ValidationError:
        return value


def _validate(data: Mapping[str, Any], where: str, *, base: Path) -> RunConfig:
    try:
        config = RunConfig.model_validate(data)
    except ValidationError as error:
        raise _invalid(error, where) from None
    return _absolute_paths(config, where, base)


def _invalid(error: ValidationError, where: str) -> ConfigError:
    lines = [_explain(e["loc"], e["type"], e["msg"], e.get("input"), e.get("ctx", {})) for e in error.errors()]
    more = f" (and {len(lines) - 1} more: {'; '.join(line for line, _ in lines[1:])})" if len(lines) > 1 else ""
    return ConfigError(f"{where}: {lines[0][0]}{more}", fix=lines[0][1])


def _absolute_paths(config: RunConfig, where: str, base: Path) -> RunConfig:
    """Resolve paths relative to the run file's folder. Raises ConfigError when a path that is read does not exist."""
    for key in _PATHS:
        config = _with_absolute_path(config, key.split("."), key, where, base)
    train = None if config.tasks.train is None else (base / config.tasks.train).resolve()
    held_out = None if config.tasks.held_out is None else (base / config.tasks.held_out).resolve()
    if held_out is not None and config.tasks.held_out_share > 0:
        raise ConfigError(f"{where}: tasks.held_out and tasks.held_out_share are both given", fix="remove one of them")
    for field, folder in (("tasks.train", train), ("tasks.held_out", held_out)):
        if folder is not None and not folder.is_dir():
            raise ConfigError(
                f"{where}: {field}: no such folder: {folder}", fix="build tasks with `composer tasks build SOURCE --out DIR`"
            )
    local = (base / config.model.path).resolve()
    model = config.model.model_copy(update={"path": str(local)}) if local.is_dir() else config.model
    if model is config.model and (config.model.path.startswith((".", "/", "~")) or config.model.path.count("/") > 1):
        raise ConfigError(
            f"{where}: model.path: no such folder: {config.model.path}", fix="give a model folder or a Hugging Face model id"
        )
    python = None if config.tasks.python is None else (base / config.tasks.python).absolute()  # resolved, it would leave its venv
    if python is not None and not config.sandbox.kind.startswith("remote:") and not python.is_file():
        raise ConfigError(f"{where}: tasks.python: no such file: {python}", fix="name the interpreter that runs the tests")
    tasks = config.tasks.model_copy(update={"train": train, "held_out": held_out, "python": python})
    rollout = config.rollout
    if rollout.server_weights is not None:
        rollout = rollout.model_copy(update={"server_weights": (base / rollout.server_weights).absolute()})
    if rollout.server_store is not None and "://" not in rollout.server_store:
        rollout = rollout.model_copy(update={"server_store": str((base / rollout.server_store).absolute())})
    options = {
        k: str((base / v).resolve()) if isinstance(v, str) and v.startswith(("./", "../")) else v
        for k, v in config.env.options.items()
    }
    env = config.env.model_copy(update={"options": options, "path": (base / (config.env.path or ".")).resolve()})
    sources = tuple(one if one.startswith("hf:") else _source(one, where, base) for one in config.pretrain.sources)
    traces = tuple(_there("sft.traces", path, where, base) for path in config.sft.traces)
    arms = {
        arm: {k: str(_there(k, str(v), f"{where}: arms.{arm}", base)) if k in _PATHS else v for k, v in keys.items()}
        for arm, keys in config.arms.items()
    }
    update = {
        "tasks": tasks,
        "env": env if config.env.use or config.reward.function else config.env,
        "model": model,
        "pretrain": config.pretrain.model_copy(update={"sources": sources}),
        "sft": config.sft.model_copy(update={"traces": traces}),
        "rollout": rollout,
        "arms": arms,
        "out": (base / config.out).resolve(),
    }
    return config.model_copy(update=update)


_S = TypeVar("_S", bound=Section)


def _with_absolute_path(section: _S, names: Sequence[str], key: str, where: str, base: Path) -> _S:
    """Make the path of the field `names` below the section absolute, if it has one. Raises ConfigError."""
    value = getattr(section, names[0])
    if value is None:
        return section
    found = _there(key, value, where, base) if len(names) == 1 else _with_absolute_path(value, names[1:], key, where, base)
    return section.model_copy(update={names[0]: found})


def _source(path: str, where: str, base: Path) -> str:
    found = Path(os.path.abspath(base / path))
    if not found.exists():
        raise ConfigError(f"{where}: pretrain.sources: no such folder or file: {found}", fix=_SOURCES)
    return str(found)


def _there(key: str, path: Path | str, where: str, base: Path) -> Path:
    found = Path(os.path.abspath(base / path))  # resolved, an interpreter would leave its venv
    if not (found.is_dir() if key in _FOLDERS else found.is_file()):
        kind = "folder" if key in _FOLDERS else "file"
        raise ConfigError(f"{where}: {key}: no such {kind}: {found}", fix=_PATHS.get(key, _TRACES))
    return found


def _explain(location: tuple[int | str, ...], kind: str, message: str, value: Any, context: Mapping[str, Any]) -> tuple[str, str]:
    """Describe one validation error in a sentence, with its fix."""
    field = ".".join(str(part) for part in location)
    if kind == "refused":
        return f"{field}.{message}" if field else message, context["fix"]
    if kind == "extra_forbidden":
        close = difflib.get_close_matches(str(location[-1]), _fields_at(location[:-1]), n=1)
        meant = ".".join(str(part) for part in (*location[:-1], *close))
        known = f"did you mean {meant!r}?" if close else f"known here: {', '.join(_fields_at(location[:-1]))}"
        return f"unknown key {field!r}", f"remove it; {known}"
    if kind == "missing":
        return f"{field} is missing", f"set {field}"
    return f"{field} = {json.dumps(value, default=str)}: {message[0].lower() + message[1:]}", f"correct {field}"


def _fields_at(location: Sequence[int | str]) -> list[str]:
    """Return the field names of the section at a location."""
    section = _section_at([part for part in location if isinstance(part, str)])
    return [] if section is None else list(section.model_fields)


def _section_at(names: Sequence[str]) -> type[Section] | None:
    """Return the section that these field names lead to; None where there is none."""
    section: type[Section] | None = RunConfig
    for name in names:
        if section is None or name not in section.model_fields:
            return None
        annotation = section.model_fields[name].annotation
        options = (annotation, *get_args(annotation))
        section = next((o for o in options if isinstance(o, type) and issubclass(o, Section)), None)
    return section
