"""The PRIME-RL settings that a run may set: they change where and how fast it runs, not its result or where its state is."""

from __future__ import annotations

from typing import Any

from composer_replication.config.section import flat
from composer_replication.recipes.prime_rl.settings import RUN_FILE

_OURS = tuple(
    table + name
    for table, names in {
        "": "bench clean_output_dir ckpt dry_run file_monitor max_steps model output_dir seq_len slurm tokenizer",
        "inference.": "dry_run enable_lora model.name output_dir slurm vllm_extra.max_model_len vllm_extra.seed",
        "orchestrator.": (
            "algo batch_size bench ckpt eval file_monitor group_size max_steps model optim output_dir "
            "post_batch_filters pre_batch_filters renderer seq_len token_batch_size tokenizer train"
        ),
        "trainer.": (
            "bench ckpt data file_monitor loss max_concurrent_runs max_steps model.lora model.name model.seq_len "
            "optim output_dir scheduler tokenizer"
        ),
    }.items()
    for name in names.split()
)
"""Settings that the channels, resuming or the import of metrics depend on, in addition to all that follow from the run file."""
_FREE = (
    "ckpt.keep_interval",
    "ckpt.keep_last",
    "deployment",
    "env_vars",
    "orchestrator.env_vars",
    "orchestrator.model.client",
)
"""Of these, or of what holds them, those that are free after all."""
_NEVER = (f"env_vars.{RUN_FILE}", f"orchestrator.env_vars.{RUN_FILE}")
"""How the processes find the run file."""


def is_ours(key: str, made: dict[str, Any]) -> bool:
    """Return whether a dotted name, a table that holds it, or a name below it is refused; `made` follows from the run file."""
    if any(_meet(key, one) for one in _NEVER):
        return True
    if any(_within(key, one) for one in _FREE):
        return False
    return any(_meet(key, one) for one in (*_OURS, *flat(made)))


def _within(key: str, table: str) -> bool:
    return f"{key}.".startswith(f"{table}.")


def _meet(key: str, other: str) -> bool:
    return _within(key, other) or _within(other, key)
