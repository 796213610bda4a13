"""A Manager for torchft's DiLoCo whose replicas share a bucket and nothing else.

DiLoCo asks little of a Manager: a place to register its state, a vote before and after each round, and an all-reduce. Here it
starts in the background as soon as DiLoCo has queued the fragment's last tensor, and all of them travel as one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.distributed import ReduceOp

from composer_replication.diloco.all_reduce import ObjectStoreAllReduce, Pending, RoundOutcome
from composer_replication.diloco.global_state import GlobalState, Load, RoundKey, Save
from composer_replication.diloco.runs import check_floor
from composer_replication.types.errors import ConfigError, RoundError, RoundExpiredError


@dataclass(frozen=True, slots=True)
class RoundReport:
    """One round as this replica saw it."""

    round: int
    fragment: int
    members: tuple[int, ...]
    """Ranks averaged in the mean; empty where the round was not held."""
    held: bool
    """True when there was a quorum."""
    counted: bool
    """True when this replica's contribution is in the mean; else its next one of this fragment carries it."""
    stall_s: float = 0.0
    """Seconds in which the replica did nothing but wait for the round."""
    seconds: float = 0.0
    """Seconds from the start of the all-reduce to its result."""
    bytes_up: int = 0
    bytes_down: int = 0
    requests: int = 0
    caught_up: bool = False
    """True when the round was over before this replica reached it."""


@dataclass(slots=True)
class _Flight:
    """The all-reduce of the present round."""

    queued: list[Tensor] = field(default_factory=list)
    flat: Tensor | None = None
    """All of them, [size] on the CPU; the mean is written into it."""
    pending: Pending | None = None
    outcome: RoundOutcome | None = None
    error: RoundError | None = None
    stall_s: float = 0.0


class _QueuedWork:
    """The part of `torch.distributed.Work` that DiLoCo calls."""

    def __init__(self, manager: ObjectStoreManager) -> None:
        self._manager = manager

    def wait(self, timeout: object = None) -> bool:  # noqa: ARG002 - torch's signature; a round has limits of its own
        """Block until the round is over; return whether it was held."""
        return self._manager.finish()


