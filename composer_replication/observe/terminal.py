"""The live view of a run: phase, progress, time left, reward, and each channel or why it is off.

On a terminal the phases are live progress bars below the lines already printed; elsewhere (a pipe, a log file, TERM=dumb) only
plain lines are printed. Everything shown is also passed to `on_event`, normally `RunDir.log_event`.
"""

from __future__ import annotations

import contextlib
import math
import re
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from rich import box
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

from composer_replication.observe.console import Console
from composer_replication.observe.metrics import usd
from composer_replication.types.channels import CHANNELS

_COUNTED = {"hint": ("hint/turns", "turn"), "replay": ("replay/pairs", "pair")}
_ZERO = 1e-6
_BLOCKS = "▁▂▃▄▅▆▇█"
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029]")
_PLAIN_WIDTH = 160
_PLAIN_EVERY_S = 10.0


EventSink: TypeAlias = Callable[..., None]
"""Receives a record of everything shown, as `sink(kind, message, **fields)`."""


class Phase:
    """One running phase; `advance` may be called from several threads."""

    def __init__(self, terminal: Terminal, name: str, total: int | None, outermost: bool) -> None:
        self.name = name
        self.total = total
        self.done = 0
        self._terminal = terminal
        self._outermost = outermost
        self._started = time.monotonic()
        self._task = terminal._progress.add_task(name, total=total) if terminal._live else None

    def advance(self, n: int = 1) -> None:
        """Count `n` more units of work as done."""
        with self._terminal._lock:
            self.done += n
            if self._task is not None:
                self._terminal._progress.advance(self._task, n)
            elif self._outermost and time.monotonic() - self._terminal._printed >= _PLAIN_EVERY_S:
                self._terminal._print(f"{self.name} {self._count()}{self._eta()}")

    @property
    def seconds(self) -> float:
        """Wall-clock seconds since the phase began."""
        return time.monotonic() - self._started

    def _count(self) -> str:
        return f"{self.done}/{self.total}" if self.total is not None else str(self.done)

    def _eta(self) -> str:
        if not self.total or not self.done:
            return ""
        return f" (eta {_clock(self.seconds / self.done * (self.total - self.done))})"

    def _finish(self, ending: str) -> None:
        counted = f" {self._count()}" if self.done or self.total else ""
        message = f"{self.name}{counted} {ending} after {_clock(self.seconds)}"
        if self._task is not None:
            self._terminal._progress.remove_task(self._task)
        if self._outermost or ending != "done":
            self._terminal._print(message)
        self._terminal._event(
            "phase", message, name=self.name, ending=ending, done=self.done, total=self.total, seconds=self.seconds
        )


