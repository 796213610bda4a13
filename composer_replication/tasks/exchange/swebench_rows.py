"""Rows of SWE-bench and of the data sets that are like it, told apart by their columns.

| data set | columns that tell it | what the patch does |
|---|---|---|
| SWE-bench, SWE-Gym | `base_commit`, `test_patch` | solves the issue |
| SWE-rebench | these, and `install_config` | solves the issue |
| SWE-smith | `image_name`, and neither `base_commit` nor `test_patch` | breaks code whose tests pass |

Columns are those of the data sets' cards on huggingface.co (SWE-bench/SWE-bench, SWE-Gym/SWE-Gym, nebius/SWE-rebench,
SWE-bench/SWE-smith); SWE-smith's repositories end in the commit that they are a copy of.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement

from composer_replication.languages.functions import Skipped
from composer_replication.tasks.spec import is_inside
from composer_replication.types.errors import SourceError

_COLUMNS = ("instance_id", "base_commit", "patch", "test_patch", "FAIL_TO_PASS", "PASS_TO_PASS", "problem_statement")
_SMITH_COLUMNS = ("instance_id", "repo", "patch", "FAIL_TO_PASS", "PASS_TO_PASS", "image_name")
_COPY_OF = re.compile(r".*\.([0-9a-f]{7,40})")
_ON_GITHUB = re.compile(r"[\w.-]+/[\w.-]+")
_MOST_SHOWN = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class RowInstall:
    """What a row of SWE-rebench says about its environment, as far as pip can make it."""

    python: str
    """Version of the interpreter, such as `3.9`; empty for any."""
    requirements: tuple[str, ...]
    files: tuple[str, ...]
    """Files of requirements in the repository, by POSIX path."""
    not_run: tuple[str, ...]
    """Commands and packages that pip cannot take the place of."""

    def left(self) -> str:
        """Return what is not done for the row, as the end of a sentence; empty where nothing is left."""
        more = f" and {len(self.not_run) - _MOST_SHOWN} more" if len(self.not_run) > _MOST_SHOWN else ""
        shown = ", ".join(f"`{command}`" for command in self.not_run[:_MOST_SHOWN])
        return f"its install_config also asks for {shown}{more}, which is not run here" if shown else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """One row."""

    instance_id: str
    repo: str
    base_commit: str
    """A commit's id, or its beginning."""
    patch: str
    test_patch: str
    fail_to_pass: tuple[str, ...]
    pass_to_pass: tuple[str, ...]
    problem_statement: str
    breaks: bool = False
    """The patch breaks the code, and its reverse is the solution."""
    install: RowInstall | None = None

    def source(self, checkout: str) -> str:
        """Return where its base tree is fetched from: `URL@REV`, or `URL` for a copy of that commit alone.

        Args:
            checkout: a path or git URL; the row's `repo` when empty, on GitHub where it is OWNER/NAME.
        """
        place = checkout or (f"https://github.com/{self.repo}.git" if _ON_GITHUB.fullmatch(self.repo) else self.repo)
        url = Path(place).resolve().as_uri() if Path(place).is_dir() else place
        copy = self.breaks and url.rstrip("/").removesuffix(".git").endswith(f"/{self.repo.rpartition('/')[2]}")
        return url if copy else f"{url}@{self.base_commit}"


def read_instances(file: Path) -> Iterator[Instance | Skipped]:
    """Read the rows of a JSONL file as SWE-bench, SWE-Gym, SWE-rebench and SWE-smith publish them; lists of tests may be lists or
    JSON in a string.

    A row that is no instance is yielded as `Skipped`, by the number of its line.

    Raises:
        SourceError: the file cannot be read.
    """
    try:
        lines = file.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise SourceError(f"{file} cannot be read: {error}", fix="name a JSONL file with the columns of SWE-bench") from error
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                yield _instance(json.loads(line))
            except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
                columns = f"each row needs the columns {', '.join(_COLUMNS)}, or, as in SWE-smith, {', '.join(_SMITH_COLUMNS)}"
                yield Skipped(f"line {number}", f"it is not an instance ({type(error).__name__}: {error}); {columns}")


