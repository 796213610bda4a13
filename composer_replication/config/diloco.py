"""Run-file fields of DiLoCo: replicas that train one model together."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from composer_replication.config.executor import ExecutorConfig
from composer_replication.config.section import Decay, Positive, ReadBy, Section, Share, refuse

_IF_ENABLED = ReadBy("enabled", True)
_Seconds = Annotated[float, Field(gt=0.0)]


class DilocoConfig(Section):
    """DiLoCo over an object store: `composer diloco run`. Each replica rolls out and trains on its own; at intervals all of them
    take one step of an outer optimizer together."""

    enabled: bool = False
    """Train with several replicas."""
    replicas: Annotated[Positive, _IF_ENABLED] = 2
    """Start this many replicas."""
    shard_tasks: Annotated[bool, _IF_ENABLED] = True
    """Divide a step's tasks among the replicas: each takes `rollout.groups / replicas` of them, and no task is taken twice in a
    round. When false, each replica chooses `rollout.groups` tasks from all tasks independently."""
    rendezvous: Annotated[str | None, _IF_ENABLED] = None
    """Exchange weights through this object store: a path, `s3://`, `gs://` or `az://`. Defaults to the folder `store` of the
    run."""
    sync_every: Annotated[Positive, _IF_ENABLED] = 10
    """Synchronise the same weights every H = this many optimizer steps."""
    fragments: Annotated[Positive, _IF_ENABLED] = 1
    """Split the model into this many fragments and synchronise one every `sync_every / fragments` steps."""
    delay: Annotated[int, Field(ge=0), _IF_ENABLED] = 0
    """Keep training for tau = this many optimizer steps while a round is in progress."""
    mix: Annotated[Share, _IF_ENABLED] = 0.0
    """Keep this share alpha of a replica's own weights when it adopts the result of a round."""
    codec: Annotated[Literal["fp32", "bf16", "int8", "int4", "topk", "pulse", "auto"], _IF_ENABLED] = "int8"
    """Compress pseudo-gradients with this codec. What a codec drops is added to the next round (error feedback)."""
    outer_lr: Annotated[float, Field(gt=0.0), _IF_ENABLED] = 0.7
    """Set the learning rate of the outer SGD."""
    outer_momentum: Annotated[Decay, _IF_ENABLED] = 0.9
    """Set the Nesterov momentum of the outer SGD; 0 disables momentum."""
    quorum: Annotated[Positive | None, _IF_ENABLED] = None
    """Hold a round with at least this many replicas. Defaults to all."""
    deadline_s: Annotated[_Seconds | None, _IF_ENABLED] = None
    """Hold a round without the missing replicas after this many seconds. Required with a quorum."""
    timeout_s: Annotated[_Seconds, _IF_ENABLED] = 1800.0
    """Fail when a round is not complete after this many seconds."""
    snapshot_every: Annotated[Positive, _IF_ENABLED] = 10
    """Save a snapshot of the shared state every this many rounds; replicas that join late start from it."""
    state_every: Annotated[int, Field(ge=0), _IF_ENABLED] = 1
    """Save each replica's private state (its optimizer and error feedback) every this many rounds, so that a restarted replica
    continues bit for bit. At most `snapshot_every`. With 0 nothing is saved, and a restarted replica joins like a late one."""
    executor: Annotated[ExecutorConfig, _IF_ENABLED] = ExecutorConfig()

    @model_validator(mode="after")
    def _numbers_fit(self) -> Self:
        if self.sync_every % self.fragments:
            refuse(
                f"sync_every = {self.sync_every} is not a multiple of fragments = {self.fragments}",
                f"set sync_every to a multiple of {self.fragments}",
            )
        window = self.sync_every // self.fragments
        if self.delay >= window:
            refuse(f"delay = {self.delay}, and a round is held every {window} steps", f"set delay from 0 to {window - 1}")
        if self.quorum is not None and self.quorum > self.replicas:
            refuse(f"quorum = {self.quorum} of {self.replicas} replicas", "lower quorum, or raise replicas")
        if (self.quorum is not None and self.quorum < self.replicas) != (self.deadline_s is not None):
            refuse(
                f"quorum = {self.quorum}, deadline_s = {self.deadline_s} and {self.replicas} replicas",
                "set both, with a quorum below replicas, or neither: then every round waits for all",
            )
        if self.deadline_s is not None and self.deadline_s >= self.timeout_s:
            refuse(
                f"deadline_s = {self.deadline_s:g} is not less than timeout_s = {self.timeout_s:g}",
                "lower deadline_s, or raise timeout_s",
            )
        if self.state_every > self.snapshot_every:
            refuse(
                f"state_every = {self.state_every} is more than snapshot_every = {self.snapshot_every}",
                "lower state_every, or raise snapshot_every",
            )
        return self

    @property
    def window(self) -> int:
        """Optimizer steps per round."""
        return self.sync_every // self.fragments
