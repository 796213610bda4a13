"""`composer serve`: environments for other frameworks' clients."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Annotated

import typer

from composer_replication.cli.support.options import ForgeableOption, SandboxOption
from composer_replication.observe.console import echo
from composer_replication.types.errors import ConfigError

app = typer.Typer(help="Serve tasks to other frameworks.", no_args_is_help=True)


@app.command()
def openenv(
    tasks: Annotated[Path, typer.Option(help="Folder of tasks, as `composer tasks build` writes it.")],
    host: Annotated[str, typer.Option(help="Address to listen on. There is no authentication.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 takes a free one.")] = 8000,
    max_sessions: Annotated[int, typer.Option(min=1, help="Clients served at once; further ones are refused.")] = 64,
    session_timeout: Annotated[float | None, typer.Option(min=1.0, help="Seconds of silence that end a session.")] = None,
    python: Annotated[Path | None, typer.Option(help="Interpreter for the tests; the one the tasks were built with.")] = None,
    sandbox: SandboxOption = "auto",
    forgeable: ForgeableOption = False,
    shell: Annotated[bool, typer.Option("--shell", help="Offer agents shell commands and patches too.")] = False,
    allow_origin: Annotated[
        list[str] | None, typer.Option(help="A web page's origin (https://example.org) that may connect; others are refused.")
    ] = None,
) -> None:
    """Serve the coding environment over OpenEnv's websocket protocol, a session per client, until interrupted.

    Prints `serving N tasks on URL` once clients may connect.
    """
    from composer_replication.envs.suite import TaskSuite
    from composer_replication.integrations.openenv import coding_app  # takes seconds to import

    suite = TaskSuite(tasks, sandbox=sandbox, python=python, toolset="shell" if shell else "basic", forgeable=forgeable)
    origins = frozenset(allow_origin or ())
    application = coding_app(suite, max_sessions=max_sessions, session_timeout_s=session_timeout, allowed_origins=origins)
    import uvicorn

    try:
        listener = socket.create_server((host, port))
    except OSError as error:
        raise ConfigError(
            f"cannot listen on {host}:{port} ({error.strerror})",
            fix="choose another --port, or an IPv4 address of this machine as --host",
        ) from error
    with listener:
        number = listener.getsockname()[1]
        echo(f"serving {len(suite.tasks)} tasks on http://{host}:{number}, at most {max_sessions} sessions")
        echo(suite.sandbox.isolation.summary())
        uvicorn.Server(uvicorn.Config(application, log_level="warning")).run(sockets=[listener])
