"""`composer doctor`: what this machine has, and whether its sandboxes hold."""

from __future__ import annotations

import dataclasses
import json
import os
import platform
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Annotated, Any

import typer
from rich import box
from rich.table import Table
from rich.text import Text

from composer_replication.config import SubstrateType
from composer_replication.observe.console import Console, echo
from composer_replication.recipes.substrates import SUBSTRATES
from composer_replication.sandbox import SandboxKind, open_sandbox
from composer_replication.sandbox.doctor.selftest import ProbeResult, ProbeVerdict, self_test
from composer_replication.sandbox.opening import survey
from composer_replication.sandbox.protocol import Isolation
from composer_replication.types.errors import ConfigError

EXIT_NOT_CONTAINED = 4

_COLOURS = {ProbeVerdict.BLOCKED: "green", ProbeVerdict.ADMITTED: "yellow", ProbeVerdict.OPEN: "red", ProbeVerdict.BROKEN: "red"}


def doctor(
    sandbox: Annotated[bool, typer.Option("--sandbox", help="Try to break out of every sandbox this machine allows.")] = False,
    kind: Annotated[
        SandboxKind,
        typer.Option(metavar="KIND", help="Try this kind only, docker:IMAGE or remote:URL for one; auto: every isolating kind."),
    ] = "auto",
    substrate: Annotated[
        SubstrateType | None,
        typer.Option("--substrate", help="Report what this substrate needs, what is missing, and what it does not support."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Report what this machine supports; with --sandbox, run the containment self-test.

    Exits with 4 when no isolation works here, when a sandbox lets something through that it does not declare, or when a
    probe could not be carried out; with --substrate, with 2 when something is missing.
    """
    console = Console(stderr=as_json)
    if substrate is not None:
        _show_substrate(console, substrate, as_json)
        return
    kinds: Mapping[SandboxKind, Isolation | str] = survey() if kind == "auto" else {kind: open_sandbox(kind).isolation}
    machine = _machine()
    _show_machine(console, machine, kinds)
    found = {name: _try_out(console, name) for name, shown in kinds.items() if isinstance(shown, Isolation)} if sandbox else {}
    contained = any(isinstance(shown, Isolation) for shown in kinds.values())
    contained &= not any(f.verdict in (ProbeVerdict.OPEN, ProbeVerdict.BROKEN) for findings in found.values() for f in findings)
    if as_json:
        echo(json.dumps({"machine": machine, "sandboxes": _as_plain(kinds, found), "contained": contained}))
    if not contained:
        raise typer.Exit(EXIT_NOT_CONTAINED)


def _show_substrate(console: Console, kind: SubstrateType, as_json: bool) -> None:
    about = SUBSTRATES[kind]
    missing = about.missing()
    table = Table(box=None, show_header=False)
    table.add_row(kind, about.about)
    for need in about.needs():
        found = "missing" if need.found is None else f"{need.found} installed"
        table.add_row(need.requirement, found, style=None if need.met else "red")
    if about.checkout:
        table.add_row(about.checkout, os.environ.get(about.checkout) or "not set")
    for line in about.cannot:
        table.add_row("cannot", line)
    console.print(table)
    if missing:
        console.print(f"missing: {', '.join(missing)}\nfix: {about.fix}", markup=False, highlight=False, soft_wrap=True)
    if as_json:
        needs = {need.requirement: need.found for need in about.needs()}
        echo(json.dumps({"substrate": kind, "needs": needs, "missing": missing, "cannot": about.cannot}))
    if missing:
        raise typer.Exit(ConfigError.exit_code)


def _machine() -> dict[str, str]:
    import torch

    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    folder = tempfile.gettempdir()
    devices = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    return {
        "system": f"{platform.system()} {platform.release()}, {platform.machine()}, user {os.geteuid()}",
        "python": platform.python_version(),
        "cores": str(len(os.sched_getaffinity(0))),
        "memory": f"{memory / 2**30:.1f} GiB",
        "temporary files": f"{folder}, {shutil.disk_usage(folder).free / 2**30:.1f} GiB free",
        "torch": version("torch"),
        "accelerators": ", ".join(devices) or "none",
    }


def _show_machine(console: Console, machine: Mapping[str, str], kinds: Mapping[SandboxKind, Isolation | str]) -> None:
    table = Table(box=None, show_header=False)
    for name, value in machine.items():
        table.add_row(name, value)
    for kind, shown in kinds.items():
        available = isinstance(shown, Isolation)
        table.add_row(kind, shown.summary() if isinstance(shown, Isolation) else shown, style=None if available else "dim")
    console.print(table)


def _try_out(console: Console, kind: SandboxKind) -> list[ProbeResult]:
    table = Table(kind, "tries", "", box=box.SIMPLE_HEAD)
    findings = []
    for finding in self_test(open_sandbox(kind)):
        findings.append(finding)
        verdict = Text(finding.verdict, style=_COLOURS[finding.verdict])
        detail = f": {', '.join(finding.detail)}" if finding.detail else ""
        table.add_row(finding.probe, finding.tries, Text.assemble(verdict, detail))
    console.print(table)
    return findings


def _as_plain(kinds: Mapping[SandboxKind, Isolation | str], found: Mapping[SandboxKind, Sequence[ProbeResult]]) -> dict[str, Any]:
    plain: dict[str, Any] = {}
    for kind, shown in kinds.items():
        if isinstance(shown, Isolation):
            probes = [dataclasses.asdict(finding) for finding in found.get(kind, ())]
            plain[kind] = {"isolation": dataclasses.asdict(shown), "probes": probes}
        else:
            plain[kind] = {"unavailable": shown}
    return plain
