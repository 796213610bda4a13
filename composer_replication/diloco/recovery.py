"""Recovery of a job across machines: the state in the store, and how a replica catches up with the others.

    global/ROUND/       the global state after ROUND rounds, written every `snapshot_every` rounds by the first of its members
    replicas/RANK/ROUND/    what only that replica knows: local parameters, inner optimizer, error feedback, random numbers

With the results of the rounds since, the first heals a replica that joins late or has fallen far behind; with the second, a
replica repeats what it had lost, bit for bit. The two newest of each are kept, and the results since the older snapshot.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

from composer_replication.diloco.global_state import GlobalState
from composer_replication.diloco.manager import ObjectStoreManager
from composer_replication.diloco.saved import SavedStates
from composer_replication.diloco.store import Store
from composer_replication.diloco.trees import Tree, copied
from composer_replication.types.errors import CheckpointError, ConfigError, RoundExpiredError

KEPT = 2


@dataclass(frozen=True, slots=True)
class Joined:
    """How a replica joined its job."""

    how: Literal["began", "resumed", "healed"]
    """`began`: the job is new. `resumed`: this replica's own state. `healed`: the global state; local progress was lost."""
    round: int
    extra: Tree
    """The argument of the replica's last `save`; None unless it resumed."""


class Recovery:
    """Saves and restores one replica and its part of the job.

    Args:
        store: the job's.
        settings: what all replicas and all their lives must agree on, plain values by name.
        snapshot_every: rounds between snapshots of the global state.
        state_every: rounds between saves of this replica's own state; 0 saves none.
    """

    def __init__(
        self,
        store: Store,
        manager: ObjectStoreManager,
        model: nn.Module,
        state: GlobalState,
        inner_optimizer: torch.optim.Optimizer,
        settings: Mapping[str, str | int | float | bool],
        *,
        snapshot_every: int,
        state_every: int,
    ) -> None:
        if snapshot_every < 1 or not 0 <= state_every <= snapshot_every:
            raise ConfigError(
                f"diloco: snapshot_every = {snapshot_every} and state_every = {state_every}",
                fix="set snapshot_every to 1 or more, and state_every between 0 (never) and snapshot_every",
            )
        self._manager, self._model = manager, model
        self._rank = manager.all_reduce.rank
        self._state, self._inner, self._settings = state, inner_optimizer, dict(settings)
        self._snapshot_every, self._state_every = snapshot_every, state_every
        self._snapshots = SavedStates(store, "global")
        self._own = SavedStates(store, f"replicas/{self._rank:05d}")
        self._saved = 0
        self._writer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="diloco-save")
        self._writing: Future[list[None]] | None = None

    def join(self) -> Joined:
        """Bring this replica to where the job is.

        Raises:
            CheckpointError: the newest state of the job is damaged, or of another model.
            ConfigError: the job was begun with other settings.
        """
        if not self._snapshots.rounds():
            self._snapshots.write(0, self._snapshot())
        joined = self._resume() or self.heal()
        self._saved = joined.round
        try:
            self._manager.catch_up(keep_progress=True)
        except RoundExpiredError:  # the others went on meanwhile
            joined = self.heal()
            self._saved = joined.round
        return joined

    def save(self, extra: Tree) -> None:
        """Write what is due at the end of a round, in the background. `extra` comes back from `join`.

        Raises:
            ObjectStoreError: the store refused what was to be written last time.
        """
        done = self._manager.current_step()
        if done == self._saved:
            return
        self._saved = done
        work: list[Callable[[], None]] = []
        if self._state_every and done % self._state_every == 0:
            work.append(partial(self._write_own, done, copied(self._local(extra))))
        if done % self._snapshot_every == 0 and self._rank == min(self._manager.last_members, default=0):
            work.append(partial(self._write_snapshot, done, copied(self._snapshot())))
        if work:
            self.flush()
            self._writing = self._writer.submit(lambda: [task() for task in work])

    def flush(self) -> None:
        """Wait until everything is written. Raises ObjectStoreError when the store refuses."""
        if self._writing is not None:
            writing, self._writing = self._writing, None
            writing.result()

    def close(self) -> None:
        """Do `flush`, and end the thread."""
        try:
            self.flush()
        finally:
            self._writer.shutdown()

    def _resume(self) -> Joined | None:
        """Resume from this replica's own newest state; None where there is none, or results since then are no longer kept."""
        found = self._own.rounds()
        before = [r for r in self._snapshots.rounds() if found and r <= found[-1]]
        if not before:
            return None
        saved = self._own.read(found[-1])
        self._check(saved["settings"])
        self._load_snapshot(before[-1])
        try:
            self._manager.catch_up(keep_progress=False, until=found[-1])
        except RoundExpiredError:
            return None
        if self._manager.current_step() != found[-1]:
            return None
        self._inner.load_state_dict(saved["inner_optimizer"])
        self._state.load_local(saved["parameters"])
        self._manager.load_state_dict(saved["owed"])
        buffers = dict(self._model.named_buffers())
        for name, value in saved["buffers"].items():
            buffers[name].copy_(value)
        _set_random(saved["random"])
        return Joined("resumed", found[-1], saved["extra"])

    def heal(self) -> Joined:
        """Load the newest snapshot and the results since, also in the middle of training: what was learnt here since is lost."""
        newest = self._snapshots.rounds()[-1]
        while True:
            try:
                self._load_snapshot(newest)
                self._manager.catch_up(keep_progress=False)
            except (CheckpointError, RoundExpiredError):
                before, newest = newest, self._snapshots.rounds()[-1]
                if newest == before:
                    raise
                continue  # the others went on meanwhile, and removed what was being read
            done = self._manager.current_step()
            return Joined("began" if done == 0 else "healed", done, None)

    def _load_snapshot(self, round: int) -> None:  # noqa: A002 - the term of the field
        saved = self._snapshots.read(round)
        self._check(saved["settings"])
        self._state.load(saved["state"])
        self._manager.go_to(round)

    def _check(self, saved: Mapping[str, object]) -> None:
        for name, value in self._settings.items():
            if saved.get(name) != value:
                raise ConfigError(
                    f"diloco: {name} = {value}, but the job was begun with {saved.get(name)}",
                    fix=f"set {name} = {saved.get(name)}, or give the new job another place in the store",
                )

    def _snapshot(self) -> Tree:
        return {"settings": self._settings, "state": self._state.tree()}

    def _local(self, extra: Tree) -> Tree:
        kept = self._model.state_dict().keys()
        return {
            "settings": self._settings,
            "parameters": self._state.local(),
            "buffers": {name: b for name, b in self._model.named_buffers() if name in kept},
            "inner_optimizer": self._inner.state_dict(),
            "owed": self._manager.state_dict(),
            "random": _random(),
            "extra": extra,
        }

    def _write_own(self, done: int, tree: Tree) -> None:
        self._own.write(done, tree)
        self._own.forget_before(([0, *self._own.rounds()])[-KEPT])

    def _write_snapshot(self, done: int, tree: Tree) -> None:
        self._snapshots.write(done, tree)
        oldest = self._snapshots.rounds()[-KEPT:][0]
        self._snapshots.forget_before(oldest)
        self._manager.collect(oldest)


def _random() -> dict[str, Any]:
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    return {"torch": torch.get_rng_state(), "cuda": cuda}


def _set_random(saved: Mapping[str, Any]) -> None:
    torch.set_rng_state(saved["torch"])
    devices: list[Tensor] = saved["cuda"]
    if devices:
        if len(devices) != torch.cuda.device_count():
            raise CheckpointError(
                f"diloco: this replica was saved on {len(devices)} GPUs, and here are {torch.cuda.device_count()}",
                fix="resume on as many GPUs, or delete the replica's own states: it is healed from the global one then",
            )
        torch.cuda.set_rng_state_all(devices)
