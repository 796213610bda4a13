"""A run on verl: pairs are collected in this process; then verl trains, and its records are read step by step."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import PreTrainedModel

from composer_replication.config import ModelConfig, RunConfig
from composer_replication.loss.forward import LogprobCache
from composer_replication.loss.forward.model_checkpoint import Snapshot, latest_checkpoint, save_checkpoint
from composer_replication.loss.forward.models import load_policy
from composer_replication.observe import Phase, RunDir
from composer_replication.observe.files import replace_file, storage_errors
from composer_replication.observe.summary import SummaryRow
from composer_replication.recipes.limits import on_cpu
from composer_replication.recipes.verl.dataset import evaluation_rows, training_rows, write_rows
from composer_replication.recipes.verl.episodes import forget_groups
from composer_replication.recipes.verl.import_metrics import VerlMetrics
from composer_replication.recipes.verl.overrides import Files, check, command_line
from composer_replication.recipes.verl.plan import PLAN, ArmPlan
from composer_replication.recipes.verl.process import Main
from composer_replication.rollouts.transformers_engine import TransformersEngine
from composer_replication.sandbox.scratch import scratch_folder
from composer_replication.tokens import ChatRenderer
from composer_replication.trainer.ask_teachers import teacher_totals
from composer_replication.trainer.checkpoints.restore import refuse_others
from composer_replication.trainer.collector import RolloutCollector
from composer_replication.trainer.journal import RolloutMeter
from composer_replication.trainer.learning.reference import PolicyScorer
from composer_replication.trainer.pairs.replay import collect_pairs, pairs_digest, stored_pairs, wants_replay
from composer_replication.trainer.run_context import RunContext
from composer_replication.types import Pair
from composer_replication.types.errors import BackendError, CheckpointError

__all__ = ["check", "train_arm"]

_MADE_OF = "made_of.json"
"""In an arm's folder: the fingerprint of what it started from."""


async def train_arm(context: RunContext, config: RunConfig, arm: str, shown: Phase) -> SummaryRow:
    """Train one arm from verl's last checkpoint of it, or from the start.

    Raises:
        CheckpointError: an arm is resumed, and its starting weights, tasks or pairs were different.
        BackendError: verl died, broke or stopped making progress; the message names its log.
        ComposerError: any other error of a part of the recipe.
    """
    run_dir = context.run_dir
    folder = run_dir.path.resolve() / "verl" / arm
    recorded = max((line.step for line in run_dir.read_metrics() if line.arm == arm), default=0)
    done = _resume_at(folder / "checkpoints", recorded)
    pairs, window = await _prepared(context, config, arm, folder, done)
    plan = ArmPlan(arm, config, window, folder)
    meter = RolloutMeter()
    journal = context.journal(config, arm, meter)
    journal.rewind(done if done else -1, keep_traces=True)
    meter.rollouts, meter.tokens = _spent(run_dir, arm)
    if wants_replay(config):
        journal.teacher_totals = teacher_totals(context, arm)
    traces = run_dir.read_traces(arm) if wants_replay(config) and not done else ()
    of_step = min(len(pairs), config.loss.replay.pairs_per_step) if config.loss.replay.weight > 0 else 0
    imported = VerlMetrics(plan, journal, of_step, traces)
    shown.advance(done)
    if done < config.steps:
        await _run(context, plan, pairs, imported, shown)
    if latest_checkpoint(run_dir.ckpt_path / arm) is None:
        _keep_weights(run_dir.ckpt_path / arm, folder / "checkpoints", config.steps)
    return journal.summary()


async def _prepared(context: RunContext, config: RunConfig, arm: str, folder: Path, done: int) -> tuple[list[Pair], int]:
    """Return the pairs of the starting policy, collected once, and its context window.

    Raises CheckpointError when `done` steps were taken, or the pairs collected, with other weights, tasks or pairs.
    """
    store = context.run_dir.ckpt_path / arm / "pairs.jsonl"
    wanted = wants_replay(config)
    torch.manual_seed(config.seed)
    model, tokenizer = load_policy(config.model)
    made_of = context.fingerprint(config, model)
    pairs_there = pairs_digest(context, arm)
    if done or pairs_there is not None:
        _refuse_others(folder / _MADE_OF, made_of, pairs_there, store, done)
    _note(folder / _MADE_OF, made_of, pairs_there)
    engine = TransformersEngine(model, tokenizer)
    if not wanted or store.is_file():
        return (stored_pairs(context, arm) if wanted else []), engine.context_window
    with closing(LogprobCache(context.run_dir.ckpt_path / "reference.sqlite")) as known:
        journal = context.journal(config, arm, RolloutMeter())
        collector = RolloutCollector(context, config, engine, ChatRenderer(tokenizer), journal)
        pairs = await collect_pairs(context, config, collector, PolicyScorer(model, known))
    _note(folder / _MADE_OF, made_of, pairs_digest(context, arm))
    return pairs, engine.context_window


