"""Lint errors in the lines an edit has changed: ruff, in a separate process."""

from __future__ import annotations

import difflib
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from composer_replication.hints.detectors.files import Change, changes
from composer_replication.hints.detectors.reading import Reading
from composer_replication.types import Finding
from composer_replication.types.errors import ConfigError

_SECONDS = 20.0


def _ruff() -> str:
    beside = Path(sys.executable).with_name("ruff")
    found = str(beside) if beside.is_file() else shutil.which("ruff")
    if found is None:
        raise ConfigError("ruff is not installed, so changed lines cannot be linted", fix="pip install ruff, or leave --lint out")
    return found


@dataclass(frozen=True, slots=True)
class LintChanged:
    """ruff's complaints about lines that an edit of a Python file has changed, one finding per edit.

    The text is checked from standard input, without any configuration of the project and without touching a file.

    Raises ConfigError when ruff is not installed, or does not understand `select`.
    """

    select: str = "F,E9,B"
    """Rules, as in `ruff check --select`: by default what is probably wrong, not what is ugly."""
    kinds: tuple[str, ...] = ("lint",)
    needs: frozenset[str] = frozenset({"subprocess"})

    def detect(self, work: Reading, /) -> Iterator[Finding]:
        for change in changes(work.steps):
            if change.after is None or not change.path.endswith(".py"):
                continue
            new = set(changed_lines(change.before, change.after))
            found = [one for one in self._check(change) if one["location"]["row"] in new and one["code"] is not None]
            if found:
                said = [f"line {one['location']['row']}: {one['code']} {one['message']}" for one in found]
                yield change.step.finding("lint", {"path": change.path, "complaints": said})

    def _check(self, change: Change) -> list[dict[str, Any]]:
        run = subprocess.run(
            [_ruff(), "check", "--isolated", "--no-cache", "--exit-zero", "--output-format=json", f"--select={self.select}", "-"],
            input=change.after,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=_SECONDS,
            check=False,
        )
        if run.returncode != 0:
            raise ConfigError(f"ruff cannot run: {run.stderr.strip()[:300]}", fix="choose rules that this ruff knows")
        found: list[dict[str, Any]] = json.loads(run.stdout)
        return found


def changed_lines(before: str | None, after: str) -> list[int]:
    """Return 1-based numbers of the lines of `after` that are new; all of them when the text before is not known."""
    if before is None:
        return list(range(1, after.count("\n") + 2))
    blocks = difflib.SequenceMatcher(None, before.split("\n"), after.split("\n"), autojunk=False).get_opcodes()
    return [line + 1 for tag, _, _, start, stop in blocks if tag != "equal" for line in range(start, stop)]
