"""Pick the strongest sandbox this machine allows, prove it with a probe, and say in words what it does and does not enforce."""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import shutil
import socket
import sys
import threading
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from composer_replication.sandbox.backends import landlock
from composer_replication.sandbox.backends.box import BoxSandbox, Setup
from composer_replication.sandbox.backends.cgroup import Cgroups, find_cgroups
from composer_replication.sandbox.backends.docker import DEFAULT_IMAGE, DockerSandbox, open_docker
from composer_replication.sandbox.backends.namespaces import BOX_UID
from composer_replication.sandbox.interpreter import reachable_by
from composer_replication.sandbox.protocol import Command, Ending, Isolation, Limits, Sandbox, Tree
from composer_replication.sandbox.scratch import scratch_folder
from composer_replication.types.errors import ConfigError, SandboxError, SandboxUnavailableError

if TYPE_CHECKING:
    from composer_replication.sandbox.remote.client import RemoteSandbox

SandboxKind: TypeAlias = str
"""`auto`, `namespaces`, `bubblewrap`, `landlock`, `docker`, `docker:IMAGE`, `remote:URL` or `unsafe-subprocess`."""

_KINDS = ("auto", "namespaces", "bubblewrap", "landlock", "docker", "unsafe-subprocess")
_REMOTE = ("remote:http://", "remote:https://")

_STRONGEST_FIRST: tuple[SandboxKind, ...] = ("namespaces", "bubblewrap", "landlock")
"""The first two isolate equally; only our own sandbox can be forked from a warm interpreter."""
_FIX = (
    "allow user namespaces (sysctl kernel.unprivileged_userns_clone=1, kernel.apparmor_restrict_unprivileged_userns=0; "
    "in Docker: --security-opt seccomp=unconfined --security-opt systempaths=unconfined), use a kernel with Landlock "
    "(5.13 or newer), or have another machine run them (remote:URL); the sandbox kind unsafe-subprocess runs without isolation, "
    "for code you trust"
)
_SHARED_FILES = (
    "shared files: sandboxes that run at the same time can see that others lock and open files of the system and the interpreter"
)
_LANDLOCK_UIDS = tuple(range(BOX_UID, BOX_UID - 15, -1))
_log = logging.getLogger(__name__)
_lock = threading.RLock()

_PROBE = """
import json, os, socket, sys
request = json.load(sys.stdin)
facts = {"uid": os.getuid(), "changed": open("changed").read(), "gone": not os.path.exists("gone")}
open("written", "w").write("x")
facts["caps"] = [l.split()[1] for l in open("/proc/self/status") if l.startswith("CapEff")][0]
try:
    facts["host_file"] = open(request["secret"]).read()
except OSError:
    facts["host_file"] = None
try:
    socket.create_connection(("127.0.0.1", request["port"]), 2).close()
    facts["network"] = True
except OSError:
    facts["network"] = False
os.write(int(os.environ["COMPOSER_RESULT_FD"]), json.dumps(facts).encode())
"""


def check_kind(kind: str) -> SandboxKind:
    """Return the kind itself, which need not work on this machine. Raises ConfigError for an unknown kind."""
    name, _, image = kind.partition(":")
    if kind.startswith(_REMOTE) or kind in _KINDS or (name == "docker" and image):
        return kind
    fix = f"one of {', '.join(_KINDS)}, docker:IMAGE, remote:http://HOST:PORT"
    raise ConfigError(f"there is no sandbox kind {kind!r}", fix=fix)


def open_sandbox(kind: SandboxKind = "auto") -> Sandbox:
    """Open the sandbox of that kind, or with `auto` the strongest that passes its probe; `auto` considers only the kinds of
    `survey`.

    Each kind is probed once per process. When `auto` settles for less than namespaces, the reasons stand in `Isolation.missing`.

    Raises:
        ConfigError: there is no such kind.
        SandboxUnavailableError: this machine, or the remote one, does not allow that kind, or any with `auto`.
        MissingExtraError: a remote sandbox needs an extra of this package.
    """
    name, _, image = check_kind(kind).partition(":")
    if kind.startswith(_REMOTE):
        return _remote(kind)
    if name == "docker":
        return _docker(kind, image or DEFAULT_IMAGE)
    if kind != "auto":
        opened = _opened(kind)
        if isinstance(opened, str):
            raise SandboxUnavailableError(f"the {kind} sandbox does not work on this machine: {opened}", fix=_FIX)
        return opened
    refused: list[str] = []
    for candidate in _STRONGEST_FIRST:
        opened = _opened(candidate)
        if not isinstance(opened, str):
            return opened if candidate != "landlock" else _weaker(opened, tuple(refused))
        _log.info("the %s sandbox is not available: %s", candidate, opened)
        refused.append(f"{candidate} refused: {opened}")
    raise SandboxUnavailableError(f"no isolation works on this machine ({'; '.join(refused)})", fix=_FIX)


