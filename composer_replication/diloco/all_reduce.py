"""The mean of a vector over replicas that share nothing but an object store."""

from __future__ import annotations

import json
import logging
import math
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypedDict

import torch
from torch import Tensor

from composer_replication.diloco.codecs import Codec, VisibleCodec, make_codec
from composer_replication.diloco.codecs.feedback import ErrorFeedback
from composer_replication.diloco.exchange import NORM, Exchanged, exchange
from composer_replication.diloco.membership import RoundStore
from composer_replication.diloco.runs import check_floor, claim, collect, newest_round, round_key
from composer_replication.diloco.sending import Published, bounds, send
from composer_replication.diloco.setting import Clock, Setting, Stopwatch
from composer_replication.diloco.store import Store, check_conditional_writes, open_store
from composer_replication.diloco.wire import digest
from composer_replication.types.errors import ArgumentError, ComposerError, ConfigError, ObjectStoreError, RoundError

_log = logging.getLogger(__name__)

_FORMAT = 1
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}")


class AllReduceState(TypedDict):
    """The state a replica must keep to continue where it was: tensors and integers only."""

    rounds: dict[str, int]
    """By fragment, the number of its next round."""
    owed: dict[str, Tensor]
    """By fragment, the error feedback: (n,) float32. Each replica's own."""


@dataclass(frozen=True, slots=True)
class RoundOutcome:
    """The result of a round."""

    name: str
    round: int
    members: tuple[int, ...]
    """The ranks that the seal names."""
    refused: Mapping[int, str]
    """Members whose contribution does not count, wholly or in part, and why: `damaged`, `norm`, `nothing`."""
    counted: bool
    """True when this replica's whole contribution is in the mean; else the next round carries it, unless `norm` refused it."""
    bytes_up: int
    """Payload and headers, to the store."""
    bytes_down: int
    requests: int
    seconds: float
    """Seconds from the start to the mean."""
    waited: float
    """Seconds of these that the caller spent in `wait`."""
    residual: float
    """L2 norm of what the next round carries."""


class Pending:
    """A round in progress in the background."""

    def __init__(self, tensors: Sequence[Tensor], work: Callable[[], tuple[Tensor, RoundOutcome]]) -> None:
        self._tensors = tuple(tensors)
        self._found: tuple[Tensor, RoundOutcome] | None = None
        self._error: ComposerError | None = None
        self._outcome: RoundOutcome | None = None
        self._thread = threading.Thread(target=self._run, args=(work,), name="composer-round", daemon=True)
        self._thread.start()

    def done(self) -> bool:
        """Return whether `wait` would return at once."""
        return not self._thread.is_alive()

    def wait(self) -> RoundOutcome:
        """Write the means into the tensors that the round was started with, and return the round's outcome.

        Raises:
            RoundError: too few replicas came in time, or what fixes the outcome is damaged. The tensors stay as they were, and
                the same round is held again when it is next started.
            ObjectStoreError: the store failed.
            ConfigError: replicas disagree about the model or the run.
        """
        if self._outcome is not None:
            return self._outcome
        began = time.monotonic()
        self.settle()
        if self._error is not None:
            raise self._error
        if self._found is None:
            raise RuntimeError("the thread of a round has died; its traceback was printed")
        mean, outcome = self._found
        at = 0
        with torch.no_grad():
            for tensor in self._tensors:
                tensor.copy_(mean[at : at + tensor.numel()].view(tensor.shape))
                at += tensor.numel()
        self._outcome = replace(outcome, waited=time.monotonic() - began)
        self._found, self._tensors = None, ()
        return self._outcome

    def settle(self) -> None:
        """Wait for the end of the round, whatever it is."""
        self._thread.join()  # an event would do, but a thread that is still ending when the interpreter does aborts the process

    def _run(self, work: Callable[[], tuple[Tensor, RoundOutcome]]) -> None:
        try:
            self._found = work()
        except ComposerError as error:
            self._error = error


