"""The run file's section of an environment that is not a folder of our tasks."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from composer_replication.config.section import Section


class EnvConfig(Section):
    """Another environment than the tasks of `tasks.train`. Leave it out to train on those."""

    use: Annotated[str, Field(min_length=1)] | None = None
    """Name what to train on: `function` for prompts and a Python function, `gymnasium` for an environment of that kind, the name
    of an entry point in the group `composer_replication.envs`, or `package.module:function` for one of your own. It is called
    with `options` and returns an `EnvSource`."""
    options: dict[str, Any] = {}  # noqa: RUF012 - copied
    """Pass these keyword arguments to it, e.g. `{ id = "wordle" }`. Texts that begin with `./` or `../` are paths relative to the
    run file's folder."""
    path: Path | None = None
    """Add this folder to Python's search path before `use` and `reward.function` are imported. By default it is the run file's
    folder."""