class ObjectStoreManager:
    """The part of torchft's `Manager` that its `DiLoCo` calls, over an object-store all-reduce.

    Args:
        all_reduce: this replica's.
        retries: rounds in a row that may fail (no quorum in time) before the error is raised. After a failed round the fragment
            goes back to the global parameters; what it had contributed stays in the store for the round's repetition.
        report: called with every round.
    """

    _use_async_quorum = False  # DiLoCo looks at it

    def __init__(
        self, all_reduce: ObjectStoreAllReduce, *, retries: int = 0, report: Callable[[RoundReport], None] = lambda _report: None
    ) -> None:
        self.all_reduce = all_reduce
        self.report = report
        self.registered: dict[str, tuple[Load, Save]] = {}
        """Functions by which DiLoCo loads and saves the state of each fragment."""
        self.last_members: tuple[int, ...] = ()
        self.heal: Callable[[], object] | None = None
        """Loads the newest global state; called when this replica has fallen behind the results that are kept."""
        self._retries = retries
        self._failures = 0
        self._round = 0
        self._in_step = False
        """True when this process held the previous round."""
        self._carried: dict[int, Tensor] = {}
        """By fragment, local progress left out of rounds that others held without this replica."""
        self._flight = _Flight()
        self._state: GlobalState | None = None

    def attach(self, state: GlobalState) -> None:
        """Set the state that the rounds change. Before, no round can be held."""
        self._state = state

    def go_to(self, round: int) -> None:  # noqa: A002 - the term of the field
        """Count from another round, whose global state is loaded."""
        self._round = round
        self._in_step = False
        self._flight = _Flight()

    def catch_up(self, *, keep_progress: bool, until: int | None = None) -> int:
        """Take the outer steps of rounds that are over. How many they were.

        Args:
            keep_progress: only rounds without this replica, and what the fragments concerned had learnt here is contributed
                to their next round.
            until: only rounds before this one.

        Raises:
            RoundExpiredError: the results are not kept any more.
        """
        state, began, kept = self._known(), self._round, set[int]()
        while self._round != until and self._is_over(state.place(self._round)):
            place = state.place(self._round)
            check_floor(self.all_reduce.store, place.name, place.number)
            result = torch.empty(state.size_of(self._round))
            outcome = self.all_reduce.follow([result], place.name, place.number)
            if keep_progress and self.all_reduce.rank in outcome.members:
                break  # it reached that point before its restart, and is returning there from its own saved state
            if keep_progress and place.fragment not in kept:
                kept.add(place.fragment)
                carried = self._carried.get(place.fragment, torch.zeros(()))
                self._carried[place.fragment] = carried + state.progress(self._round)
            state.apply(self._round, result)
            self.last_members = outcome.members
            self._report_held(place.fragment, outcome, stall_s=outcome.waited, caught_up=True)
            self._round += 1
        return self._round - began

    def collect(self, keep_from: int) -> None:
        """Remove what the store keeps of rounds before this one."""
        for place in self._known().floors(keep_from):
            self.all_reduce.collect(place.name, place.number)

    def state_dict(self) -> dict[str, Any]:
        """Return this replica's residuals for coming rounds: tensors and integers. Not while a round is in progress."""
        return {"all_reduce": self.all_reduce.state_dict(), "carried": dict(self._carried)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self.all_reduce.load_state_dict(state["all_reduce"])
        self._carried = dict(state["carried"])

    def register_state_dict_fn(self, key: str, load_state_dict: Load, state_dict: Save) -> None:
        """Register how DiLoCo loads and saves a fragment."""
        self.registered[key] = (load_state_dict, state_dict)

    def start_quorum(self, allow_heal: bool = True, shrink_only: bool = False, timeout: object = None) -> None:  # noqa: ARG002
        """Begin a round; a replica that is behind first takes the steps it has missed."""
        self._flight = _Flight()
        if self._in_step and self.all_reduce.needs_everyone:
            return  # a round that waits for this replica is not over; checking would cost a foreground request every round
        try:
            self.catch_up(keep_progress=True)
        except RoundExpiredError:
            if self.heal is None:
                raise
            self.heal()

    def allreduce(self, tensor: Tensor, should_quantize: bool = False, reduce_op: object = ReduceOp.AVG) -> _QueuedWork:
        """Queue a tensor of the fragment; with the last one the round starts in the background. Their mean replaces them.

        Raises:
            ConfigError: for torchft's own quantisation, or another operation than the mean.
        """
        if should_quantize:
            raise ConfigError(
                "diloco: should_quantize is torchft's, for GPUs", fix="choose a codec of the object store's all-reduce"
            )
        if reduce_op != ReduceOp.AVG:
            raise ConfigError(f"diloco: {reduce_op} over an object store", fix="use ReduceOp.AVG")
        self._flight.queued.append(tensor)
        if sum(t.numel() for t in self._flight.queued) == self._known().size_of(self._round):
            self._start()
        return _QueuedWork(self)

    def finish(self) -> bool:
        """Block until the current round is over, and hand out the mean. Return whether it was held."""
        flight = self._flight
        if flight.outcome is None and flight.error is None:
            if flight.pending is None or flight.flat is None:
                raise ConfigError(
                    "diloco: a fragment is waited for before all of it was queued", fix="leave use_bucketization off"
                )
            waited = time.monotonic()
            try:
                flight.outcome = flight.pending.wait()
                self._hand_out(flight.queued, flight.flat)
            except RoundError as error:
                flight.error = error
            flight.stall_s = time.monotonic() - waited
        return flight.error is None

    def should_commit(self, timeout: object = None) -> bool:  # noqa: ARG002 - torchft's signature
        """Return whether the round was held; it then counts towards the step.

        A round that the others have left so far behind that its objects are removed is not a failure where there is a newer state
        to load: the next `start_quorum` does.

        Raises:
            RoundError: it was not, and neither were as many before it as may fail.
        """
        self.finish()
        flight, outcome = self._flight, self._flight.outcome
        fragment = self._known().place(self._round).fragment
        if outcome is None:
            self.report(RoundReport(self._round, fragment, (), held=False, counted=False, stall_s=flight.stall_s))
            if isinstance(flight.error, RoundExpiredError) and self.heal is not None:
                self._carried.pop(fragment, None)  # it can no longer be determined whether the others counted it
                return False
            self._failures += 1
            if self._failures > self._retries and flight.error is not None:
                raise flight.error
            return False
        self._report_held(fragment, outcome, stall_s=flight.stall_s)
        self._failures = 0
        self._carried.pop(fragment, None)
        self.last_members = outcome.members
        self._round += 1
        self._in_step = True
        return True

    def current_step(self) -> int:
        """Return the number of rounds held so far."""
        return self._round

    def num_participants(self) -> int:
        """Return the number of members of the last round."""
        return len(self.last_members)

    def disallow_state_dict_read(self) -> None:
        """Do nothing: no other replica reads this replica's state; late ones are restored from the store."""

    def allow_state_dict_read(self) -> None:
        """See `disallow_state_dict_read`."""

    def _report_held(self, fragment: int, outcome: RoundOutcome, *, stall_s: float, caught_up: bool = False) -> None:
        self.report(
            RoundReport(
                self._round,
                fragment,
                outcome.members,
                held=True,
                counted=outcome.counted,
                stall_s=stall_s,
                seconds=outcome.seconds,
                bytes_up=outcome.bytes_up,
                bytes_down=outcome.bytes_down,
                requests=outcome.requests,
                caught_up=caught_up,
            )
        )

    def _start(self) -> None:
        flight, state = self._flight, self._known()
        with torch.no_grad():
            flight.flat = torch.cat([t.reshape(-1) for t in flight.queued]).to(device="cpu", dtype=torch.float32)
        place = state.place(self._round)
        if (residual := self._carried.get(place.fragment)) is not None:
            flight.flat += residual
        flight.pending = self.all_reduce.start(
            [flight.flat], place.name, number=place.number, reference=[state.originals(self._round)]
        )

    def _hand_out(self, tensors: Sequence[Tensor], flat: Tensor) -> None:
        start = 0
        with torch.no_grad():
            for tensor in tensors:
                tensor.copy_(flat[start : start + tensor.numel()].view_as(tensor))
                start += tensor.numel()

    def _is_over(self, place: RoundKey) -> bool:
        """Return whether the others have already agreed on the members of a round."""
        newest = self.all_reduce.newest_round(place.name) if self.all_reduce.world_size > 1 else None
        return newest is not None and newest >= place.number

    def _known(self) -> GlobalState:
        if self._state is None:
            raise ConfigError("diloco: this manager serves no model yet", fix="make the outer loop with make_diloco_outer_loop")
        return self._state


class MockManager(ObjectStoreManager):
    """The manager of one replica that is alone: every mean is its own contribution."""

    def __init__(self) -> None:
        super().__init__(ObjectStoreAllReduce("memory://alone", rank=0, world_size=1))