class ObjectStoreAllReduce:
    """All-reduce through a folder, a bucket or memory (see docs/diloco.md for the protocol).

    All replicas get the same bits or an error, whichever of them die, are late or come back. A replica that is too late for a
    round gets its mean all the same, and its own contribution goes into its next one.

    Args:
        uri: where the run's objects are: a path, `file://`, `s3://`, `gs://`, `az://`, `memory://`; or an open store. A folder of
            its own for each run.
        rank: this replica, from 0.
        world_size: how many places for replicas the run has.
        timeout_s: most for one round, and for one request.
        quorum: the fewest replicas that a round is held with, all by default.
        deadline_s: seconds after which a round is held without the missing replicas; required with a quorum.
        codec: `fp32`, `bf16`, `int8`, `int4`, `topk`, `pulse`, `auto`, or a codec of one's own.
        fingerprint: what must be equal in all replicas (a hash of run file and model), if anything.
        takeover_s: seconds without a chunk of the mean after which another replica computes it.
        poll_s: longest pause between two looks at the store.
        norm_gate: with three members or more, refuse one whose norm is more than this many times their median; None refuses none.
        keep_rounds: rounds of each fragment that stay in the store; None removes nothing.
        clock: what deadlines are measured with.

    Raises:
        ArgumentError: arguments that make no sense.
        ConfigError: a folder of another run.
        ObjectStoreError: the store cannot be used, or ignores conditional writes.
    """

    def __init__(
        self,
        uri: str | Path | Store,
        *,
        rank: int,
        world_size: int,
        timeout_s: float = 1800.0,
        quorum: int | None = None,
        deadline_s: float | None = None,
        codec: str | Codec = "fp32",
        fingerprint: str = "",
        takeover_s: float = 30.0,
        poll_s: float = 0.5,
        norm_gate: float | None = 10.0,
        keep_rounds: int | None = 8,
        clock: Clock | None = None,
    ) -> None:
        _check(rank, world_size, quorum, deadline_s, keep_rounds)
        seconds = {"timeout_s": timeout_s, "deadline_s": deadline_s, "takeover_s": takeover_s, "poll_s": poll_s}
        _check_positive(seconds | {"norm_gate": norm_gate})
        made = make_codec(codec) if isinstance(codec, str) else codec
        run = digest(json.dumps([_FORMAT, fingerprint, world_size, made.name]).encode())
        self.rank, self.world_size = rank, world_size
        self._setting = Setting(
            run=run,
            rank=rank,
            world_size=world_size,
            codec=made,
            timeout_s=timeout_s,
            quorum=world_size if quorum is None else quorum,
            deadline_s=timeout_s if deadline_s is None else deadline_s,
            takeover_s=takeover_s,
            poll_s=poll_s,
            norm_gate=norm_gate,
            clock=clock or Clock(),
        )
        self._keep_rounds = keep_rounds
        self._feedback = ErrorFeedback()
        self._rounds: dict[str, int] = {}
        self._latest: dict[str, Pending] = {}
        self.store = uri if isinstance(uri, Store) else open_store(uri, timeout_s=timeout_s)
        """The store of all objects; it counts requests and bytes."""
        if world_size > 1:
            check_conditional_writes(self.store)
            facts = {"format": _FORMAT, "fingerprint": fingerprint, "world_size": world_size, "codec": made.name}
            claim(self.store, facts)

    def allreduce(
        self, tensor: Tensor, name: str, *, weight: float = 1.0, reference: Tensor | None = None, number: int | None = None
    ) -> Tensor:
        """Write the mean of `tensor` over the replicas of this round into it, and return it.

        Args: as `start` takes them.

        Raises:
            RoundError, ObjectStoreError, ConfigError: as `Pending.wait` does.
        """
        self.start([tensor], name, weight=weight, reference=None if reference is None else [reference], number=number).wait()
        return tensor

    def start(
        self,
        tensors: Sequence[Tensor],
        name: str,
        *,
        weight: float = 1.0,
        reference: Sequence[Tensor] | None = None,
        number: int | None = None,
    ) -> Pending:
        """Begin a round over several tensors as one vector, in the background; they are copied before this returns.

        Args:
            tensors: floating point, on any device; the same shapes in every replica. What is subtracted from the weights.
            name: the fragment: letters, digits, `.`, `_` and `-`.
            weight: of this replica in the mean, above 0: its share of tokens, for example.
            reference: the weights, in the shapes of `tensors`, for codecs that send what a bfloat16 copy of them would show.
            number: which round of this fragment; by default the one after the last that succeeded here.

        Raises:
            ConfigError: a name that is none, a weight that is not positive, a reference of another size, or none where the codec
                needs one.
        """
        if not _NAME.fullmatch(name):
            raise ConfigError(f"{name!r} names no fragment", fix="use letters, digits, `.`, `_` and `-`")
        if not 0 < weight < math.inf:
            raise ConfigError(f"the weight {weight} of {name!r} is not positive", fix="leave out a replica that has no weight")
        flat = _flat(tensors)
        base = None if reference is None else _flat(reference)
        codec = self._setting.codec
        if base is None and isinstance(codec, VisibleCodec) and codec.needs_reference:
            raise ConfigError(f"the codec {codec.name} compares with the weights", fix="pass them as `reference`")
        if base is not None and base.numel() != flat.numel():
            raise ConfigError(
                f"{name!r} has {flat.numel()} values, its reference {base.numel()}", fix="pass the same tensors' weights"
            )
        earlier = self._latest.get(name)
        pending = Pending(tensors, lambda: self._after(earlier, name, number, flat, weight, base))
        self._latest[name] = pending
        return pending

    @property
    def needs_everyone(self) -> bool:
        """True when every round needs every replica."""
        return self._setting.quorum == self.world_size

    def newest_round(self, name: str) -> int | None:
        """Return the newest round of a fragment that replicas have agreed to hold; None before the first."""
        return newest_round(self.store, name)

    def follow(self, tensors: Sequence[Tensor], name: str, number: int) -> RoundOutcome:
        """Write the mean of a round into `tensors` without a contribution of one's own: for a replica that joins late.

        The round after it is the next that `start` holds.

        Raises:
            RoundExpiredError: the round has been removed.
            RoundError: it is not complete within `timeout_s`.
        """
        size = sum(tensor.numel() for tensor in tensors)
        pending = Pending(tensors, lambda: self._hold(name, number, torch.zeros(size), None, None))
        return pending.wait()

    def collect(self, name: str, floor: int) -> None:
        """Remove the rounds of a fragment below `floor`; replicas that still need one get a RoundExpiredError.

        What the store does not remove now, it is asked to again with the next floor.
        """
        _tidy(self.store, name, floor)

    def residual_norm(self, name: str) -> float:
        """Return the L2 norm of the residual that the next contribution to a fragment carries over."""
        return self._feedback.norm(name)

    def state_dict(self) -> AllReduceState:
        """Return what this replica has to save to continue. Not while a round is pending."""
        return {"rounds": dict(self._rounds), "owed": self._feedback.state_dict()}

    def load_state_dict(self, state: AllReduceState) -> None:
        """Take over what `state_dict` gave."""
        self._rounds = dict(state["rounds"])
        self._feedback.load_state_dict(state["owed"])

    def _after(
        self, earlier: Pending | None, name: str, number: int | None, flat: Tensor, weight: float, reference: Tensor | None
    ) -> tuple[Tensor, RoundOutcome]:
        """Hold the round once the previous one has ended: that one determines the residual and the next number."""
        if earlier is not None:
            earlier.settle()
        at = self._rounds.get(name, 0) if number is None else number
        if self.world_size == 1:
            self._rounds[name] = at + 1
            return flat, RoundOutcome(name, at, (0,), {}, True, 0, 0, 0, 0.0, 0.0, 0.0)
        return self._hold(name, at, flat, weight, reference)

    def _hold(
        self, name: str, number: int, flat: Tensor, weight: float | None, reference: Tensor | None
    ) -> tuple[Tensor, RoundOutcome]:
        """Hold a round; with `weight` None only follow it."""
        setting = self._setting
        store = self.store.counting()
        before = store.at(round_key(name, number - 1)) if number > 0 else None
        check = partial(check_floor, store, name, number)
        place = RoundStore(store.at(round_key(name, number)), name, number, flat.numel(), before, check)
        watch = Stopwatch(setting)
        sent, wanted = None, None
        if weight is not None:
            if bool(torch.isfinite(flat).all()):
                wanted = self._feedback.added(name, flat)
            sent = send(setting, place, wanted, weight, reference)
        try:
            found = exchange(setting, place, sent, watch)
        except RoundError:
            check()  # objects missing from a removed round are not an error
            raise
        check()
        if sent is not None or found.rounding:
            self._settle(name, wanted, sent, found)
        self._rounds[name] = number + 1
        if self._keep_rounds is not None and number >= self._keep_rounds and self.rank == min(found.seal.members):
            _tidy(store, name, number + 1 - self._keep_rounds)
        outcome = RoundOutcome(
            name=name,
            round=number,
            members=found.seal.members,
            refused=found.refused,
            counted=sent is not None and all(found.counted),
            bytes_up=store.traffic.up,
            bytes_down=store.traffic.down,
            requests=store.traffic.requests,
            seconds=watch.passed,
            waited=0.0,
            residual=self._feedback.norm(name),
        )
        return found.mean, outcome

    def _settle(self, name: str, wanted: Tensor | None, sent: Published | None, found: Exchanged) -> None:
        """Store the residual after a round: what was to be sent, less what counted, plus what was rounded off for all."""
        size = found.mean.numel()
        codec = self._setting.codec
        if wanted is None or sent is None:
            left = self._feedback.added(name, torch.zeros(size))
        elif found.refused.get(self.rank) == NORM:
            left = torch.zeros(size)
        else:
            left = wanted.clone()
            for counted, chunk, (begin, end) in zip(found.counted, sent.chunks, bounds(self._setting, size), strict=False):
                if counted:
                    left[begin:end] -= codec.decode(chunk, end - begin)
        for begin, end, cut in found.rounding:
            left[begin:end] += cut
        self._feedback.keep(name, left)


