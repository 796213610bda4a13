"""`composer weights`: the policy's weights on their way to a server."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from composer_replication.observe.console import echo

app = typer.Typer(help="Bring a run's weights to the machine of its server.", no_args_is_help=True)


@app.command("follow")
def follow_command(
    store: Annotated[str, typer.Argument(help="The run's rollout.server_store: a folder, s3://, gs:// or az://.")],
    run: Annotated[str, typer.Option(help="The run's name.")],
    into: Annotated[Path, typer.Option(file_okay=False, help="Folder on this machine that the server can read.")],
    versions: Annotated[int | None, typer.Option(min=1, help="Stop after this many; without it, when interrupted.")] = None,
) -> None:
    """Write every new version of a run's weights into INTO/RUN, where its vLLM or SGLang server loads it.

    Start it on the server's machine, before or after the run; only what has changed is fetched. Killed and started again, it
    continues with the newest version.
    """
    from composer_replication.diloco.store import open_store
    from composer_replication.weights.follow import follow

    for pulled in follow(open_store(store).at(run), into, run=run, versions=versions):
        shards = f"{pulled.full} shards whole and {pulled.patched} patched"
        echo(f"version {pulled.version} is in {into / run / pulled.facts['label']}: {pulled.bytes_down:,} bytes, {shards}")


@app.command("merge")
def merge_command(
    adapters: Annotated[Path, typer.Argument(exists=True, file_okay=False, help="A checkpoint of a run with model.lora.rank.")],
    into: Annotated[Path, typer.Argument(file_okay=False, help="Folder for the whole model; it must not exist or be empty.")],
) -> None:
    """Add a checkpoint's LoRA adapters to the model that they were trained on, and write the whole model in bfloat16.

    Any server loads what this writes, and a later run may start from it.
    """

    from composer_replication.loss.forward.adapters import ADAPTER_FILE
    from composer_replication.loss.forward.models import write_merged
    from composer_replication.observe.files import storage_errors
    from composer_replication.types.errors import ConfigError

    if not (adapters / ADAPTER_FILE).is_file():
        raise ConfigError(f"{adapters} holds no LoRA adapters (no {ADAPTER_FILE})", fix="name a checkpoint of a LoRA run")
    if into.is_dir() and any(into.iterdir()):
        raise ConfigError(f"{into} is not empty", fix="name a new folder")
    with storage_errors(into):
        write_merged(adapters, into, "bfloat16")
    echo(f"{into} holds the whole model")