def _instance(row: Any) -> Instance:
    """Read one row. Raises ValueError, KeyError, TypeError, AttributeError or RecursionError on one that is no instance."""
    json.dumps(row, ensure_ascii=False).encode()  # half a surrogate pair is a ValueError
    breaks = "image_name" in row and not row.get("base_commit") and not row.get("test_patch")
    if breaks:
        row = {"problem_statement": "", **row, "base_commit": _copied_commit(str(row["repo"])), "test_patch": ""}
    values = {name.lower(): row[name] for name in _COLUMNS}
    for name in ("fail_to_pass", "pass_to_pass"):
        tests = json.loads(values[name]) if isinstance(values[name], str) else values[name]
        values[name] = tuple(map(str, tests))
        outside = [test_id for test_id in values[name] if not is_inside(test_id.partition("::")[0])]
        if outside:
            raise ValueError(f"{outside[0][:80]} lies outside of the repository")
    if breaks and values["problem_statement"] is None:
        values["problem_statement"] = ""
    wrong = [name for name, value in values.items() if not isinstance(value, str | tuple)]
    if wrong:
        raise TypeError(f"{wrong[0]} is not a text")
    config = row.get("install_config")
    config = json.loads(config) if isinstance(config, str) and config.strip() else config
    install = _install(config) if isinstance(config, Mapping) else None
    return Instance(repo=str(row.get("repo", "")), breaks=breaks, install=install, **values)


def _copied_commit(repo: str) -> str:
    """Return the commit that a repository of SWE-smith is a copy of. Raises ValueError."""
    match = _COPY_OF.fullmatch(repo)
    if match is None:
        raise ValueError(f"repo {repo[:80]} does not end in the commit that it is a copy of")
    return match[1]


def _install(config: Mapping[str, Any]) -> RowInstall:
    """Read `install_config`: `python`, `pip_packages`, `reqs_path`, `packages`, and of `pre_install` and `install` what pip does.

    The project itself is not installed: its tests find it in the tree.
    """
    requirements: list[str] = []
    files = _texts(config.get("reqs_path"))
    not_run = [*_texts(config.get("pre_install")), *_texts(config.get("env_yml_path"))]
    for word in _texts(config.get("pip_packages")):
        (requirements if _is_requirement(word) else not_run).append(word)
    for text in _texts(config.get("packages")):
        for word in text.split():
            if _is_requirement(word) and not word.endswith((".txt", ".yml", ".yaml")):
                requirements.append(word)
            elif word.endswith(".txt"):
                files = files or [word]
            else:
                not_run.append(f"packages: {word}")
    for command in (part.strip() for text in _texts(config.get("install")) for part in re.split(r"&&|;|\n", text)):
        asked = _asked_of_pip(command)
        if asked is None:
            not_run += [command] if command else []
        else:
            requirements += asked[0]
            files += asked[1]
    return RowInstall(
        python=str(config.get("python") or ""),
        requirements=tuple(dict.fromkeys(requirements)),
        files=tuple(dict.fromkeys(path for path in files if is_inside(path))),
        not_run=tuple(dict.fromkeys(not_run)),
    )


def _asked_of_pip(command: str) -> tuple[list[str], list[str]] | None:
    """Return the requirements and the files of requirements that a `pip install` names, without the project itself; None for any
    other command."""
    try:
        words = shlex.split(command)
    except ValueError:
        return None
    words = words[2:] if words[:2] in (["python", "-m"], ["python3", "-m"]) else words
    if words[:2] not in (["pip", "install"], ["pip3", "install"]):
        return None
    requirements: list[str] = []
    files: list[str] = []
    rest = iter(words[2:])
    for word in rest:
        if word in ("-r", "--requirement"):
            files += [next(rest, "")]
        elif word in ("-e", "--editable"):
            next(rest, "")
        elif _is_requirement(word):
            requirements.append(word)
        elif not word.startswith(("-", ".")):
            return None
    return requirements, files


def _is_requirement(word: str) -> bool:
    try:
        return Requirement(word).url is None
    except InvalidRequirement:
        return False


def _texts(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value] if value.strip() else []
    return [item for item in value if isinstance(item, str) and item.strip()] if isinstance(value, list | tuple) else []