def _tidy(store: Store, name: str, floor: int) -> None:
    """Remove old rounds as `collect` does, ignoring errors: a store that fails here must not make a completed round look lost."""
    try:
        collect(store, name, floor)
    except ObjectStoreError as error:
        _log.warning("rounds of %s below %d stay in the store for now: %s", name, floor, error)


def _flat(tensors: Sequence[Tensor]) -> Tensor:
    """Return (n,) float32 on the CPU, in separate memory."""
    if not tensors:
        return torch.empty(0)
    return torch.cat([tensor.detach().to("cpu", torch.float32).reshape(-1) for tensor in tensors]).clone()


def _check(rank: int, world_size: int, quorum: int | None, deadline_s: float | None, keep_rounds: int | None) -> None:
    if world_size < 1:
        raise ArgumentError(f"a world of {world_size} replicas", fix="set world_size to 1 or more")
    if not 0 <= rank < world_size:
        raise ArgumentError(f"rank {rank} in a world of {world_size}", fix=f"ranks go from 0 to {world_size - 1}")
    if quorum is not None and not 1 <= quorum <= world_size:
        raise ArgumentError(f"a quorum of {quorum} in a world of {world_size}", fix=f"set it between 1 and {world_size}")
    if (quorum is not None and quorum < world_size) != (deadline_s is not None):
        raise ArgumentError(
            "a quorum needs a deadline, and a deadline a quorum below world_size",
            fix="set both `quorum` and `deadline_s`, or neither: then every round waits for everyone",
        )
    if keep_rounds is not None and keep_rounds < 2:
        raise ArgumentError(f"keep_rounds = {keep_rounds}", fix="keep two or more: the round before says who is still there")


def _check_positive(values: Mapping[str, float | None]) -> None:
    for name, value in values.items():
        if value is not None and not 0 < value < math.inf:
            raise ArgumentError(f"{name} = {value}", fix=f"set {name} to a number above 0")
