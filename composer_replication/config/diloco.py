"""Replicas that train as one."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from composer_replication.config.executor import ExecutorConfig
from composer_replication.config.section import Decay, Positive, ReadBy, Section, Share, refuse

__all__ = ["DilocoConfig"]

_IF_ENABLED = ReadBy("enabled", True)
_Seconds = Annotated[float, Field(gt=0.0)]


class DilocoConfig(Section):
    """DiLoCo over an object store: `composer diloco run`. Each replica rolls out and trains by itself, and now and then all of
    them take a step of an outer optimizer together."""

    enabled: bool = False
    """Whether the run is one of replicas."""
    replicas: Annotated[Positive, _IF_ENABLED] = 2
    """How many there are."""
    shard_tasks: Annotated[bool, _IF_ENABLED] = True
    """Whether replicas share out what one alone would practise on: each takes `rollout.groups / replicas` tasks a step, and no
    task is taken twice in a round. Otherwise each chooses `rollout.groups` from all tasks by itself."""
    rendezvous: Annotated[str | None, _IF_ENABLED] = None
    """The object store they share: a path, `s3://`, `gs://` or `az://`; by default the folder `store` of the run."""
    sync_every: Annotated[Positive, _IF_ENABLED] = 10
    """H: optimizer steps between two synchronisations of the same weights."""
    fragments: Annotated[Positive, _IF_ENABLED] = 1
    """Parts of the model that are synchronised one after the other, one every `sync_every / fragments` steps."""
    delay: Annotated[int, Field(ge=0), _IF_ENABLED] = 0
    """tau: optimizer steps that go on while a round is under way."""
    mix: Annotated[Share, _IF_ENABLED] = 0.0
    """alpha: share of a replica's own weights in what it goes on with after a round."""
    codec: Annotated[Literal["fp32", "bf16", "int8", "int4", "topk", "pulse", "auto"], _IF_ENABLED] = "int8"
    """How pseudo-gradients travel; what a codec leaves out, the next round carries."""
    outer_lr: Annotated[float, Field(gt=0.0), _IF_ENABLED] = 0.7
    """Of the outer SGD."""
    outer_momentum: Annotated[Decay, _IF_ENABLED] = 0.9
    """Of the outer SGD, Nesterov's unless it is 0."""
    quorum: Annotated[Positive | None, _IF_ENABLED] = None
    """The fewest replicas a round is held with; all by default."""
    deadline_s: Annotated[_Seconds | None, _IF_ENABLED] = None
    """Seconds after which a round is held without those that have not come; needed with a quorum."""
    timeout_s: Annotated[_Seconds, _IF_ENABLED] = 1800.0
    """Most seconds for a round; one that is not held by then is an error."""
    snapshot_every: Annotated[Positive, _IF_ENABLED] = 10
    """Rounds between snapshots of what all replicas agree on, from which one that joins late is healed."""
    state_every: Annotated[int, Field(ge=0), _IF_ENABLED] = 1
    """Rounds between saves of what each replica alone knows (its optimizer, what it owes), from which it goes on bit for bit when
    it is started again; at most `snapshot_every`. 0 saves none: then it is healed like one that joins late."""
    executor: Annotated[ExecutorConfig, _IF_ENABLED] = ExecutorConfig()

    @model_validator(mode="after")
    def _numbers_fit(self) -> Self:
        if self.sync_every % self.fragments:
            refuse(
                f"sync_every = {self.sync_every} is no multiple of fragments = {self.fragments}",
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
                f"deadline_s = {self.deadline_s:g} is no less than timeout_s = {self.timeout_s:g}",
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
        """Optimizer steps of a round."""
        return self.sync_every // self.fragments
