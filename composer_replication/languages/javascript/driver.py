"""Run the tests of a project of JavaScript inside a sandbox, and report each by id over the private channel.

A reporter of ours notes each test's outcome in a file. What tests print, how a process ends and what a framework says in the end
count for nothing: a test without a line of its own has not passed.

This text runs behind that of `toolchain`, in one namespace.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from composer_replication.languages.javascript.toolchain import (
        ENVIRONMENT,
        WORK,
        commands_of,
        error_in,
        lines_of,
        link_modules,
        run_limited,
    )
    from composer_replication.languages.tell import tell


def run_files(request: Mapping[str, Any], files: Sequence[str]) -> tuple[dict[str, str], dict[str, str], list[str]]:
    """Run test files: outcomes and messages by id, and `file: message` for those that could not be loaded."""
    outcomes: dict[str, str] = {}
    messages: dict[str, str] = {}
    errors: list[str] = []
    out = os.path.join(WORK, "outcomes")
    for command, file in commands_of(request["framework"], files):
        extra = {"COMPOSER_MARK": request["mark"], "COMPOSER_TEST": os.path.abspath(file) if file else ""}
        extra["COMPOSER_FRAMEWORK"] = request["framework"]
        status, printed = run_limited(command, request["file_s"] if file else request["all_s"], extra)
        lines = [line for line in lines_of(out, request["mark"]) if len(line) == 4 and all(isinstance(v, str) for v in line)]
        for path, name, state, said in lines:
            where = os.path.relpath(path or file or "package.json")
            if state == "error":
                errors.append(f"{where}: {said or 'it cannot be loaded'}")
                continue
            test_id = numbered(f"{where}::{' '.join(name.split())}", outcomes)
            outcomes[test_id] = state
            if state != "passed":
                messages[test_id] = said or state
        if not lines and status != 0:
            errors.append(f"{file or 'package.json'}: {error_in(printed) if status is not None else 'it does not end'}")
        if "-x" in request["extra"] and any(state not in ("passed", "skipped") for state in outcomes.values()):
            break
    return outcomes, messages, errors


def numbered(test_id: str, known: Mapping[str, str]) -> str:
    """Return the id, with a number where tests before it have the same name."""
    number, found = 1, test_id
    while found in known:
        number += 1
        found = f"{test_id} #{number}"
    return found


def answered(request: Mapping[str, Any]) -> dict[str, Any]:
    """Run what is asked for."""
    link_modules(request["support"])
    wanted = request["ids"]
    files = sorted({test_id.partition("::")[0] for test_id in wanted}) if wanted else request["files"]
    files = [file for file in files if os.path.isfile(file)]
    answer: dict[str, Any] = {"status": 0, "tampered": False}
    if request["twice"]:
        answer["earlier"] = told(run_files(request, files)[0], wanted)
    outcomes, answer["failures"], answer["collect_errors"] = run_files(request, files)
    if request["record"]:
        answer["observed"] = recorded()
    return {**answer, "outcomes": told(outcomes, wanted)}


def told(outcomes: dict[str, str], wanted: Sequence[str]) -> dict[str, str]:
    """Return the outcomes of what was asked for: all, or each id, missing where it has none."""
    return {test_id: outcomes.get(test_id, "missing") for test_id in wanted} if wanted else outcomes


def recorded() -> list[Any]:
    """Return the lines that instrumented code wrote, with test files relative to the root."""
    found = []
    try:
        with open(ENVIRONMENT["COMPOSER_RECORD"], encoding="utf-8", errors="replace") as file:
            lines = [json.loads(line) for line in file if line.endswith("\n")]
    except (OSError, ValueError, RecursionError):
        return []
    for line in lines:
        if isinstance(line, list) and len(line) == 4 and line[0] == "hit" and all(isinstance(text, str) for text in line[1:3]):
            path = line[1].removeprefix("file://")
            line[1] = os.path.relpath(path) if path.startswith("/") else path
            line[2] = " ".join(line[2].split())
        found.append(line)
    return found


if __name__ == "__main__":
    asked = json.load(sys.stdin)
    tell(asked["nonce"], answered(asked))
