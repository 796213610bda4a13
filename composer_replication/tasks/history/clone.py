"""A repository with its whole history, kept beside the build, and trees of single commits of it."""

from __future__ import annotations

import re
import shutil
from dataclasses import replace
from pathlib import Path

from composer_replication.tasks.files import storage_errors
from composer_replication.tasks.sources.fetch import clone, is_git_url
from composer_replication.tasks.sources.source import PristineTree, fetch_source
from composer_replication.types.errors import SourceError

REPOSITORY = "history"
"""The folder of a build's state that holds the clone."""


def fetch_newest(source: str, tree: Path, state: Path) -> PristineTree:
    """Clone the repository `source` with its whole history below `state`, and copy the tree of its newest commit to `tree`.

    Args:
        source: the folder of a repository, of which only what is committed counts, or a git URL (`URL@REV`).

    Raises:
        SourceError: it is neither, cannot be fetched, or holds no file.
        StorageError: `state` or `tree` cannot be written.
    """
    folder = Path(source).resolve() if Path(source).is_dir() else None
    if folder is None and not is_git_url(source):
        raise SourceError(
            f"{source!r} has no history: it is neither a git URL nor the folder of a repository",
            fix="name the project's repository, such as a URL that ends in .git",
        )
    fresh = state / f"{REPOSITORY}.new"
    with storage_errors(state):
        shutil.rmtree(fresh, ignore_errors=True)
    url, commit = clone(source if folder is None else folder.as_uri(), fresh, whole=True)
    with storage_errors(state):
        shutil.rmtree(state / REPOSITORY, ignore_errors=True)
        fresh.rename(state / REPOSITORY)
    name = re.split(r"[/:]", url.rstrip("/"))[-1].removesuffix(".git")
    place = url if folder is None else f"folder:{folder.name}"
    fetched = tree_of(state / REPOSITORY, commit, tree)
    return replace(fetched, name=name if folder is None else folder.name, label=f"{place}@{commit}")


def tree_of(repository: Path, commit: str, tree: Path) -> PristineTree:
    """Copy the files of one commit of a clone to the new folder `tree`. Raises SourceError and StorageError as `fetch_source`."""
    return fetch_source(f"{repository.resolve().as_uri()}@{commit}", tree)