@cache
def _docker(kind: SandboxKind, image: str) -> DockerSandbox:
    """Open a Docker sandbox. Raises SandboxUnavailableError."""
    sandbox = open_docker(kind, image)
    try:
        _probe(sandbox, expected_uid=BOX_UID)
    except SandboxError as error:
        fix = "the daemon must run on this machine, and the image have what the interpreter needs of /usr (a C library, at least)"
        raise SandboxUnavailableError(f"the {kind} sandbox does not work on this machine: {error.message}", fix=fix) from error
    return sandbox


@cache
def _remote(kind: SandboxKind) -> RemoteSandbox:
    """Open a remote sandbox. Raises SandboxUnavailableError and MissingExtraError."""
    from composer_replication.sandbox.remote.client import RemoteSandbox

    return RemoteSandbox(kind)


def remote_python(kind: SandboxKind) -> Path | None:
    """Return the interpreter to use where sandboxes of that kind are on another machine; None on this one. Raises like
    `open_sandbox`."""
    return _remote(kind).python if kind.startswith(_REMOTE) else None


def survey() -> dict[SandboxKind, Isolation | str]:
    """Return every isolating kind, strongest first: what it enforces on this machine, or why it does not work there."""
    opened = {kind: _opened(kind) for kind in _STRONGEST_FIRST}
    return {kind: box if isinstance(box, str) else box.isolation for kind, box in opened.items()}


def available() -> tuple[SandboxKind, ...]:
    """Return the isolating kinds that pass their probe on this machine, strongest first."""
    return tuple(kind for kind, shown in survey().items() if not isinstance(shown, str))


def _opened(kind: SandboxKind) -> BoxSandbox | str:
    with _lock:
        return _open_once(kind)


@cache
def _open_once(kind: SandboxKind) -> BoxSandbox | str:
    """Return the probed sandbox, or why there is none."""
    if sys.platform != "linux":
        return "sandboxes are built from Linux namespaces and Landlock"
    try:
        setup = _SETUPS[kind](find_cgroups())
        sandbox = BoxSandbox(setup)
        if kind != "unsafe-subprocess":
            _probe(sandbox, expected_uid=BOX_UID if setup.sized_disk else None)
    except SandboxError as error:
        return error.message
    return sandbox


@cache
def _weaker(sandbox: BoxSandbox, refused: tuple[str, ...]) -> BoxSandbox:
    isolation = sandbox.isolation
    return sandbox.with_isolation(dataclasses.replace(isolation, missing=(*isolation.missing, *refused)))


def _probe(sandbox: Sandbox, *, expected_uid: int | None) -> None:
    """Try to break out of one sandbox. Raises SandboxError when it cannot be made or does not hold."""
    try:
        with scratch_folder() as folder, socket.create_server(("127.0.0.1", 0)) as server:
            secret, base = folder / "secret", folder / "base"
            secret.write_text("readable")
            base.mkdir()
            (base / "gone").write_text("x")
            (base / "changed").write_text("old")
            python = Path(sys.executable)
            request = json.dumps({"secret": str(secret), "port": server.getsockname()[1]}).encode()
            command = Command(
                argv=(str(python), "-S", "-B", "-c", _PROBE), python=python, stdin=request, limits=Limits(disk_mb=16)
            )
            result = sandbox.run(Tree(base=base, changes={"changed": b"new", "gone": None}), command)
            if result.ending is not Ending.EXITED or result.returncode != 0:
                said = result.stderr.decode(errors="replace").strip().rpartition("\n")[2]
                raise SandboxError(f"a test program does not run in the sandbox ({result.ending}, {said})")
            facts: dict[str, Any] = json.loads(result.channel)
            wrong = [name for name, value in _EXPECTED.items() if facts[name] != value]
            if expected_uid is not None and facts["uid"] != expected_uid:
                wrong.append("uid")
            if sorted(os.listdir(base)) != ["changed", "gone"]:
                wrong.append("base folder")
            if wrong:
                raise SandboxError(f"the sandbox does not hold: {', '.join(wrong)}")
    except OSError as error:
        raise SandboxError(f"it cannot be tried: {error}") from error


