"""Fields of a run file on a command line."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

import typer

from composer_replication.config import RunConfig
from composer_replication.types.errors import ConfigError


def refuse_misspelt(context: typer.Context, words: Sequence[str]) -> None:
    """Reject a word that nearly matches one of the command's own options: it is not an override. Raises ConfigError."""
    own = [name for parameter in context.command.params for name in parameter.opts if name.startswith("--")]
    for word in words:
        name = word.partition("=")[0]
        close = difflib.get_close_matches(name, own, n=1)
        if close and name.startswith("--") and name[2:].replace("-", "_") not in RunConfig.model_fields:
            raise ConfigError(f"there is no option {name}", fix=f"did you mean {close[0]}?")
