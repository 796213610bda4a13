"""The first process of a container: lays out one tree, runs one command over it, and sends back the result.

It has the user of the command and no right beyond. As process 1 the command cannot kill or stop it, and as a process that is not
dumpable (prctl(2), PR_SET_DUMPABLE) no process of that user can read its memory, trace it or reach its descriptors.
"""

from __future__ import annotations

import dataclasses
import io
import os
import sys
import tarfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

from composer_replication.sandbox.backends import linux, seccomp
from composer_replication.sandbox.backends.cgroup import Cgroups, UsageMeter
from composer_replication.sandbox.backends.pump import Pump
from composer_replication.sandbox.backends.stage import apply_changes
from composer_replication.sandbox.backends.supervisor import Started, fork_command, supervise
from composer_replication.sandbox.changes import Changed, read_changes
from composer_replication.sandbox.protocol import Limits
from composer_replication.sandbox.request import BoxFds, BoxReport, BoxRequest
from composer_replication.sandbox.transfer.archive import pack, pack_files, unpack, unpack_files
from composer_replication.types.errors import SandboxError

BOOTSTRAP = """
import os, sys
if sys.version_info < (3, 11):
    sys.exit("the interpreter of a sandbox in a container must be Python 3.11 or newer, and this is " + sys.version.split()[0])
modules = sys.stdin.buffer.read(int(sys.stdin.buffer.readline()))
archive = os.memfd_create("modules")
with open(archive, "wb", closefd=False) as file:
    file.write(modules)
sys.path.insert(0, f"/proc/self/fd/{archive}")
from composer_replication.sandbox.backends.container_runner import main
main(sys.argv[1], sys.argv[2])
"""
"""The program of process 1. It reads the size of the archive of modules, the archive, and one request."""

_GRACE_S = 20.0
_FULL_BLOCKS = 16
_GROUPS = "/sys/fs/cgroup"


def main(room: str, spare: str) -> None:
    """Serve the one request that comes on standard input, in two folders of a size the host has chosen.

    Args:
        room: where the tree and the command's temporary files are.
        spare: where the tree's base is laid out once more when the command has ended, to see what it changed.
    """
    linux.set_dumpable(False)
    facts, (tree, stdin, *contents) = unpack(sys.stdin.buffer)
    request = BoxRequest(changes=unpack_files(facts["changes"], contents), **facts["request"])
    pump = Pump(stdin, Limits(output_bytes=facts["output_bytes"]))

    def backend(request: BoxRequest, fds: BoxFds, error_fd: int) -> Started:
        return _start(request, fds, error_fd, tree, Path(room), Path(spare))

    def send(fds: BoxFds) -> None:
        end = sys.stdin.fileno()  # which the host holds open until it gives up
        own = BoxFds(*map(os.dup, fds._replace(control=end)))
        threading.Thread(target=supervise, args=(backend, request, own, None, _own_meter())).start()

    try:
        report = pump.run(send, request, time.monotonic() + request.wall_s + _GRACE_S)
        answer = _packed(report, pump.kept)
    except SandboxError as error:
        answer = pack({"error": error.message}, [])
    sys.stdout.buffer.write(answer)
    sys.stdout.buffer.flush()


def _packed(report: BoxReport, kept: dict[str, bytes]) -> bytes:
    listed, contents = pack_files(report.changes or {})
    plain = dataclasses.asdict(dataclasses.replace(report, changes=None))
    del plain["changes"]
    facts = {"report": plain, "changes": None if report.changes is None else listed}
    return pack(facts, [kept["stdout"], kept["stderr"], kept["channel"], *contents])


def _own_meter() -> UsageMeter | None:
    """Return a counter of this container's processes killed for memory, under either version of control groups."""
    for folder, version in ((Path(_GROUPS), 2), (Path(_GROUPS, "memory"), 1)):
        group = Cgroups(version, folder, folder, None)
        try:
            return dataclasses.replace(group.meter(), cpu=None)  # CPU seconds of the command only, not of this program
        except FileNotFoundError:
            continue
    return None


def _start(request: BoxRequest, fds: BoxFds, error_fd: int, tree: bytes, room: Path, spare: Path) -> Started:
    """Lay out the tree and start the command in it. Raises OSError."""
    repo, tmp = room / "repo", room / "tmp"
    for folder in (repo, tmp):
        folder.mkdir()
    lay_out(tree, repo)
    apply_changes(str(repo), request.changes)
    env = {**request.env, "HOME": str(tmp), "TMPDIR": str(tmp)}
    pid = fork_command(request, fds, error_fd, argv=request.argv, env=env, directory=str(repo), confine=_seal)
    return Started(pid=pid, changes=_changes(tree, repo, spare), finish=lambda: os.statvfs(room).f_bfree < _FULL_BLOCKS)


def _seal() -> None:
    """Leave the session keyring, and load our filter besides the daemon's, which may be switched off and allows more, such as
    tracing and most sockets."""
    linux.join_session_keyring()
    seccomp.seal(seccomp.box_filter())


def lay_out(tree: bytes, folder: Path) -> None:
    """Unpack a tree's base into an empty folder. Raises OSError."""
    try:
        with tarfile.open(fileobj=io.BytesIO(tree)) as archive:
            archive.extraction_filter = _as_it_is  # an argument from 3.11.4 on only, and Debian 12 has 3.11.2
            archive.extractall(folder)
    except tarfile.TarError as error:
        raise OSError(f"the tree is torn ({error})") from error


def _as_it_is(member: tarfile.TarInfo, _folder: str) -> tarfile.TarInfo:
    """Accept every member: the host made the archive."""
    return member


def _changes(tree: bytes, repo: Path, spare: Path) -> Callable[[int, int], Changed]:
    """Return how to read the changes. The base is laid out after the command has ended, so that the command never sees it."""

    def changes(most_files: int, most_bytes: int) -> Changed:
        try:
            (spare / "base").mkdir()
            lay_out(tree, spare / "base")
        except OSError as error:
            return Changed(too_much=f"the command blocked the folder for comparing ({error.strerror})")
        now, base = (os.open(path, os.O_RDONLY | os.O_DIRECTORY) for path in (repo, spare / "base"))
        return read_changes(now, base, overlay=False, most_files=most_files, most_bytes=most_bytes)

    return changes
