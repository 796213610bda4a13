"""`composer diloco`: the recipe in replicas that share an object store."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.live import Live
from rich.table import Table

from composer_replication.config import load_config
from composer_replication.observe.console import Console
from composer_replication.observe.verdict import refuse_failed
from composer_replication.types.errors import ConfigError

if TYPE_CHECKING:
    from composer_replication.diloco.serverless.protocol import ReplicaHandle, ReplicaStatus
    from composer_replication.recipes.diloco.status import Status

app = typer.Typer(no_args_is_help=True, help="Train one policy in replicas that share an object store and nothing else.")

_COLUMNS = ("replica", "state", "arm", "step", "round", "members", "up", "down", "stall", "reward")
Executor = Literal["local", "modal", "hf", "sky"]


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def run(
    context: typer.Context,
    run: Annotated[Path, typer.Argument(help="The run file (TOML), with a section diloco.")],
    replicas: Annotated[
        int | None, typer.Option("--replicas", min=1, help="Number of replicas; by default diloco.replicas.")
    ] = None,
    executor: Annotated[
        Executor | None,
        typer.Option("--executor", help="Where they start: this machine or a cloud; by default diloco.executor.type."),
    ] = None,
    gpu: Annotated[
        str | None, typer.Option("--gpu", help="GPU of each replica, in the executor's notation; by default diloco.executor.gpu.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the job from its state in the store.")] = False,
) -> None:
    """Train every arm of a run in replicas. Any field of the run file can be overridden, e.g. --diloco.sync_every 20.

    Each has its own rollouts and its own folder. One that is lost is launched again. A job that was interrupted continues with
    --resume, even if its machines are gone.
    """
    options = {"replicas": replicas, "executor.type": executor, "executor.gpu": gpu}
    words = [f"--diloco.{name}={value}" for name, value in options.items() if value is not None]
    config = load_config(run, ["--diloco.enabled", "true", *context.args, *words])
    from composer_replication.diloco.store import open_store
    from composer_replication.recipes.diloco.job import check_job, open_executor, rendezvous_of, run_job
    from composer_replication.recipes.diloco.result import fetch_policy
    from composer_replication.trainer.stages.before import started_from
    from composer_replication.trainer.stages.order import BEFORE_RL

    for stage in (one.name for one in BEFORE_RL if one.section(config).enabled):
        if config.diloco.executor.type != "local":
            raise ConfigError(
                f"{stage}.enabled = true and diloco.executor.type = {config.diloco.executor.type}: its machines cannot read what "
                f"`composer {stage}` wrote on this one",
                fix=f"put the trained model where they can, name it in model.path, and set {stage}.enabled = false",
            )
    config = started_from(config, BEFORE_RL)
    check_job(config, resume=resume)
    console = Console()
    with _signals_interrupt(), Live(console=console, auto_refresh=False, transient=not console.is_terminal) as live:
        view = _StatusView(live)
        results = run_job(config, open_executor(config.diloco.executor), view.seen, view.print_line)
    for rank, rows in enumerate(results):
        for row in rows:
            said = (
                f"replica {rank}, {row['arm']}: pass@1 {row['pass_at_1']:.3f}, {row['rollouts']} rollouts, {row['tokens']} tokens"
            )
            console.print(said, highlight=False)
            console.print(f"replica {rank}: {row['verdict']}", highlight=False, markup=False, soft_wrap=True)
    store = open_store(rendezvous_of(config))
    for row in results[0]:
        path = fetch_policy(store, row["arm"], config.out / config.name / "ckpt")
        console.print(f"weights of {row['arm']}: {path}", highlight=False, soft_wrap=True)
    if config.strict:
        refuse_failed([f"replica {rank}'s {row['arm']}" for rank, rows in enumerate(results) for row in rows if row["failed"]])


@contextlib.contextmanager
def _signals_interrupt() -> Iterator[None]:
    """Let SIGTERM, and SIGHUP from a terminal that closes, end the body as Ctrl-C does, with 128 + the signal: replicas are
    ended. They interrupt once, so that ending replicas is not interrupted by the next."""

    def interrupt(number: int, _frame: FrameType | None) -> None:
        for one in heard:
            signal.signal(one, signal.SIG_IGN)
        raise SystemExit(128 + number)

    heard = [one for one in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(one) is not signal.SIG_IGN]  # nohup's stays
    before = {one: signal.signal(one, interrupt) for one in heard}
    try:
        yield
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)


class _StatusView:
    """A table of replicas, redrawn when something has changed."""

    def __init__(self, live: Live) -> None:
        self._live = live
        self._last: object = None

    def print_line(self, line: str) -> None:
        """Print a line above the table, where it stays."""
        self._live.console.print(line, highlight=False, markup=False, soft_wrap=True)

    def seen(self, found: Sequence[tuple[ReplicaHandle, ReplicaStatus, Status | None]]) -> None:
        rows = [(handle.rank, state, status) for handle, state, status in found]
        if rows != self._last:
            self._last = rows
            self._live.update(_table(rows), refresh=True)


def _table(rows: Sequence[tuple[int, ReplicaStatus, Status | None]]) -> Table:
    table = Table(*_COLUMNS)
    for rank, state, status in rows:
        if status is None:
            table.add_row(str(rank), state.value)
            continue
        table.add_row(
            str(rank),
            state.value,
            status.arm,
            f"{status.step}/{status.steps}",
            str(status.round),
            str(status.members),
            f"{status.bytes_up / 1e6:.2f} MB",
            f"{status.bytes_down / 1e6:.2f} MB",
            f"{status.stall_s:.1f} s of {status.seconds:.0f} s",
            "" if status.reward is None else f"{status.reward:.3f}",
        )
    return table
