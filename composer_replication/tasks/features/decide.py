"""Decisions on candidates: in a fixed order, a few at once, each once, across interruptions."""

from __future__ import annotations

import json
import shutil
import time
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from composer_replication.languages.functions import Skipped
from composer_replication.tasks.files import foreign_state, storage_errors, write_whole
from composer_replication.tasks.proofs.validate import CandidateVerdict
from composer_replication.tasks.report import BuildEvent, BuildOptions, Progress
from composer_replication.tasks.store import load_task, publish_task
from composer_replication.types.errors import TaskError

VERDICTS = "verdicts.jsonl"
"""The file of a build's state with a line for each decided candidate."""


class Decidable(Protocol):
    """A candidate for a task."""

    @property
    def key(self) -> str:
        """A name that is the same in every build of the same source."""
        ...


_C = TypeVar("_C", bound=Decidable)
_Tried = TypeVar("_Tried", bound=Decidable, contravariant=True)


class Deciding(Protocol[_Tried]):
    """Decides on candidates, from several threads at once."""

    @property
    def staging(self) -> Path:
        """The folder below which it leaves the tasks that it has proven."""
        ...

    def validate(self, candidate: _Tried) -> CandidateVerdict:
        """Prove a task, or say why it is none. Raises SandboxError and StorageError, which say nothing about the candidate."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildWork(Generic[_C]):
    """What a build decides on."""

    validator: Deciding[_C]
    candidates: Sequence[_C]
    """In the order in which they are decided."""
    skipped: tuple[Skipped, ...] = ()
    """What is not tried, and why."""
    notes: tuple[str, ...] = ()
    """For `BuildReport.notes`."""
    jobs: int = 1
    """Candidates decided at once."""


class Decider(Generic[_C]):
    """Decides candidates in order on a few threads, and publishes tasks in that order.

    Args:
        out: where tasks are published.
        state: where verdicts are kept; those of an earlier, interrupted call are used again.
        deadline: of `time.monotonic()`, after which no candidate is begun.

    Raises:
        TaskError: `state` is another release's.
    """

    def __init__(
        self,
        out: Path,
        state: Path,
        *,
        work: BuildWork[_C],
        options: BuildOptions,
        tell: Progress,
        deadline: float | None,
    ) -> None:
        self._out, self._state, self._validator, self._candidates = out, state, work.validator, work.candidates
        self._jobs, self._tell, self._deadline = work.jobs, tell, deadline
        self.tasks: list[str] = []
        self.dropped: list[Skipped] = []
        self.pythons: dict[str, str] = {}
        self.forgeable = 0
        self.impossible = 0
        self._verdicts_file = state / VERDICTS
        self._known = {verdict.candidate: verdict for verdict in self._read_verdicts()}
        self._most = None if options.max_tasks is None else max(options.max_tasks, self._already_there())

    def decide_all(self) -> str:
        """Decide every candidate; return why some are left: `max_tasks`, `budget` or nothing.

        Raises:
            SandboxError: the sandbox broke.
            StorageError: a task or verdict cannot be written.
        """
        stopped = self._decide()
        shutil.rmtree(self._validator.staging, ignore_errors=True)
        return stopped

    def _decide(self) -> str:
        decided: set[str] = set()
        for verdict in self._verdicts():
            if verdict is None:
                return "budget"
            if verdict.dropped:
                self.dropped.append(Skipped(verdict.candidate, verdict.dropped, verdict.weakness or verdict.detail))
            elif verdict.task_id in decided:  # a feature that became smaller in an interrupted build, and another in this one
                self.dropped.append(Skipped(verdict.candidate, "needs only the functions of another task"))
            else:
                self._publish(verdict.task_id)
                self.tasks.append(verdict.task_id)
                decided.add(verdict.task_id)
                self.pythons |= {verdict.task_id: verdict.python} if verdict.python else {}
                self.forgeable += bool(verdict.weakness)
                self.impossible += verdict.impossible
            self._report(verdict)
            if len(self.tasks) == self._most:
                return "" if len(self.tasks) + len(self.dropped) == len(self._candidates) else "max_tasks"
        return ""

    def _already_there(self) -> int:
        """Return the number of tasks up to the last one that an earlier call published: `max_tasks` cannot be lower, as none is
        removed."""
        known = [verdict for c in self._candidates if (verdict := self._known.get(c.key)) and not verdict.dropped]
        return max((n for n, verdict in enumerate(known, 1) if (self._out / verdict.task_id).exists()), default=0)

    def _verdicts(self) -> Iterator[CandidateVerdict | None]:
        """Yield verdicts in order of candidates; None when the budget ends before one is begun."""
        self._report()
        waiting: deque[Future[CandidateVerdict] | CandidateVerdict | None] = deque()
        upcoming = iter(self._candidates)
        executor = ThreadPoolExecutor(self._jobs, thread_name_prefix="validate")
        try:
            while True:
                while len(waiting) < 2 * self._jobs and (candidate := next(upcoming, None)) is not None:
                    waiting.append(self._begin(executor, candidate))
                if not waiting:
                    return
                head = waiting.popleft()
                if isinstance(head, Future):
                    head = head.result()
                    self._remember(head)
                yield head
        finally:
            executor.shutdown(wait=True, cancel_futures=True)

    def _begin(self, executor: ThreadPoolExecutor, candidate: _C) -> Future[CandidateVerdict] | CandidateVerdict | None:
        known = self._known.get(candidate.key)
        if known is not None and (known.dropped or self._is_intact(known.task_id)):
            return known
        if self._deadline is not None and time.monotonic() > self._deadline:
            return None
        return executor.submit(self._validator.validate, candidate)

    def _is_intact(self, task_id: str) -> bool:
        for folder in (self._out, self._validator.staging):
            if (folder / task_id).exists():
                try:
                    load_task(folder / task_id)
                except TaskError:
                    continue
                return True
        return False

    def _publish(self, task_id: str) -> None:
        staged = self._validator.staging / task_id
        if staged.exists():
            publish_task(staged, self._out / task_id)

    def _remember(self, verdict: CandidateVerdict) -> None:
        line = json.dumps(asdict(verdict)) + "\n"
        with storage_errors(self._state), self._verdicts_file.open("a", encoding="utf-8") as file:
            file.write(line)

    def _read_verdicts(self) -> Iterator[CandidateVerdict]:
        """Yield decided candidates; a last line that a killed build left torn is cut off. Raises TaskError for another
        release's."""
        if not self._verdicts_file.exists():
            return
        data = self._verdicts_file.read_bytes()
        whole = data[: data.rfind(b"\n") + 1]
        if whole != data:
            write_whole(self._verdicts_file, whole)
        for line in whole.splitlines():
            try:
                yield CandidateVerdict(**json.loads(line))
            except (TypeError, ValueError) as error:
                raise foreign_state(self._verdicts_file) from error

    def _report(self, last: CandidateVerdict | None = None) -> None:
        self._tell(
            BuildEvent(
                "validating",
                done=len(self.tasks) + len(self.dropped),
                total=len(self._candidates),
                tasks=len(self.tasks),
                wanted=self._most,
                dropped=len(self.dropped),
                last="" if last is None else f"{last.candidate}: {last.dropped or last.task_id}",
            )
        )