class Terminal:
    """The live display of one run."""

    def __init__(self, console: Console | None = None, *, on_event: EventSink | None = None) -> None:
        """Create the terminal. `console` defaults to standard output; `on_event` may also be set later, once a run directory
        exists."""
        self.on_event = on_event
        self._console = console if console is not None else Console()
        self._live = self._console.is_interactive and not self._console.is_dumb_terminal
        if not self._live:
            self._console.width = max(self._console.width, _PLAIN_WIDTH)
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("eta"),
            TimeRemainingColumn(),
            console=self._console,
            transient=True,
        )
        self._lock = threading.RLock()
        self._printed = time.monotonic()
        self._depth = 0
        self._isolation: set[str] = set()
        self._rewards: defaultdict[str, list[float]] = defaultdict(list)
        self._first_step: dict[str, tuple[int, float]] = {}

    @contextlib.contextmanager
    def phase(self, name: str, total: int | None = None) -> Iterator[Phase]:
        """Show a phase while the body runs. Phases nest; `total` is the units of work expected, None when unknown."""
        with self._lock:
            if self._live and self._depth == 0:
                self._progress.start()
            phase = Phase(self, name, total, outermost=self._depth == 0)
            if self._depth == 0 and not self._live:
                self._print(f"{name} ..." if total is None else f"{name} 0/{total}")
            self._depth += 1
        ending = "stopped"
        try:
            yield phase
            ending = "done"
        finally:
            with self._lock:
                self._depth -= 1
                try:
                    phase._finish(ending)
                finally:
                    if self._live and self._depth == 0:
                        self._progress.stop()

    def step(self, arm: str, step: int, total: int, metrics: Mapping[str, float], off: Mapping[str, str]) -> None:
        """Show one training step.

        Args:
            step: optimizer steps taken by `arm`, out of `total`.
            metrics: reads `reward/mean`, `eval/pass_at_1`, `eval/pass_at_1_se`, `cost/usd` and what `channel_line` reads.
            off: for each channel that is off, why.
        """
        with self._lock:
            parts = [self._progress_text(arm, step, total)]
            if (reward := metrics.get("reward/mean")) is not None:
                self._rewards[arm].append(reward)
                parts.append(f"reward {_number(reward)} {_sparkline(self._rewards[arm])}")
            if (passed := metrics.get("eval/pass_at_1")) is not None:
                se = metrics.get("eval/pass_at_1_se", math.nan)
                parts.append(f"pass@1 {passed:.3f}" + (f" ± {se:.3f}" if math.isfinite(se) else ""))
            imitates = "lm_ce/loss" in metrics
            parts.append(f"cross-entropy {_number(metrics['lm_ce/loss'])}" if imitates else channel_line(metrics, off))
            if spent := metrics.get("cost/usd"):
                parts.append(f"${usd(spent)}")
            message = "  ".join(parts)
            self._print(message)
            self._event("step", message, arm=arm, step=step, total=total, off=dict(off))

    def note(self, text: str) -> None:
        """Show a line of text."""
        with self._lock:
            self._print(text)
            self._event("note", text)

    def isolation(self, summary: str) -> None:
        """Show what separates sandboxes from the host (`Isolation.summary()`); each distinct summary once."""
        with self._lock:
            if summary not in self._isolation:
                self._isolation.add(summary)
                self._print(f"sandbox  {summary}")
                self._event("isolation", summary)

    def table(self, title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
        """Show a table; every row has one cell per column."""
        cells = [[str(cell) for cell in row] for row in rows]
        table = Table(title=self._clean(title), title_justify="left", box=box.SIMPLE_HEAD if self._live else box.ASCII)
        for index, column in enumerate(columns):
            numeric = bool(cells) and all(_starts_numeric(row[index]) for row in cells)
            table.add_column(self._clean(column), justify="right" if numeric else "left", overflow="fold")
        for row in cells:
            table.add_row(*(self._clean(cell) for cell in row))
        with self._lock:
            self._console.print(table)
            self._event("table", title, columns=list(columns), rows=cells)

    def _progress_text(self, arm: str, step: int, total: int) -> str:
        """Return `ARM 12/60 eta 1:23`, from the pace since the first step shown."""
        now = time.monotonic()
        first, began = self._first_step.setdefault(arm, (step, now))
        eta = f" eta {_clock((now - began) / (step - first) * (total - step))}" if first < step < total else ""
        return f"{arm} {step}/{total}{eta}"

    def _print(self, message: str) -> None:
        self._printed = time.monotonic()
        self._console.print(self._clean(message), soft_wrap=True)

    def _event(self, kind: str, message: str, **fields: Any) -> None:
        if self.on_event is not None:
            self.on_event(kind, message, **fields)

    def _clean(self, text: str) -> Text:
        """Return the text as is: no markup, no control sequences, and only characters the output's encoding has."""
        shown = _CONTROL.sub("\N{REPLACEMENT CHARACTER}", text)
        encoding = self._console.encoding
        return Text(shown.encode(encoding, "replace").decode(encoding))


def channel_line(metrics: Mapping[str, float], off: Mapping[str, str]) -> str:
    """Format `rlvr 0.123 | hint 0.456 (12 turns) | replay off: no pairs yet`: every channel, and why a zero is a zero.

    Args:
        metrics: `CHANNEL/loss` and the counts that explain it.
        off: for each channel that is off, why.
    """
    return " | ".join(_channel(name, metrics, off.get(name)) for name in CHANNELS)


def _channel(name: str, metrics: Mapping[str, float], off: str | None) -> str:
    if off is not None:
        return f"{name} off: {off}"
    value = metrics.get(f"{name}/loss")
    if value is None:
        return f"{name} off: not measured at this step"
    remarks = []
    if name in _COUNTED and _COUNTED[name][0] in metrics:
        count = int(metrics[_COUNTED[name][0]])
        remarks.append(f"{count} {_COUNTED[name][1]}{'' if count == 1 else 's'}")
    if not math.isfinite(value):
        remarks.append("not finite")
    elif abs(value) < _ZERO:
        remarks.append(_why_zero(name, metrics))
    return f"{name} {_number(value)}" + (f" ({', '.join(remarks)})" if remarks else "")


def _why_zero(name: str, metrics: Mapping[str, float]) -> str:
    """Return the reason why an active channel shows zero."""
    if name == "rlvr":
        if metrics.get("rlvr/frac_zero_std") == 1.0:
            return "the rewards in every group are equal: no advantage"
        return "expected on-policy: the ratio is 1 and advantages cancel; the gradient does not"
    if metrics.get(_COUNTED[name][0]) == 0:
        return "no error turns in the batch" if name == "hint" else "no pairs in the batch"
    return "student and self-teacher agree" if name == "hint" else "every pair is already ordered"


def _number(value: float) -> str:
    if not math.isfinite(value):
        return str(value)
    if abs(value) < _ZERO:
        return "0.000"
    return f"{value:.3f}" if abs(value) >= 1e-3 else f"{value:.1e}"


def _sparkline(values: Sequence[float], width: int = 16) -> str:
    """Draw the last values as blocks; the scale is 0 to 1, wider where the values are."""
    shown = [v for v in values[-width:] if math.isfinite(v)]
    low, high = min([0.0, *shown]), max([1.0, *shown])
    return "".join(_BLOCKS[round((v - low) / (high - low) * (len(_BLOCKS) - 1))] for v in shown)


def _starts_numeric(cell: str) -> bool:
    return cell[:1].isdigit() or cell[:2] in ("n/", "--") or (cell[:1] in "+-.$" and cell[1:2].isdigit()) or cell in ("", "nan")


def _clock(seconds: float) -> str:
    """Format `7 s`, `1:23` (minutes) or `2:03:04`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    hours, rest = divmod(whole, 3600)
    return f"{hours}:{rest // 60:02d}:{rest % 60:02d}" if hours else f"{rest // 60}:{rest % 60:02d}"
