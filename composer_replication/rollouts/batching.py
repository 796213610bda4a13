"""Batches for an engine in this process, made from rollouts that ask one by one, and the same batches every time."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise

from composer_replication.rollouts.protocol import Engine, Sample, SampleRequest


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A request and the future that its rollout awaits."""

    request: SampleRequest
    temperature: float
    sample: asyncio.Future[Sample]


@dataclass(slots=True)
class _Cohort:
    """Sessions that are always sampled together."""

    live: list[str]
    """Sessions that have not ended, in the order of their rows in a batch."""
    waiting: dict[str, _Waiting] = field(default_factory=dict)


class BatchingEngine:
    """Adapt a batch `Engine` to `AsyncEngine`.

    The sessions are split into fixed cohorts. A cohort is sampled as one batch when every session of it has asked or ended, so
    which sessions share a batch, and in which order, does not depend on how long any tool or test took: a repeated or resumed
    run samples the same tokens bit for bit. Cohorts overlap: while the tools of one run, another one is sampled. All engine
    calls happen in one thread.

    Args:
        waves: every session that will be asked for, one list for those that live at the same time.
        cohorts: into how many contiguous parts of nearly equal size each wave is split.
    """

    def __init__(self, engine: Engine, waves: Sequence[Sequence[str]], *, cohorts: int) -> None:
        self._engine = engine
        self._thread = ThreadPoolExecutor(1, "rollout-engine")
        self._cohort_of: dict[str, _Cohort] = {}
        for part in (part for wave in waves for part in _split(wave, cohorts)):
            self._cohort_of |= dict.fromkeys(part, _Cohort(list(part)))
        self._ended: list[str] = []
        """Sessions to be closed in the engine before its next batch."""

    @property
    def context_window(self) -> int:
        return self._engine.context_window

    async def prepare(self) -> None:
        """Do nothing: no preparation is needed."""

    async def sample_one(self, request: SampleRequest, *, temperature: float) -> Sample:
        """Sample one turn, together with those of the session's cohort.

        Raises:
            ValueError: the session was not named at the start, or has been closed.
        """
        cohort = self._cohort_of.get(request.session)
        if cohort is None or request.session not in cohort.live:
            raise ValueError(f"session {request.session!r} belongs to no cohort")
        sample: asyncio.Future[Sample] = asyncio.get_running_loop().create_future()
        cohort.waiting[request.session] = _Waiting(request, temperature, sample)
        self._sample_if_complete(cohort)
        try:
            return await sample
        finally:
            cohort.waiting.pop(request.session, None)  # still present only if the rollout was cancelled

    def close(self, sessions: Sequence[str]) -> None:
        """End sessions; their cohorts wait for them no longer. Unknown names are ignored."""
        for name in sessions:
            cohort = self._cohort_of.get(name)
            if cohort is not None and name in cohort.live:
                cohort.live.remove(name)
                self._ended.append(name)
                self._sample_if_complete(cohort)

    def shutdown(self, *, wait: bool) -> None:
        """Sample no further batch. With `wait`, wait for the one in the engine and close every session there."""
        self._thread.shutdown(wait=wait, cancel_futures=True)
        if wait:
            self._engine.close(list(self._cohort_of))

    # --- inside -----------------------------------------------------------------------------------------------------------

    def _sample_if_complete(self, cohort: _Cohort) -> None:
        if not cohort.live or len(cohort.waiting) < len(cohort.live):
            return
        batch = [cohort.waiting[name] for name in cohort.live]
        cohort.waiting.clear()
        ended, self._ended = self._ended, []
        call = asyncio.get_running_loop().run_in_executor(self._thread, partial(self._sample, ended, batch))
        call.add_done_callback(partial(_deliver, batch))

    def _sample(self, ended: Sequence[str], batch: Sequence[_Waiting]) -> list[Sample]:
        temperatures = {waiting.temperature for waiting in batch}
        if len(temperatures) > 1:
            raise ValueError(f"one batch has one temperature, not {sorted(temperatures)}")
        if ended:
            self._engine.close(ended)
        return self._engine.sample([waiting.request for waiting in batch], temperature=temperatures.pop())


def _deliver(batch: Sequence[_Waiting], call: asyncio.Future[list[Sample]]) -> None:
    """Pass the samples of a batch, or its error, to the rollouts that still wait."""
    error = None if call.cancelled() else call.exception()
    for i, waiting in enumerate(batch):
        if waiting.sample.done():
            continue
        if call.cancelled():
            waiting.sample.cancel()
        elif error is not None:
            waiting.sample.set_exception(error)
        else:
            waiting.sample.set_result(call.result()[i])


def _split(sessions: Sequence[str], parts: int) -> list[Sequence[str]]:
    """Return contiguous parts of nearly equal size, none empty."""
    parts = min(parts, len(sessions))
    bounds = [len(sessions) * i // parts for i in range(parts + 1)] if parts else []
    return [sessions[a:b] for a, b in pairwise(bounds)]
