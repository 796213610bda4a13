"""Programs of this machine that handle strangers' files (pip, git, npm, go, cargo, javac, venv, compileall), confined to what
they need.

Landlock keeps them from every other file and TCP port, and a filter of system calls from what no sandbox allows. They are no
sandbox's: what they make has to stay on this machine, and most of them ask the network. Where the kernel has no Landlock they run
as any program does, and `not_confined` says so.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from composer_replication.sandbox.backends import landlock
from composer_replication.sandbox.backends.landlock import ABI_WITH_PORTS, ABI_WITH_SCOPES, Sockets
from composer_replication.sandbox.backends.preload import OUR_BACKENDS
from composer_replication.sandbox.interpreter import installation_of
from composer_replication.sandbox.protocol import Limits
from composer_replication.sandbox.scratch import scratch_folder
from composer_replication.sandbox.transfer.requests import rlimits_of

_PROGRAM = (
    "import json, os, sys\n"
    + OUR_BACKENDS
    + """
from composer_replication.sandbox.backends.landlock import become
try:
    become(sys.argv[2:], **json.loads(sys.argv[1]))
except OSError as error:
    sys.exit("ERROR: %s cannot be confined: %s" % (sys.argv[2], error))
"""
)
_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
_ETC = (
    *("ld.so.cache", "ld.so.conf", "ld.so.conf.d", "alternatives", "localtime", "timezone", "locale.alias", "mime.types"),
    *("passwd", "group", "nsswitch.conf", "hosts", "host.conf", "resolv.conf", "gai.conf", "services", "protocols"),
    *("ssl", "pki", "ca-certificates", "crypto-policies", "os-release", "lsb-release", "debian_version", "redhat-release"),
)
"""What the C library, TLS libraries and pip's description of itself read in /etc."""
_OF_PREFIXES = ("bin", "lib", "lib64", "libexec", "share", "etc", "ssl")
_SCHEMES = {"http": 80, "https": 443, "socks": 1080, "socks4": 1080, "socks5": 1080, "socks5h": 1080, "git": 9418, "ssh": 22}
"""Schemes of URLs with a network, and their ports."""
WEB_PORTS = frozenset({53, 80, 443})
"""Ports of HTTP, whichever an index sends its visitors on to, and of long answers about names."""
_MOST_BYTES = 16 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """The files, ports and sockets of a confined program, besides the system's programs and a folder for temporary files."""

    writable: frozenset[str] = frozenset()
    readable: frozenset[str] = frozenset()
    ports: frozenset[int] | None = frozenset()
    """Of TCP; None: all."""
    sockets: Sockets = "none"


def run_confined(
    command: list[str], reach: Reach, *, environment: Mapping[str, str], most_s: int, cwd: str | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a program, given by its path, with no input; TMPDIR is a folder of its own.

    Raises:
        OSError: it cannot be started.
        subprocess.TimeoutExpired: it did not end within `most_s` seconds.
    """
    with scratch_folder() as room:
        return subprocess.run(
            [*_confining(reach, room, environment, most_s), *command] if landlock.abi_version() else command,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=most_s,
            stdin=subprocess.DEVNULL,
            cwd=cwd,
            env={**environment, "TMPDIR": str(room)},
        )


def _confining(reach: Reach, room: Path, environment: Mapping[str, str], most_s: int) -> list[str]:
    named = [value for name, value in environment.items() if "SSL" in name or name.endswith("_CA_BUNDLE")]
    libraries = [path for path in environment.get("LD_LIBRARY_PATH", "").split(":") if os.path.isabs(path)]
    limits = Limits(cpu_s=most_s, disk_mb=_MOST_BYTES >> 20)
    order = {
        "writable": sorted({str(room), *reach.writable}),
        "readable": [*_SYSTEM, *(f"/etc/{name}" for name in _ETC), *libraries, *named_in(named)[0], *sorted(reach.readable)],
        "ports": None if reach.ports is None else sorted(reach.ports),
        "sockets": reach.sockets,
        "rlimits": rlimits_of(limits, counted=True, sized_disk=False),
    }
    program = _PROGRAM.format(root=str(Path(__file__).resolve().parents[2]))
    return [sys.executable, "-I", "-S", "-B", "-c", program, json.dumps(order)]


def interpreter_reach(python: Path) -> frozenset[str]:
    """Return the folders that an interpreter needs to run: its environment, and the installation that this was made with.

    Raises TaskError and SandboxError like `installation_of`.
    """
    environment = python.absolute().parents[1]
    if not (environment / "pyvenv.cfg").is_file():
        return frozenset(installation_of(python).binds)
    base = installation_of(python.resolve())  # not of the environment, which may be half full: the answer is kept
    return frozenset({str(environment), *base.binds})


def program_reach(program: str) -> frozenset[str]:
    """Return the folders of an installed program's prefix that hold programs and their files, and not the prefix itself: it may
    be a home."""
    prefixes = {Path(path).parents[1] for path in (program, os.path.realpath(program))}
    return frozenset(str(prefix / name) for prefix in prefixes for name in _OF_PREFIXES)


def named_in(settings: Iterable[str]) -> tuple[frozenset[str], frozenset[int]]:
    """Return the absolute paths, and the ports of URLs, among the words of settings."""
    paths: set[str] = set()
    ports: set[int] = set()
    for word in (word.strip("'\"") for setting in settings for word in setting.split()):
        if word.startswith("file://"):
            paths.add(unquote(urlsplit(word).path))
        elif word.startswith(("/", "~")):
            paths.add(os.path.expanduser(word))
        elif (port := port_of(word)) is not None:
            ports.add(port)
    return frozenset(path for path in paths if os.path.isabs(path)), frozenset(ports)


def port_of(url: str) -> int | None:
    """Return the port that a URL names or its scheme has; None where there is none, or it is no URL with a network."""
    try:
        parts = urlsplit(url)
        return parts.port or _SCHEMES.get(parts.scheme) if "://" in url else None
    except ValueError:
        return None


def proxy_ports(environment: Mapping[str, str], more: Iterable[str] = ()) -> frozenset[int]:
    """Return the ports of the proxies that an environment names, and of `more`, with a scheme or without."""
    named = [value for name, value in environment.items() if name.lower().endswith("_proxy") and name.lower() != "no_proxy"]
    return named_in(value if "://" in value else f"http://{value}" for value in (*named, *more) if value)[1]


def not_confined() -> str:
    """Return what `run_confined` leaves open on this machine to the programs that fetch and install."""
    abi = landlock.abi_version()
    if abi == 0:
        return "pip, git, npm, go, cargo and javac, in nothing: this kernel has no Landlock (Linux 5.13), or it is switched off"
    left = ["which hosts pip, git, npm, go and cargo ask", "datagrams", "the ports of ssh"]
    if abi < ABI_WITH_PORTS:
        left[-1] = "TCP ports (needs Linux 6.7)"
    if abi < ABI_WITH_SCOPES:
        left.append("signals to your other processes (needs Linux 6.12)")
    return ", ".join(left)
