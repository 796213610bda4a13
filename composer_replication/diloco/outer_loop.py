"""DiLoCo's outer loop: torchft's `DiLoCo` over torchft's own Manager, or over `ObjectStoreManager`.

loop = make_diloco_outer_loop(ObjectStoreManager(all_reduce), model, inner_optimizer=optimizer, store=store)
data.go_to(loop.join().extra)     # the job's state, or this replica's own, where there is any
with loop:
    for batch in data:
        loss(model, batch).backward()
        optimizer.step()          # every `sync_every / fragments` steps this ends a round
        optimizer.zero_grad()
        loop.save(data.position)
"""

from __future__ import annotations

from functools import partial
from types import TracebackType
from typing import Any, Self

import torch
from torch import nn

from composer_replication.diloco.fragments import split_into_fragments
from composer_replication.diloco.global_state import GlobalState
from composer_replication.diloco.manager import ObjectStoreManager
from composer_replication.diloco.recovery import Joined, Recovery
from composer_replication.diloco.store import Store
from composer_replication.diloco.trees import Tree
from composer_replication.types.errors import ConfigError, MissingExtraError

try:
    from torchft import Manager
    from torchft.local_sgd import DiLoCo
except ModuleNotFoundError as error:
    raise MissingExtraError(
        "the outer loop of DiLoCo needs torchft, which is not installed", fix="pip install 'composer-replication[diloco]'"
    ) from error


class OuterLoop:
    """A model in training under DiLoCo; inside `with`, every step of the inner optimizer counts.

    Made by `make_diloco_outer_loop`.
    """

    def __init__(
        self, diloco: DiLoCo, manager: Manager | ObjectStoreManager, state: GlobalState | None, recovery: Recovery | None
    ) -> None:
        self.manager = manager
        self.state = state
        self._diloco = diloco
        self._recovery = recovery

    def __enter__(self) -> Self:
        self._diloco.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self._diloco.__exit__(kind, error, traceback)
        if self._recovery is not None:
            self._recovery.close()

    def join(self) -> Joined:
        """Begin the job, or catch up with it, before the first step (`Recovery.join`).

        Raises:
            ConfigError: the loop has no store, or the job was begun with other settings.
            CheckpointError: the newest state of the job is damaged, or of another model.
        """
        return self._saving("join").join()

    def save(self, extra: Tree = None) -> None:
        """Save what is due at the end of a round (`Recovery.save`); call it after every inner step. `extra` is what `join` gives
        back.

        Raises:
            ConfigError: the loop has no store.
            ObjectStoreError: the store refused what was to be written last time.
        """
        if self.at_boundary:
            self._saving("save").save(extra)

    @property
    def round(self) -> int:
        """Rounds held so far."""
        return int(self.manager.current_step())

    @property
    def at_boundary(self) -> bool:
        """True when the last inner step ended a round, so that nothing is in flight."""
        return bool(self._diloco._local_step == 0)

    def _saving(self, what: str) -> Recovery:
        if self._recovery is None:
            raise ConfigError(
                f"diloco: this loop has no store to {what} from or to",
                fix="give make_diloco_outer_loop an ObjectStoreManager and a store; torchft's Manager heals from its peers",
            )
        return self._recovery


