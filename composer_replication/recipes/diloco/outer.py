"""DiLoCo's outer loop as a callback of the recipe: one arm of one replica."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping
from typing import Any

from composer_replication.config import RunConfig
from composer_replication.diloco.all_reduce import ObjectStoreAllReduce
from composer_replication.diloco.manager import ObjectStoreManager, RoundReport
from composer_replication.diloco.outer_loop import OuterLoop, make_diloco_outer_loop
from composer_replication.diloco.store import Store
from composer_replication.loss.forward.adapters import policy_weights
from composer_replication.recipes.diloco.status import Status, write_status
from composer_replication.trainer.arm import ArmTrainer
from composer_replication.trainer.pairs.replay import pairs_digest, wants_replay
from composer_replication.trainer.train import StepCallback
from composer_replication.types.errors import CheckpointError, ConfigError

_REMADE = ("optimizer", "reference")
"""Parts of a learner's state that are kept elsewhere: the outer loop saves the optimizer; the start is the reference."""


class DiLoCoCallback(StepCallback):
    """A callback that averages a replica's steps with those of the others, through an object store.

    Args:
        store: the job's.
        rank: this replica.
        world_size: replicas of the job.
    """

    def __init__(self, store: Store, rank: int, world_size: int) -> None:
        self._store, self._rank, self._world_size = store, rank, world_size
        self._began = time.monotonic()
        self._reports: list[RoundReport] = []
        self._up = self._down = 0
        self._stall_s = 0.0
        self._members = 0
        self._loop: OuterLoop | None = None

    def on_begin(self, arm: ArmTrainer) -> bool:
        """Make the outer loop, and move the arm to the point that the job has reached. Return whether the job had begun.

        Raises:
            ConfigError: the job was begun with other settings, or a launcher shares this replica out among processes.
            CheckpointError: what is kept of the job is damaged, or this replica's pairs are gone.
        """
        config, learner = arm.config, arm.learner
        if learner.accelerator.num_processes > 1:
            raise ConfigError("a replica is one process", fix="start `composer diloco run` without a launcher")
        self._loop = self._outer_loop(arm)
        joined = self._loop.join()
        self._loop.__enter__()
        if joined.how == "began":
            arm.journal.rewind(-1)
            return False
        if wants_replay(config) and config.teachers and pairs_digest(arm.context, arm.arm) is None:
            raise CheckpointError(
                f"the pairs of replica {self._rank} are not in {arm.context.run_dir.path}",
                fix="restore its folder, or start the job again under another name",
            )
        if joined.how == "resumed":
            state = {**learner.state_dict(), **joined.extra["learner"]}
            learner.load_state_dict(state, policy_weights(learner.policy))
            arm.continue_from(joined.extra["counters"])
        self._keep_step(arm)
        if joined.how == "healed":
            arm.continue_from(arm.counters())
        return True

    def on_update(self, arm: ArmTrainer) -> Mapping[str, float]:
        """Return the metrics of this step's rounds, if there were any."""
        loop = self._running_loop()
        if loop.at_boundary:
            self._keep_step(arm)
        if arm.learner.version == arm.config.steps and loop.state is not None:
            loop.state.reset_local()  # the arm's result is what all replicas agree on
        reports = self._reports.copy()
        self._reports.clear()
        if not reports:
            return {}
        self._up += sum(r.bytes_up for r in reports)
        self._down += sum(r.bytes_down for r in reports)
        self._stall_s += sum(r.stall_s for r in reports)
        self._members = len(reports[-1].members)
        return {
            "diloco/round": float(loop.round),
            "diloco/members": float(self._members),
            "diloco/counted": float(reports[-1].counted),
            "diloco/caught_up": float(sum(r.caught_up for r in reports)),
            "diloco/bytes_up": float(sum(r.bytes_up for r in reports)),
            "diloco/bytes_down": float(sum(r.bytes_down for r in reports)),
            "diloco/requests": float(sum(r.requests for r in reports)),
            "diloco/stall_s": sum(r.stall_s for r in reports),
            "diloco/round_s": sum(r.seconds for r in reports),
        }

    def on_step_end(self, arm: ArmTrainer, step: int, metrics: Mapping[str, float]) -> None:
        """Save what a restart needs, and publish the status of this replica."""
        loop = self._running_loop()
        if loop.at_boundary:
            loop.save({"learner": self._kept(arm), "counters": arm.counters()})
        write_status(
            self._store,
            Status(
                rank=self._rank,
                arm=arm.arm,
                step=step,
                steps=arm.config.steps,
                round=loop.round,
                members=self._members,
                bytes_up=self._up,
                bytes_down=self._down,
                stall_s=self._stall_s,
                seconds=time.monotonic() - self._began,
                reward=metrics.get("reward/mean"),
            ),
        )

    def close(self) -> None:
        """Detach from the optimizer, and wait until everything is saved. Raises ObjectStoreError."""
        if self._loop is not None:
            self._loop.__exit__(None, None, None)
            self._loop = None

    def _outer_loop(self, arm: ArmTrainer) -> OuterLoop:
        options = arm.config.diloco
        store = self._store.at(f"arms/{arm.arm}")
        all_reduce = ObjectStoreAllReduce(
            store,
            rank=self._rank,
            world_size=self._world_size,
            timeout_s=options.timeout_s,
            quorum=options.quorum,
            deadline_s=options.deadline_s,
            codec=options.codec,
            fingerprint=_fingerprint(arm.config),
            keep_rounds=None,
        )
        return make_diloco_outer_loop(
            ObjectStoreManager(all_reduce, report=self._reports.append),
            arm.learner.policy,
            inner_optimizer=arm.learner.optimizer.optimizer,
            sync_every=options.sync_every,
            fragments=options.fragments,
            outer_lr=options.outer_lr,
            outer_momentum=options.outer_momentum,
            nesterov=options.outer_momentum > 0,
            delay=options.delay,
            mix=options.mix,
            store=store,
            snapshot_every=options.snapshot_every,
            state_every=options.state_every,
        )

    def _keep_step(self, arm: ArmTrainer) -> None:
        """Skip to the others' step after rounds that this replica has missed."""
        there = self._running_loop().round * arm.config.diloco.window
        if arm.learner.version != there:
            arm.learner.skip_to(there)

    def _kept(self, arm: ArmTrainer) -> dict[str, Any]:
        left_out = {*_REMADE, *(("self_teacher",) if arm.config.loss.hint.self_teacher == "frozen" else ())}
        return {key: value for key, value in arm.learner.state_dict().items() if key not in left_out}

    def _running_loop(self) -> OuterLoop:
        assert self._loop is not None
        return self._loop


def _fingerprint(config: RunConfig) -> str:
    """Return a digest of the options that all replicas must share."""
    same = config.model_dump(mode="json", include={"steps", "loss", "reward", "optimizer", "diloco"})
    for field in ("rendezvous", "quorum", "deadline_s", "timeout_s", "state_every", "executor"):
        del same["diloco"][field]
    return hashlib.sha256(json.dumps(same, sort_keys=True).encode()).hexdigest()[:32]
