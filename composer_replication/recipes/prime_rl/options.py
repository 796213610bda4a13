"""The PRIME-RL settings that a run may set: they change where and how fast it runs, not its result or where its state is."""

from __future__ import annotations

from typing import Any

from composer_replication.config.section import flat
from composer_replication.recipes.prime_rl.settings import RUN_FILE

_OURS = (
    "bench",
    "clean_output_dir",
    "ckpt",
    "dry_run",
    "file_monitor",
    "inference.dry_run",
    "inference.enable_lora",
    "inference.model.name",
    "inference.output_dir",
    "inference.slurm",
    "inference.vllm_extra.max_model_len",
    "inference.vllm_extra.seed",
    "max_steps",
    "model",
    "orchestrator.algo",
    "orchestrator.batch_size",
    "orchestrator.bench",
    "orchestrator.ckpt",
    "orchestrator.eval",
    "orchestrator.file_monitor",
    "orchestrator.group_size",
    "orchestrator.max_steps",
    "orchestrator.model",
    "orchestrator.optim",
    "orchestrator.output_dir",
    "orchestrator.post_batch_filters",
    "orchestrator.pre_batch_filters",
    "orchestrator.renderer",
    "orchestrator.seq_len",
    "orchestrator.token_batch_size",
    "orchestrator.tokenizer",
    "orchestrator.train",
    "output_dir",
    "seq_len",
    "slurm",
    "tokenizer",
    "trainer.bench",
    "trainer.ckpt",
    "trainer.data",
    "trainer.file_monitor",
    "trainer.loss",
    "trainer.max_concurrent_runs",
    "trainer.max_steps",
    "trainer.model.lora",
    "trainer.model.name",
    "trainer.model.seq_len",
    "trainer.optim",
    "trainer.output_dir",
    "trainer.scheduler",
    "trainer.tokenizer",
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
