"""PRIME-RL's entry points with our algorithm registered: `python -m composer_replication.recipes.prime_rl.launcher rl @ rl.toml`.

`orchestrator` puts `ComposerAlgorithm` in the place of GRPO and continues as the stock command does. `rl` starts PRIME-RL's
processes by their names; for as long as it runs, the name `orchestrator` stands for ours.
"""

from __future__ import annotations

import importlib
import os
import shlex
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from composer_replication.recipes.prime_rl.algorithm import register
from composer_replication.types.errors import ComposerError, ConfigError, MissingExtraError
from composer_replication.types.guarded_streams import guard_streams


def main(words: Sequence[str] | None = None) -> int:
    """Run one of PRIME-RL's commands and return the exit status; PRIME-RL's own commands leave by SystemExit."""
    guard_streams()
    words = list(sys.argv[1:] if words is None else words)
    try:
        _start(words)
    except ComposerError as error:
        print(f"error: {error}", file=sys.stderr)  # noqa: T201 - this is a command
        return error.exit_code
    return 0


def orchestrator_command(folder: Path) -> Path:
    """Write the command `orchestrator` into a folder for the head of PATH."""
    command = folder / "orchestrator"
    command.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m {__spec__.name} orchestrator "$@"\n')
    command.chmod(0o755)
    return command


def _start(words: list[str]) -> None:
    if not words or words[0] not in ("orchestrator", "rl"):
        raise ConfigError("the first word is neither orchestrator nor rl", fix="for example: rl @ rl.toml")
    name, sys.argv = words[0], words
    if name == "orchestrator":
        register()
        _entry(name).main()
        return
    with tempfile.TemporaryDirectory() as folder:
        orchestrator_command(Path(folder))
        own = str(Path(sys.executable).parent)  # torchrun, inference, ... of the same environment
        os.environ["PATH"] = os.pathsep.join((folder, own, os.environ.get("PATH", os.defpath)))
        _entry(name).main()


def _entry(name: str) -> Any:
    """Import PRIME-RL's module of that name. Raises MissingExtraError."""
    try:
        return importlib.import_module(f"prime_rl.entrypoints.{name}")
    except ModuleNotFoundError as error:
        raise MissingExtraError(
            f"PRIME-RL's command {name} cannot be imported: {error}",
            fix="run this in the environment of a PRIME-RL checkout (docs/prime_rl.md)",
        ) from error


if __name__ == "__main__":
    sys.exit(main())
