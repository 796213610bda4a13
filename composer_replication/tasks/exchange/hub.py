"""Datasets of tasks on the Hugging Face Hub."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from composer_replication.tasks.exchange.archive import ENDING
from composer_replication.tasks.exchange.dataset import BUILDS
from composer_replication.types.errors import BackendError, ConfigError, MissingExtraError
from composer_replication.types.hub_errors import hub_errors

_NAME = r"[A-Za-z0-9](?:[\w.-]{0,94}[A-Za-z0-9_])?"
_KIND = "dataset"


def check_repo_id(repo_id: str) -> str:
    """Return the name of a repository. Raises ConfigError for anything else."""
    if not re.fullmatch(f"{_NAME}/{_NAME}", repo_id, flags=re.ASCII) or ".." in repo_id or "--" in repo_id:
        raise ConfigError(f"{repo_id} is no name of a dataset", fix="write it as OWNER/NAME")
    return repo_id


def push_dataset(dataset: Path, repo_id: str, *, public: bool = False) -> str:
    """Upload a dataset in place of the tasks that the repository has; returns its address.

    The repository is made where there is none. An interrupted upload is continued by the same call.

    Args:
        public: let everybody see it.

    Raises:
        ConfigError: there is no token, it may not write there, or the repository is public and `public` is not said.
        MissingExtraError: `huggingface_hub` is not installed.
        BackendError: the Hub fails or does not answer.
    """
    hub = _client()
    with _understood("write to this namespace"):
        api = hub.HfApi()
        api.create_repo(repo_id, repo_type=_KIND, private=not public, exist_ok=True)
        private = api.repo_info(repo_id, repo_type=_KIND).private
        if not private and not public:
            raise ConfigError(f"{repo_id} is public", fix="allow that with --public, or name another repository")
        api.upload_folder(
            repo_id=repo_id,
            folder_path=dataset,
            repo_type=_KIND,
            commit_message="Tasks for coding agents",
            delete_patterns=[f"{BUILDS}/*{ENDING}"],
        )
        if private and public:
            api.update_repo_settings(repo_id, repo_type=_KIND, private=False)
        return f"{api.endpoint}/datasets/{repo_id}"


def fetch_dataset(repo_id: str, revision: str | None = None) -> tuple[Path, str]:
    """Download a dataset into the client's cache; returns where it is, and its commit.

    Args:
        revision: a branch, a tag or a commit; the main branch by default.

    Raises:
        ConfigError: there is no such dataset or revision, or it is private and the token may not read it.
        MissingExtraError: `huggingface_hub` is not installed.
        BackendError: the Hub fails or does not answer.
    """
    hub = _client()
    with _understood("read this dataset"):
        commit = str(hub.HfApi().repo_info(repo_id, repo_type=_KIND, revision=revision).sha)
        folder = hub.snapshot_download(repo_id, repo_type=_KIND, revision=commit, allow_patterns=[f"{BUILDS}/*{ENDING}"])
        return Path(folder), commit


def _client() -> Any:
    try:
        import huggingface_hub
    except ModuleNotFoundError as error:
        raise MissingExtraError(
            "tasks are shared by way of huggingface_hub, which is not installed", fix="pip install 'composer-replication[hf]'"
        ) from error
    return huggingface_hub


@contextmanager
def _understood(may: str) -> Iterator[None]:
    with hub_errors(may=may):
        try:
            yield
        except RuntimeError as error:  # of hf_xet, which moves large files
            raise BackendError(f"Hugging Face's store failed: {error}", fix="run the same command again") from error
