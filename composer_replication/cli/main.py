"""The top-level command line, and how it prints errors.

A `ComposerError` prints the problem and the fix, without a traceback, and ends with its class's exit code (drawn in
`composer_replication.types.errors`), even where it cannot be printed; so does standard output that cannot be written. Ctrl-C ends
with 130. Anything else is a bug and keeps its traceback.
"""

from __future__ import annotations

import contextlib
import os
import sys
from importlib.metadata import version
from typing import Annotated

import typer
from rich.text import Text

from composer_replication.cli.diloco_cmd import app as diloco_app
from composer_replication.cli.doctor_cmd import doctor
from composer_replication.cli.eval_cmd import evaluate
from composer_replication.cli.exchange_cmd import export_tasks, import_tasks, pull_tasks, push_tasks
from composer_replication.cli.grade_cmd import grade
from composer_replication.cli.hints_cmd import app as hints_app
from composer_replication.cli.pairs_cmd import app as pairs_app
from composer_replication.cli.plan_cmd import plan
from composer_replication.cli.prm_cmd import app as prm_app
from composer_replication.cli.quickstart_cmd import quickstart
from composer_replication.cli.replay_cmd import replay
from composer_replication.cli.report_cmd import report
from composer_replication.cli.rollout_cmd import rollout
from composer_replication.cli.serve_cmd import app as serve_app
from composer_replication.cli.tasks_cmd import app as tasks_app
from composer_replication.cli.traces_cmd import app as traces_app
from composer_replication.cli.train_cmd import pretrain, sft, train
from composer_replication.cli.weights_cmd import app as weights_app
from composer_replication.observe.console import Console, echo
from composer_replication.types.errors import ComposerError, StorageError
from composer_replication.types.guarded_streams import GuardedStream, guard_streams

INTERRUPTED = (129, 130, 143)
"""Exit statuses after SIGHUP, Ctrl-C, SIGTERM."""

_UNREAD = 1
"""Exit status where whoever read the output has stopped."""

_EXIT_CODES = (
    "Exit codes: 1 the reader of the output has gone (a closed pipe), 2 usage or configuration, 3 task or source, 4 sandbox, "
    "5 model, 6 teacher or budget, 7 checkpoint or disk, 8 nothing was learnt (strict), 9 nothing is a trace or a pair, "
    "10 the verdict is no (grade, rollout) or nothing is left (pairs), 11 a program that does the work died (data-juicer, Ray), "
    "130 interrupted (143 by SIGTERM, 129 by SIGHUP)."
)


def _show_version(asked: bool) -> None:
    if asked:
        echo(version("composer-replication"))
        raise typer.Exit


app = typer.Typer(
    epilog=_EXIT_CODES,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


@app.callback()
def _top(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and stop.")
    ] = False,
) -> None:
    """RL post-training of any Hugging Face model into an agentic coder: tests-pass RL, hints and replay in one loss."""


app.command()(quickstart)
tasks_app.command("export")(export_tasks)
tasks_app.command("import")(import_tasks)
tasks_app.command("push")(push_tasks)
tasks_app.command("pull")(pull_tasks)
app.add_typer(tasks_app, name="tasks")
app.command()(grade)
app.command()(rollout)
app.command()(plan)
app.command()(replay)
app.add_typer(serve_app, name="serve")
app.add_typer(pairs_app, name="pairs")
app.add_typer(traces_app, name="traces")
app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})(pretrain)
app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})(sft)
app.command("eval", context_settings={"allow_extra_args": True, "ignore_unknown_options": True})(evaluate)
app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})(train)
app.add_typer(diloco_app, name="diloco")
app.add_typer(prm_app, name="prm")
app.add_typer(weights_app, name="weights")
app.command()(report)
app.add_typer(hints_app, name="hints")
app.command()(doctor)


def main() -> None:
    """Run the `composer` command."""
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    guard_streams()
    console = Console(stderr=True)
    out, err = sys.stdout, sys.stderr  # the guards, whatever stands there later
    status = _status(console, out, err)
    if lost := _lost(out):
        status = status or _unwritten(lost)
        if not isinstance(lost, BrokenPipeError):  # whoever reads may stop reading
            _show(console, StorageError(f"standard output cannot be written ({lost.strerror})", fix="send it elsewhere"))
    for stream in (out, err):
        if _lost(stream):
            with open(os.devnull, "wb") as nothing:  # what is left of it would fail again when the interpreter ends
                os.dup2(nothing.fileno(), stream.fileno())
    sys.exit(status)


def _status(console: Console, out: object, err: object) -> int:
    """Run the command and return its exit status, also where its error cannot be written."""
    try:
        app()
    except ComposerError as error:
        _show(console, error)
        return error.exit_code
    except SystemExit as ended:  # typer turns Ctrl-C into this, `diloco run` SIGTERM, rich a pipe that nobody reads
        status = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
        if status in INTERRUPTED:
            _print(
                console,
                "interrupted; what was done is kept, and the same command (`pretrain`, `sft` and `train` with --resume) goes on",
            )
        return (_lost(err) and _reported(ended)) or status
    except OSError as error:
        if _lost(out) is None and _lost(err) is None:
            raise
        return _reported(error) or _unwritten(error)
    return 0


def _reported(error: BaseException) -> int:
    """Return the exit code of what was about to be printed when an error occurred; 0 where that was no error."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(code := getattr(cause, "exit_code", None), int):
            return code
        cause = cause.__context__
    return 0


def _unwritten(error: OSError) -> int:
    return _UNREAD if isinstance(error, BrokenPipeError) else StorageError.exit_code


def _show(console: Console, error: ComposerError) -> None:
    _print(console, Text("error: ", style="bold red") + Text(str(error)), soft_wrap=True)


def _print(console: Console, text: str | Text, *, soft_wrap: bool = False) -> None:
    """Print to standard error, or nothing where that cannot be written: the exit status says the rest."""
    with contextlib.suppress(OSError, SystemExit):
        console.print(text, soft_wrap=soft_wrap)


def _lost(stream: object) -> OSError | None:
    """Return why something could not be written to a guarded stream; None where everything could."""
    if not isinstance(stream, GuardedStream):  # there is none
        return None
    with contextlib.suppress(OSError):
        stream.flush()
    return stream.lost
