"""Messages between this machine and a remote one: a command and its tree one way, a result or an error the other."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from composer_replication.sandbox.protocol import Command, Ending, ExecResult, Limits, Tree
from composer_replication.sandbox.transfer.archive import pack_files, unpack_files
from composer_replication.sandbox.transfer.requests import check_paths
from composer_replication.types.errors import ComposerError, SandboxError, SandboxUnavailableError, TaskError

Archive = tuple[dict[str, Any], list[bytes]]
"""The entries that `archive.pack` takes and `archive.unpack` returns."""

_ERRORS: Mapping[str, type[ComposerError]] = {e.__name__: e for e in (SandboxError, SandboxUnavailableError, TaskError)}
"""Errors a remote machine may report; a name from there never stands for any other class."""


def request_archive(tree: Tree, command: Command, files: bytes) -> Archive:
    """Pack `command` over the tree whose base is packed in `files`."""
    listed, contents = pack_files(tree.changes)
    facts = {
        "argv": list(command.argv),
        "python": str(command.python),
        "env": dict(command.env),
        "limits": dataclasses.asdict(command.limits),
        "read_back": command.read_back,
        "changes": listed,
    }
    return facts, [files, command.stdin, *contents]


def command_of(facts: Mapping[str, Any], blobs: Sequence[bytes]) -> tuple[Command, bytes, dict[str, bytes | None]]:
    """Unpack what `request_archive` packed: the command, the packed base, the changes. Raises KeyError, TypeError or
    ValueError."""
    files, stdin, *contents = blobs
    command = Command(
        argv=tuple(facts["argv"]),
        python=Path(facts["python"]),
        stdin=stdin,
        env=facts["env"],
        limits=Limits(**facts["limits"]),
        read_back=facts["read_back"],
    )
    return command, files, unpack_files(facts["changes"], contents)


def result_archive(result: ExecResult) -> Archive:
    """Pack the result of a command."""
    listed, contents = pack_files(result.changes or {})
    facts = {
        "ending": str(result.ending),
        "returncode": result.returncode,
        "wall_s": result.wall_s,
        "cpu_s": result.cpu_s,
        "changes": None if result.changes is None else listed,
        "not_kept": list(result.not_kept),
    }
    return facts, [result.stdout, result.stderr, result.channel, *contents]


def result_of_archive(facts: Mapping[str, Any], blobs: Sequence[bytes]) -> ExecResult:
    """Unpack what `result_archive` packed. Raises KeyError, TypeError or ValueError, and SandboxError for a path outside the
    tree."""
    stdout, stderr, channel, *contents = blobs
    changes = None if facts["changes"] is None else unpack_files(facts["changes"], contents)
    check_paths(changes or ())
    return ExecResult(
        ending=Ending(facts["ending"]),
        returncode=int(facts["returncode"]),
        stdout=stdout,
        stderr=stderr,
        channel=channel,
        wall_s=_finite(facts["wall_s"]),
        cpu_s=_finite(facts["cpu_s"]),
        changes=changes,
        not_kept=tuple(map(str, facts["not_kept"])),
    )


def _finite(seconds: Any) -> float:
    if not math.isfinite(value := float(seconds)):
        raise ValueError(f"{seconds} seconds")
    return value


def error_facts(error: ComposerError) -> dict[str, Any]:
    """Convert an error to an answer."""
    return {"error": type(error).__name__, "message": error.message, "fix": error.fix}


def raise_error(facts: Mapping[str, Any], place: str) -> None:
    """Raise what `error_facts` packed at `place`, if the answer is one; of a class known here, else SandboxError."""
    if "error" in facts:
        fix = facts.get("fix")
        raise _ERRORS.get(str(facts["error"]), SandboxError)(
            f"{place}: {facts.get('message')}", fix=None if fix is None else str(fix)
        )
