"""Training of a process reward model: binary cross-entropy at the steps' last tokens, AdamW, warm-up and cosine decay.

    OUT/
        model/                     the trained model and its tokenizer, for `load_prm`
        metrics.jsonl              {"step", "prm/loss/mean"} per step; {"step", "prm/held_out/..."} per epoch
        held_out.jsonl, .svg       the last probability of every held-out step; their ROC and calibration
        summary.json               written last
        ckpt/step_NNNNN/           the newest two (see loss/forward/model_checkpoint.py)

Nothing is drawn at random but the order of the traces, which follows from the seed and the epoch (dropout is off), so a run that
was killed and resumed ends with the weights and metrics of one that was left alone.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from composer_replication.loss.forward import update_mode, weights_digest
from composer_replication.loss.forward.model_checkpoint import (
    Snapshot,
    latest_checkpoint,
    load_checkpoint,
    read_checkpoint,
    save_checkpoint,
)
from composer_replication.loss.forward.models import save_policy
from composer_replication.observe import Terminal, files
from composer_replication.prm.data import IGNORED, Example, fit, held_out_tasks
from composer_replication.prm.evaluate import Judged, judge, metrics_of, picture
from composer_replication.prm.model import limit_of, pad, parts, step_logits
from composer_replication.prm.options import PrmOptions
from composer_replication.types.errors import ConfigError, ModelError

_FEW_STEPS = 30
"""Fewer held-out steps measure little: a share of 30 is known to a sixth at best."""


class PrmLearner:
    """The model, AdamW, and how many steps were taken: what a checkpoint holds."""

    def __init__(self, model: PreTrainedModel, options: PrmOptions, *, steps: int, pad_id: int) -> None:
        self.policy = model
        self.version = 0
        self._options, self._steps, self._pad_id = options, steps, pad_id
        self._optimizer = torch.optim.AdamW(
            model.parameters(), lr=options.learning_rate, betas=(0.9, 0.95), weight_decay=options.weight_decay
        )

    def update(self, examples: Sequence[Example]) -> float:
        """Take one optimizer step and return the batch's mean loss in nats. Raises ModelError when the gradient is not finite."""
        update_mode(self.policy)
        known = sum(step.label is not None for e in examples for step in e.steps)
        loss = 0.0
        for part in parts(examples, self._options.tokens_at_once):
            piece = step_loss(self.policy, pad([examples[i] for i in part], self._pad_id)) / known
            piece.backward()  # type: ignore[no-untyped-call]  # torch's own annotation is missing
            loss += float(piece.detach())
        norm = nn.utils.clip_grad_norm_(self.policy.parameters(), 1.0)
        if not torch.isfinite(norm):
            raise ModelError(f"the gradient of step {self.version + 1} is not finite", fix="lower learning_rate, and resume")
        for group in self._optimizer.param_groups:
            group["lr"] = self._rate()
        self._optimizer.step()
        self._optimizer.zero_grad()
        self.version += 1
        return loss

    def _rate(self) -> float:
        """Return the learning rate of the next step."""
        warmup = max(1, self._steps // 20)
        decay = 0.1 + 0.45 * (1 + math.cos(math.pi * self.version / self._steps))
        return self._options.learning_rate * min(1.0, (self.version + 1) / warmup) * decay

    def snapshot(self) -> Snapshot:
        """Return what a checkpoint holds."""
        return Snapshot(None, {"optimizer": self._optimizer.state_dict(), "version": self.version})

    def load_state_dict(self, state: Mapping[str, Any], weights: Mapping[str, Tensor]) -> None:
        """Restore what `snapshot` returned; `weights` are the model's."""
        self.policy.load_state_dict(weights)
        self._optimizer.load_state_dict(state["optimizer"])
        self.version = state["version"]


def step_loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    """Sum of the cross-entropies, in nats, at the labelled positions of a batch (`model.pad`); no other has any part in it."""
    labelled = batch["labels"] != IGNORED
    logits = step_logits(model, batch, labelled)
    wanted = batch["labels"][labelled].to(logits.device)
    return nn.functional.binary_cross_entropy_with_logits(logits, wanted, reduction="sum")


@dataclass(slots=True)
class _Run:
    """One training in its folder."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    train: Sequence[Example]
    held_out: Sequence[Example]
    out: Path
    options: PrmOptions
    dropped: int
    """Steps beyond the limit."""

    @property
    def per_epoch(self) -> int:
        return math.ceil(len(self.train) / self.options.batch_size)

    @property
    def steps(self) -> int:
        return self.options.epochs * self.per_epoch

    @property
    def pad_id(self) -> int:
        return int(self.tokenizer.pad_token_id)  # load_model sees to it that there is one

    def batch(self, step: int) -> list[Example]:
        """Return the examples of a step (0-based): the epoch's order follows from seed and epoch."""
        epoch, number = divmod(step, self.per_epoch)
        order = list(range(len(self.train)))
        random.Random(f"{self.options.seed}/{epoch}").shuffle(order)
        size = self.options.batch_size
        return [self.train[i] for i in order[number * size : (number + 1) * size]]

    def judge(self) -> list[Judged]:
        return judge(self.model, self.held_out, pad_id=self.pad_id, tokens=self.options.tokens_at_once)


def train_prm(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    examples: Sequence[Example],
    out: Path,
    options: PrmOptions,
    *,
    resume: bool = False,
    terminal: Terminal | None = None,
) -> dict[str, Any]:
    """Train `model` in place on the labelled steps of the tasks that are not held out, and return the summary.

    Args:
        out: folder of the run; what is in it is described above.
        resume: continue from the newest checkpoint, where there is one.

    Raises:
        ConfigError: no step has a label or none is within the limit, the labels are of fewer than two tasks or of one kind only,
            `out` holds a run and `resume` is False, or it was begun with other data, another model or other options.
        ModelError: the gradient is not finite.
        CheckpointError: the newest checkpoint is damaged.
        StorageError: `out` cannot be written.
    """
    terminal = terminal or Terminal()
    with files.storage_errors(out):
        out.mkdir(parents=True, exist_ok=True)
    with files.exclusive(out):
        run = _prepare(model, tokenizer, examples, out, options, terminal)
        fingerprint = _fingerprint(run)
        learner = PrmLearner(model, options, steps=run.steps, pad_id=run.pad_id)
        finished = _begin(run, learner, fingerprint, resume=resume)
        if finished is not None:
            terminal.note(f"{out} is finished already")
            return finished
        with terminal.phase("train the process reward model", run.steps) as shown:
            shown.advance(learner.version)
            while learner.version < run.steps:
                _step(run, learner, fingerprint, terminal)
                shown.advance()
        return _finish(run)


def _prepare(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    examples: Sequence[Example],
    out: Path,
    options: PrmOptions,
    terminal: Terminal,
) -> _Run:
    """Prepare the run, and report what it leaves out and how little it measures. Raises ConfigError."""
    limit = limit_of(model, options.max_tokens)
    fitting, dropped = fit(examples, limit.tokens)
    if dropped:
        terminal.note(limit.left_out(dropped, examples))
    labelled = _labelled(fitting)
    if not labelled and _labelled(examples):
        raise ConfigError(
            f"every labelled step ends beyond {limit}",
            fix="raise max_tokens, take a model that reads more, or shorten traces",
        )
    if not labelled:
        raise ConfigError("no step has a label", fix="label steps of the traces that are given")
    chosen = held_out_tasks([e.task_id for e in labelled], options.held_out, seed=options.seed)
    train, held_out = ([e for e in labelled if (e.task_id in chosen) == side] for side in (False, True))
    kinds = {step.label >= 0.5 for e in train for step in e.steps if step.label is not None}
    if len(kinds) < 2:
        raise ConfigError(
            f"every labelled step of the tasks to train on is {'good' if kinds == {True} else 'bad'}",
            fix="give traces with good and bad steps; there is nothing to tell apart",
        )
    measured = sum(step.label is not None for e in held_out for step in e.steps)
    if measured < _FEW_STEPS:
        terminal.note(f"warning: only {measured} held-out steps are measured; raise held_out or give more traces to learn much")
    return _Run(model, tokenizer, train, held_out, out, options, dropped)


def _labelled(examples: Sequence[Example]) -> list[Example]:
    return [e for e in examples if any(step.label is not None for step in e.steps)]


def _fingerprint(run: _Run) -> dict[str, Any]:
    """Return what identifies a run: its options, and SHA-256 over the model before training, the traces and their labels."""
    traces, labels = hashlib.sha256(), hashlib.sha256()
    for example in (*run.train, *run.held_out):
        traces.update(json.dumps([example.task_id, example.input_ids]).encode())
        labels.update(json.dumps(example.labels()).encode())
    return {
        "options": dataclasses.asdict(run.options),
        "model": weights_digest(run.model),
        "traces": traces.hexdigest(),
        "labels": labels.hexdigest(),
    }


def _differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Describe the differences; empty when a run can be resumed. Other options change the rest too, so only they are named."""
    old, new = before["options"], now["options"]
    options = [f"{name} {old.get(name)}, not {value}" for name, value in new.items() if old.get(name) != value]
    return ", ".join(options) or ", ".join(f"other {part}" for part in ("model", "traces", "labels") if before[part] != now[part])


def _begin(run: _Run, learner: PrmLearner, fingerprint: Mapping[str, Any], *, resume: bool) -> dict[str, Any] | None:
    """Bring learner and metrics to where the newest checkpoint was written; the summary of a run that is finished."""
    metrics, saved = run.out / "metrics.jsonl", latest_checkpoint(run.out / "ckpt")
    if not resume and (saved is not None or (metrics.exists() and metrics.stat().st_size > 0)):
        raise ConfigError(f"{run.out} already holds a run", fix="continue it with --resume, or name another folder")
    if saved is not None:
        other = _differences(read_checkpoint(saved)["fingerprint"], fingerprint)
        if other:
            raise ConfigError(f"{run.out} was begun with {other}", fix="resume with the same, or name another folder")
        load_checkpoint(saved, learner)
    kept = [line for line in files.read_lines(metrics) if line["step"] <= learner.version]
    files.replace_file(metrics, "".join(files.dump_line(line) + "\n" for line in kept).encode())
    summary = run.out / "summary.json"
    if saved is None or not summary.is_file():
        return None
    found: dict[str, Any] = json.loads(summary.read_text())
    return found


def _step(run: _Run, learner: PrmLearner, fingerprint: Mapping[str, Any], terminal: Terminal) -> None:
    """Take one optimizer step, log what it measured, and save a checkpoint when one is due. The checkpoint comes last: what is
    logged before it and lost is logged again."""
    metrics = run.out / "metrics.jsonl"
    loss = learner.update(run.batch(learner.version))
    line = {"step": learner.version, "prm/loss/mean": loss}
    if learner.version % run.per_epoch == 0:
        measured = metrics_of(run.judge())
        line |= measured
        shown = ", ".join(f"{name.removeprefix('prm/held_out/')} {value:.3f}" for name, value in measured.items())
        terminal.note(f"epoch {learner.version // run.per_epoch}: loss {loss:.3f}; held out: {shown}")
    files.append_line(metrics, files.dump_line(line), durable=False)
    if learner.version % run.options.save_every == 0 or learner.version == run.steps:
        save_checkpoint(run.out / "ckpt", learner.version, learner, run.tokenizer, {"fingerprint": fingerprint})


def _finish(run: _Run) -> dict[str, Any]:
    """Write what the run is for."""
    judged = run.judge()
    with files.storage_errors(run.out / "model"):
        save_policy(run.model, run.tokenizer, run.out / "model")
    rows = "".join(files.dump_line(dataclasses.asdict(one)) + "\n" for one in judged)
    files.replace_file(run.out / "held_out.jsonl", rows.encode())
    files.replace_file(run.out / "held_out.svg", picture(judged).encode())
    summary = {
        "optimizer_steps": run.steps,
        "tasks": len({e.task_id for e in run.train}),
        "traces": len(run.train),
        "steps": sum(step.label is not None for e in run.train for step in e.steps),
        "held_out_tasks": sorted({e.task_id for e in run.held_out}),
        "held_out_traces": len(run.held_out),
        "held_out_steps": len(judged),
        "steps_too_long": run.dropped,
        **metrics_of(judged, interval=True),
    }
    files.replace_file(run.out / "summary.json", (files.dump_line(summary) + "\n").encode())
    return summary