def _note(path: Path, made_of: Mapping[str, str], pairs: str | None) -> None:
    """Write down what the arm is made of; verl's checkpoints do not contain it."""
    with storage_errors(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, json.dumps({"fingerprint": dict(made_of), "pairs": pairs}).encode())


def _refuse_others(path: Path, made_of: Mapping[str, str], pairs: str | None, store: Path, done: int) -> None:
    if not path.is_file():
        raise CheckpointError(
            f"{path} is missing: nothing says what the arm's steps were made of",
            fix="restore it, or give the new run another name",
        )
    state = json.loads(path.read_text())
    if not done:  # killed between the pairs and the note of them
        state["pairs"] = pairs
    refuse_others(path.parent, state, fingerprint=made_of, pairs=pairs, store=store)


async def _run(context: RunContext, plan: ArmPlan, pairs: Sequence[Pair], imported: VerlMetrics, shown: Phase) -> None:
    """Run verl from the last checkpoint to the end."""
    config, cpu = plan.config, on_cpu(plan.config)
    forget_groups(plan)
    for old in (plan.fault_path, plan.metrics_path):
        old.unlink(missing_ok=True)
    plan.write()
    environment = {PLAN: str(plan.path), "VERL_FILE_LOGGER_PATH": str(plan.metrics_path)}
    environment |= {"TOKENIZERS_PARALLELISM": "false", "HF_DATASETS_CACHE": str(plan.folder / "cache")}
    environment |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_DEDUP_LOGS": "0"}
    environment |= {"VERL_PLATFORM": "cpu"} if cpu else {}
    environment |= {"OMP_NUM_THREADS": str(config.threads)} if config.threads else {}
    held_out = plan.folder / "held_out.parquet"
    with scratch_folder() as ray:  # a short path, which the sockets need
        files = Files(
            train=write_rows(plan.folder / "train.parquet", training_rows(config, context.coding.train, pairs)),
            held_out=write_rows(held_out, evaluation_rows(context.coding.held_out)) if context.held_out else None,
            checkpoints=plan.folder / "checkpoints",
            outputs=plan.folder / "hydra",
            ray=ray,
            environment=environment,
            begun=shown.done > 0,
        )
        context.terminal.note(f"{plan.arm}: verl writes to {plan.log_path}")
        # Ray counts an empty one
        without = ("CUDA_VISIBLE_DEVICES",) if cpu and not os.environ.get("CUDA_VISIBLE_DEVICES") else ()
        ended = False
        with Main(plan, command_line(config, files, cpu=cpu), environment, without) as main:
            while not ended:
                ended = await main.ended(config.rollout.stall_s)
                for step in imported.steps():
                    shown.advance(step - shown.done)
            if shown.done < config.steps:
                raise BackendError(
                    f"verl ended after {shown.done} of {config.steps} steps: {main.last_words()}", fix=f"read {plan.log_path}"
                )


def _resume_at(checkpoints: Path, recorded: int) -> int:
    """Return the steps behind the checkpoint that verl continues from: its last one whose metrics the run has; 0 without one.

    verl saves a step before it evaluates and logs it: one that was killed in between takes that step again.
    """
    said = checkpoints / "latest_checkpointed_iteration.txt"
    done = int(said.read_text()) if said.is_file() else 0
    if done <= recorded:
        return done
    steps = {int(path.name.rpartition("_")[2]): path for path in checkpoints.glob("global_step_*")}
    found = max((step for step in steps if step <= recorded), default=0)
    with storage_errors(said):
        if found:
            replace_file(said, str(found).encode())
        else:
            said.unlink()
        for step, path in steps.items():
            if step > found:
                shutil.rmtree(path)
    return found


def _spent(run_dir: RunDir, arm: str) -> tuple[int, int]:
    """Return the rollouts and tokens of the steps that are kept."""
    lines = [line.values for line in run_dir.read_metrics() if line.arm == arm]
    found = next((line for line in reversed(lines) if "rollout/total" in line), {})
    return int(found.get("rollout/total", 0)), int(found.get("rollout/tokens_total", 0))


@dataclass(frozen=True, slots=True)
class _Trained:
    """A policy as verl left it; its optimizer is in verl's checkpoint."""

    policy: PreTrainedModel

    def snapshot(self) -> Snapshot:
        return Snapshot(None, {})


def _keep_weights(folder: Path, checkpoints: Path, step: int) -> None:
    """Save the last weights where those of every substrate are. Raises StorageError."""
    saved = checkpoints / f"global_step_{step}" / "actor" / "huggingface"
    model, tokenizer = load_policy(ModelConfig(path=str(saved), device="cpu"))
    save_checkpoint(folder, step, _Trained(model), tokenizer, {"substrate": "verl"})
