"""Supervised fine-tuning before RL."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, model_validator

from composer_replication.config.section import Positive, ReadBy, Section, refuse

_IF_ENABLED = ReadBy("enabled", True)


class SftConfig(Section):
    """Supervised fine-tuning on demonstrations that pass their tests: `composer sft RUN.toml`."""

    enabled: bool = False
    """Fine-tune before RL: `composer sft` trains, and `composer train` starts from what it wrote instead of from `model.path`.
    Turn it on for a model that does not call tools yet, or that passes almost no task. It trains in this process, or in those
    that torchrun starts, whatever substrate RL has."""
    oracle: Annotated[bool, _IF_ENABLED] = True
    """Demonstrate every training task by its own solution, written with the agent's edit and submit tools. It teaches the format
    of calls and the code, and neither how to look around nor how to recover."""
    samples: Annotated[int, Field(ge=0), _IF_ENABLED] = 0
    """Let the model at `model.path` try every training task this many times, and learn from what passes (rejection sampling).
    Raise it when the model passes some tasks."""
    reattempts: Annotated[bool, _IF_ENABLED] = False
    """Try each failed sample once more from its first error turn on, with a hint about it in the context, and learn from what
    passes then as if there had been no hint (context distillation; STaR's rationalization, arXiv:2203.14465). It needs `samples`;
    error turns are found by `loss.hint.detectors`, hints are written by `loss.hint.generators`; `judge` and `consensus` of those
    write none here. Turn it on when the model passes few tasks."""
    traces: Annotated[tuple[Path, ...], _IF_ENABLED] = ()
    """Learn from the conversations in these files too: `trajectories.jsonl` of `composer rollout --out`, by this model or by a
    teacher (`--policy teacher:NAME`), or `traces.jsonl` of `composer traces import --out`. Rollouts that failed or could not be
    graded are left out, and so is what belongs to a held-out task or writes what one deletes. A log that does not say how it
    ended is learnt from as if it had passed; the run says how many those are."""
    per_task: Annotated[Positive, _IF_ENABLED] = 4
    """Learn from at most this many different demonstrations of a task from each source, so that easy tasks do not dominate."""
    steps: Annotated[Positive, _IF_ENABLED] = 50
    """Take this many optimizer steps. Two or three passes over the demonstrations are usual; the run says how many these are."""
    batch: Annotated[Positive, _IF_ENABLED] = 16
    """Learn from this many demonstrations in a step."""
    learning_rate: Annotated[float, Field(gt=0.0), _IF_ENABLED] = 1e-5
    """Use this learning rate after warm-up; it falls linearly to 0. The other settings are those of `[optimizer]`. For LoRA
    adapters start at ten times as much."""

    @model_validator(mode="after")
    def _has_a_source(self) -> Self:
        if self.enabled and not (self.oracle or self.samples or self.traces):
            refuse("oracle = false, samples = 0 and no traces: there is nothing to learn from", "switch one of them on")
        if self.reattempts and not self.samples:
            refuse("reattempts = true and samples = 0: there is no attempt to repeat", "raise samples, or set reattempts = false")
        return self
