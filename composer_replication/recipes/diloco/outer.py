"""DiLoCo's outer loop beside the recipe's own loop: one arm of one replica."""

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
from composer_replication.recipes.diloco.status import Status, write_status
from composer_replication.trainer.loop import ArmTrainer, wants_replay
from composer_replication.trainer.replay import pairs_digest
from composer_replication.types.errors import CheckpointError, ConfigError

__all__ = ["DiLoCoCallback"]

_REMADE = ("optimizer", "reference")
"""Of a learner's state, what is kept elsewhere: the outer loop saves the optimizer, and the reference is the starting policy."""


class DiLoCoCallback:
    """What the loop of an arm does beside its steps (`trainer.loop.Beside`).

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
        self._trainee: ArmTrainer | None = None
        self._loop: OuterLoop | None = None

    def resume(self, trainee: ArmTrainer) -> bool:
        """Make the outer loop, and bring the arm to where the job is. Whether the job had begun.

        Raises:
            ConfigError: the job was begun with other settings, or a launcher shares this replica out among processes.
            CheckpointError: what is kept of the job is damaged, or this replica's pairs are gone.
        """
        config, learner = trainee.config, trainee.learner
        if learner.accelerator.num_processes > 1:
            raise ConfigError("a replica is one process", fix="start `composer diloco run` without a launcher")
        self._trainee, self._loop = trainee, self._outer_loop(trainee)
        joined = self._loop.join()
        self._loop.__enter__()
        if joined.how == "began":
            trainee.workshop.run_dir.truncate_after(trainee.arm, -1)
            return False
        if wants_replay(config) and config.teachers and pairs_digest(trainee.workshop, trainee.arm) is None:
            raise CheckpointError(
                f"the pairs of replica {self._rank} are not in {trainee.workshop.run_dir.path}",
                fix="restore its folder, or start the job again under another name",
            )
        if joined.how == "resumed":
            state = {**learner.state_dict(), **joined.extra["learner"]}
            learner.load_state_dict(state, learner.policy.state_dict())
            trainee.go_on(joined.extra["counters"])
        self._keep_step(config)
        if joined.how == "healed":
            trainee.go_on(trainee.counters())
        return True

    def stepped(self) -> Mapping[str, float]:
        """What the rounds of this step were, if any."""
        trainee, loop = self._known()
        if loop.at_boundary:
            self._keep_step(trainee.config)
        if trainee.learner.version == trainee.config.steps and loop.state is not None:
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

    def recorded(self, metrics: Mapping[str, float]) -> None:
        """Save what a restart needs, and say where this replica is."""
        trainee, loop = self._known()
        if loop.at_boundary:
            loop.save({"learner": self._kept(trainee), "counters": trainee.counters()})
        write_status(
            self._store,
            Status(
                rank=self._rank,
                arm=trainee.arm,
                step=trainee.learner.version,
                steps=trainee.config.steps,
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
        """Leave the optimizer alone again, and wait until everything is saved. Raises ObjectStoreError."""
        if self._loop is not None:
            self._loop.__exit__(None, None, None)
            self._loop = None

    def _outer_loop(self, trainee: ArmTrainer) -> OuterLoop:
        options = trainee.config.diloco
        store = self._store.at(f"arms/{trainee.arm}")
        all_reduce = ObjectStoreAllReduce(
            store,
            rank=self._rank,
            world_size=self._world_size,
            timeout_s=options.timeout_s,
            quorum=options.quorum,
            deadline_s=options.deadline_s,
            codec=options.codec,
            fingerprint=_fingerprint(trainee.config),
            keep_rounds=None,
        )
        return make_diloco_outer_loop(
            ObjectStoreManager(all_reduce, report=self._reports.append),
            trainee.learner.policy,
            inner_optimizer=trainee.learner.optimizer.optimizer,
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

    def _keep_step(self, config: RunConfig) -> None:
        """After rounds that this replica has missed it goes on with the step of the others."""
        trainee, loop = self._known()
        if trainee.learner.version != loop.round * config.diloco.window:
            trainee.learner.skip_to(loop.round * config.diloco.window)

    def _kept(self, trainee: ArmTrainer) -> dict[str, Any]:
        left_out = {*_REMADE, *(("self_teacher",) if trainee.config.loss.hint.self_teacher == "frozen" else ())}
        return {key: value for key, value in trainee.learner.state_dict().items() if key not in left_out}

    def _known(self) -> tuple[ArmTrainer, OuterLoop]:
        assert self._trainee is not None
        assert self._loop is not None
        return self._trainee, self._loop


def _fingerprint(config: RunConfig) -> str:
    """Of what all replicas must have in common, wherever they run."""
    same = config.model_dump(mode="json", include={"steps", "loss", "reward", "optimizer", "diloco"})
    for field in ("rendezvous", "quorum", "deadline_s", "timeout_s", "state_every", "executor"):
        del same["diloco"][field]
    return hashlib.sha256(json.dumps(same, sort_keys=True).encode()).hexdigest()[:32]