def make_diloco_outer_loop(
    manager: Manager | ObjectStoreManager,
    model: nn.Module,
    *,
    inner_optimizer: torch.optim.Optimizer,
    sync_every: int = 15,
    fragments: int = 1,
    outer_lr: float = 0.7,
    outer_momentum: float = 0.9,
    nesterov: bool = True,
    delay: int = 0,
    mix: float = 0.0,
    backup_device: torch.device | None = None,
    store: Store | None = None,
    snapshot_every: int = 10,
    state_every: int = 1,
) -> OuterLoop:
    """Make the outer loop of one replica's model.

    Round `s` synchronises fragment `s % fragments`: the mean over the replicas of `global - local` is the gradient of an SGD step
    with Nesterov momentum on the global parameters, which then become the local ones.

    Args:
        manager: torchft's (with `use_async_quorum=False`), or an `ObjectStoreManager`.
        model: on one device, its trainable parameters in float32.
        inner_optimizer: steps the model's parameters; without a wrapper around it (`AcceleratedOptimizer.optimizer`).
        sync_every: H, inner steps between two synchronisations of a fragment; a round is held every `sync_every / fragments`.
        fragments: parts of the model that are synchronised one after the other.
        outer_lr: of the outer SGD.
        outer_momentum: of the outer SGD.
        nesterov: whether the momentum is Nesterov's.
        delay: tau, inner steps that go on while a round is in progress.
        mix: alpha, share of the local parameters in what a fragment continues with; 0 takes the global ones.
        backup_device: where the global parameters are kept; the CPU by default.
        store: what `join` and `save` use, with an `ObjectStoreManager`.
        snapshot_every: rounds between snapshots of the global state.
        state_every: rounds between saves of this replica's own state; 0 saves none.

    Raises:
        ConfigError: the numbers do not fit together, or the model cannot be trained so.
    """
    parts = split_into_fragments(model, fragments)
    _check(sync_every, fragments, delay, mix, outer_lr, outer_momentum, nesterov)
    outers = [torch.optim.SGD(p.parameters(), lr=outer_lr, momentum=outer_momentum, nesterov=nesterov) for p in parts]
    diloco = DiLoCo(
        manager,
        parts,
        inner_optimizer,
        outers,
        sync_every,
        backup_device=backup_device,
        use_bucketization=False,  # with more than one bucket, torchft returns only the last one's values
        fragment_sync_delay=delay,
        fragment_update_alpha=mix,
    )
    if not isinstance(manager, ObjectStoreManager):
        if store is not None:
            raise ConfigError(
                "diloco: a store beside torchft's Manager", fix="leave store out; that Manager heals from its peers"
            )
        manager.register_state_dict_fn(
            "inner", partial(_load_inner, model, inner_optimizer), partial(_save_inner, model, inner_optimizer)
        )
        return OuterLoop(diloco, manager, None, None)
    state = GlobalState(parts, outers, [manager.registered[f"StreamingDiLoCoFragment_{i}"] for i in range(fragments)])
    manager.attach(state)
    if store is None:
        return OuterLoop(diloco, manager, state, None)
    settings = {
        "sync_every": sync_every,
        "fragments": fragments,
        "outer_lr": outer_lr,
        "outer_momentum": outer_momentum,
        "nesterov": nesterov,
        "delay": delay,
        "mix": mix,
    }
    recovery = Recovery(
        store, manager, model, state, inner_optimizer, settings, snapshot_every=snapshot_every, state_every=state_every
    )
    manager.heal = recovery.heal
    return OuterLoop(diloco, manager, state, recovery)


def _check(
    sync_every: int, fragments: int, delay: int, mix: float, outer_lr: float, outer_momentum: float, nesterov: bool
) -> None:
    """Check up front what torchft asserts or leaves to chance."""
    if sync_every < 1 or sync_every % fragments:
        raise ConfigError(f"diloco: sync_every = {sync_every}", fix=f"set a multiple of fragments = {fragments}")
    if not 0 <= delay < sync_every // fragments:
        most = sync_every // fragments - 1
        raise ConfigError(
            f"diloco: delay = {delay}, and a round is held every {sync_every // fragments} steps",
            fix=f"set delay from 0 to {most}",
        )
    if not 0.0 <= mix <= 1.0:
        raise ConfigError(f"diloco: mix = {mix}", fix="set a share from 0 to 1")
    if outer_lr <= 0 or not 0.0 <= outer_momentum < 1.0:
        raise ConfigError(
            f"diloco: outer_lr = {outer_lr} and outer_momentum = {outer_momentum}",
            fix="set outer_lr above 0 and outer_momentum from 0 to below 1",
        )
    if nesterov and outer_momentum == 0:
        raise ConfigError("diloco: nesterov without outer_momentum", fix="set outer_momentum above 0, or nesterov = false")


def _save_inner(model: nn.Module, inner: torch.optim.Optimizer) -> dict[str, Any]:
    return {"model": model.state_dict(), "optimizer": inner.state_dict()}


def _load_inner(model: nn.Module, inner: torch.optim.Optimizer, saved: dict[str, Any]) -> None:
    model.load_state_dict(saved["model"])
    inner.load_state_dict(saved["optimizer"])
