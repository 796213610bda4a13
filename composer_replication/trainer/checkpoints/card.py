"""The model card of a run's checkpoints (https://huggingface.co/docs/hub/model-cards)."""

from __future__ import annotations

import os
from collections.abc import Sequence

from composer_replication.config import RunConfig
from composer_replication.loss.forward.model_checkpoint import CARD
from composer_replication.observe.run_dir import RunDir
from composer_replication.types.errors import StorageError

FORGEABLE = (
    "tasks.forgeable = true: this run also uses tasks on which a program that does not implement the feature can be rewarded. A "
    "higher reward need not mean a better policy: read the trajectories."
)
"""Said by the terminal, the report and the checkpoints of a run that takes such tasks."""


def write_card(run_dir: RunDir, config: RunConfig) -> None:
    """Write the card that each checkpoint of the run gets a copy of. Raises StorageError."""
    path = run_dir.ckpt_path / CARD
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    text = _text(config)
    try:
        if path.is_file() and path.read_text(encoding="utf-8") == text:
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.write_text(text, encoding="utf-8")
        partial.replace(path)
    except OSError as error:
        raise StorageError(f"{path} cannot be written: {error}", fix="free disk space and continue with --resume") from error


def _text(config: RunConfig) -> str:
    lines = [
        "---",
        "library_name: transformers",
        "tags: [composer-replication, reinforcement-learning]",
        "---",
        "",
        f"# {config.name}",
        "",
        f"Trained from `{config.model.path}` on {_tasks(config)} with seed {config.seed}. `loop.json` says after which step.",
        *_warnings(config),
    ]
    return "\n".join(lines) + "\n"


def _tasks(config: RunConfig) -> str:
    return f"the environment `{config.env.use}`" if config.env.use is not None else f"the tasks of `{config.tasks.train}`"


def _warnings(config: RunConfig) -> Sequence[str]:
    return ["", f"**{FORGEABLE}**"] if config.tasks.forgeable else []
