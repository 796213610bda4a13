"""Keeping clear of benchmarks: tasks must not train on what a model is measured with."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from composer_replication.tasks.proofs.leak import body_shingles
from composer_replication.tasks.sources.source import PristineTree
from composer_replication.types.errors import ConfigError, SourceError

_SHARE = 0.5
"""A patch that holds this share of a body's runs of tokens is about that body."""
_WORDS = 13
"""Words in a row that two texts do not share by chance (GPT-3, 2005.14165, appendix C)."""
_CODE = ("canonical_solution", "code", "solution")
_TEXT = ("problem_statement", "prompt", "text", "instruction")
_FIX = (
    "name a JSONL file with columns as SWE-bench has them (instance_id, repo, patch), or a text file with one OWNER/NAME per line"
)


class Benchmarks:
    """Repositories, solutions and questions of benchmarks, from files.

    A `.jsonl` file holds one instance per row, in columns of SWE-bench (`repo`, `instance_id`, `patch`, `problem_statement`),
    HumanEval (`task_id`, `prompt`, `canonical_solution`) or MBPP (`task_id`, `text`, `code`); `solution` and `instruction` are
    read too, and each may be absent. Any other file holds one repository per line, `OWNER/NAME` or a name alone; `#` begins a
    comment.

    Raises:
        ConfigError: a file cannot be read.
    """

    def __init__(self, files: Iterable[Path]) -> None:
        self._repositories: dict[str, str] = {}
        self._holders: dict[int, set[str]] = {}
        self._askers: dict[int, str] = {}
        for file in files:
            try:
                text = file.read_text(encoding="utf-8")
                rows = [json.loads(line) for line in text.splitlines() if line.strip()] if file.suffix == ".jsonl" else None
            except (OSError, ValueError) as error:
                raise ConfigError(f"the list of benchmarks {file} cannot be read: {error}", fix=_FIX) from error
            if rows is None:
                rows = [{"repo": name} for line in text.splitlines() if (name := line.partition("#")[0].strip())]
            for row in rows:
                self._add(row, file)

    def _add(self, row: Any, file: Path) -> None:
        if not isinstance(row, dict):
            raise ConfigError(f"the list of benchmarks {file} has a row that is not an object", fix=_FIX)
        repo = str(row.get("repo") or "")
        instance = str(row.get("instance_id") or row.get("task_id") or repo or "an instance")
        if repo:
            self._repositories[_short(repo)] = file.name
        lines = str(row.get("patch") or "").splitlines()
        changed = "\n".join(line[1:] for line in lines if re.match(r"[+-](?![+-]{2} )", line))
        for code in (changed, *(str(row.get(column) or "") for column in _CODE)):
            for shingle in body_shingles(code):
                self._holders.setdefault(shingle, set()).add(instance)
        for column in _TEXT:
            self._askers.update(dict.fromkeys(_runs_of_words(str(row.get(column) or "")), instance))

    def check(self, source: PristineTree) -> None:
        """Raise SourceError when the project is a benchmark's."""
        file = self._repositories.get(_short(source.label.partition("@")[0])) or self._repositories.get(_short(source.name))
        if file is not None:
            raise SourceError(
                f"{source.name} is a repository of a benchmark ({file})", fix="choose another project, or take it from the list"
            )

    def instance_with(self, bodies: Iterable[bytes]) -> str | None:
        """Return the instance whose patch holds one of these bodies, or None. Bodies too short to be distinctive are ignored."""
        for body in bodies:
            wanted = body_shingles(body.decode(errors="replace"))
            found = Counter(instance for shingle in wanted for instance in self._holders.get(shingle, ()))
            instance, count = max(found.items(), key=lambda item: (item[1], item[0]), default=("", 0))
            if wanted and count >= _SHARE * len(wanted):
                return instance
        return None

    def instance_asking(self, text: str) -> str | None:
        """Return the instance whose question shares 13 words in a row with `text`, or None."""
        return next((self._askers[run] for run in _runs_of_words(text) if run in self._askers), None)


def _runs_of_words(text: str) -> list[int]:
    """Return hashes, good in this process, of every 13 words in a row, whatever their case and punctuation."""
    words = re.findall(r"\w+", text.lower())
    return [hash(tuple(words[n : n + _WORDS])) for n in range(len(words) - _WORDS + 1)]


def _short(repository: str) -> str:
    """Return the last part of a repository's name or URL, in lower case, as package indices spell it."""
    name = re.split(r"[/:]", repository.partition("==")[0].rstrip("/"))[-1].removesuffix(".git")
    return re.sub(r"[-_.]+", "-", name.lower())