_EXPECTED = {"caps": "0" * 16, "host_file": None, "network": False, "changed": "new", "gone": True}


def _full(kind: str, cgroups: Cgroups | None, program: str = "") -> Setup:
    missing = [_SHARED_FILES]
    if cgroups is None:
        missing.append("memory limit of the whole sandbox (each process is limited)")
        if os.geteuid() == 0:
            missing.append("number of processes (no writable pids cgroup)")
    counted = "no writable cgroup" if cgroups is None else cgroups.description
    isolation = Isolation(
        name=kind,
        network="no network",
        files="no host files but system programs, their libraries and the interpreter, read-only",
        user=f"uid {BOX_UID}, no capabilities",
        limits=f"{counted}, rlimits, sized tmpfs",
        missing=tuple(missing),
    )
    return Setup(backend=kind, isolation=isolation, cgroups=cgroups, program=program)


def _bubblewrap(cgroups: Cgroups | None) -> Setup:
    program = shutil.which("bwrap")
    if program is None:
        raise SandboxUnavailableError("bwrap is not installed")
    return _full("bubblewrap", cgroups, program)


def _namespaces(cgroups: Cgroups | None) -> Setup:
    return _full("namespaces", cgroups)


def _landlock(cgroups: Cgroups | None) -> Setup:
    abi = landlock.abi_version()
    if abi == 0:
        raise SandboxUnavailableError("the kernel has no Landlock, or it is switched off")
    root = os.geteuid() == 0
    own_uid = root and reachable_by(BOX_UID, Path(sys.executable))
    user = (
        f"uid {BOX_UID} (one per sandbox; uid 0 without capabilities where only root can read the interpreter)"
        if own_uid
        else f"uid {os.geteuid()} without capabilities"
    )
    missing = ["namespaces: names of the host's files and processes are visible", "disk use (looked at five times a second)"]
    missing.append(_SHARED_FILES)
    if root and not own_uid:
        missing.append("a separate user (only root can read the interpreter's folder)")
    if not own_uid:
        missing.append("file modes and times (calls that change them have no effect)")
        if abi < landlock.ABI_WITH_SCOPES:
            missing.append("signals to the user's other processes")
    if cgroups is None:
        missing.append("memory of the whole sandbox (each process is limited)")
        if not own_uid:
            missing.append("number of processes" if root else "number of processes (counted with the user's others)")
    isolation = Isolation(
        name="landlock",
        network="no sockets (seccomp)",
        files=f"reads system programs, their libraries and the interpreter, writes its own copy (Landlock ABI {abi})",
        user=user,
        limits="rlimits" if cgroups is None else f"{cgroups.description}, rlimits",
        missing=tuple(missing),
    )
    uids = _LANDLOCK_UIDS if own_uid else ()
    return Setup(backend="landlock", isolation=isolation, cgroups=cgroups, overlay=False, sized_disk=False, uids=uids)


def _unsafe(cgroups: Cgroups | None) -> Setup:
    isolation = Isolation(
        name="unsafe-subprocess",
        network="the host's network",
        files="the host's files",
        user=f"uid {os.geteuid()}, all its privileges",
        limits="rlimits" if cgroups is None else f"{cgroups.description}, rlimits",
        missing=("isolation of any kind",),
    )
    return Setup(backend="unsafe-subprocess", isolation=isolation, cgroups=cgroups, overlay=False, sized_disk=False)


_SETUPS = {"bubblewrap": _bubblewrap, "namespaces": _namespaces, "landlock": _landlock, "unsafe-subprocess": _unsafe}
