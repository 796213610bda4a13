"""The remote end of a remote sandbox: a process beside the server, which serves requests out of a folder in this machine's own
sandboxes.

The server only puts files into the folder and takes them out. The agent lives as long as its lease, a file that the near end
touches, and never longer than the server. Its guardian, of which it is a child, waits until every sandbox has gone and removes
the folder: whichever process is killed, nothing is left.
"""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import os
import select
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from composer_replication.sandbox.backends import linux
from composer_replication.sandbox.backends.container_runner import lay_out
from composer_replication.sandbox.doctor.probes import PROBES
from composer_replication.sandbox.doctor.selftest import escapes
from composer_replication.sandbox.opening import open_sandbox
from composer_replication.sandbox.protocol import Tree
from composer_replication.sandbox.remote.mailbox import INBOX, LEASE, OUTBOX
from composer_replication.sandbox.scratch import make_scratch
from composer_replication.sandbox.transfer.archive import pack, unpack
from composer_replication.sandbox.transfer.messages import Archive, command_of, error_facts, result_archive
from composer_replication.sandbox.transfer.requests import PYTHON_ENVIRONMENT
from composer_replication.types.errors import ComposerError, SandboxError, SandboxUnavailableError

_AGENT = """
import sys
sys.path.insert(0, {program!r})
from composer_replication.sandbox.remote.agent import main
main({folder!r}, news={news}, server={server}, lease_s={lease_s})
"""
_LOOK_MS = 1000


def begin(archive: str, lease_s: float) -> str:
    """Start the agent beside the process that started this one, and return its folder. Raises OSError."""
    folder, held = make_scratch()
    program, inbox = f"{folder}/program", f"{folder}/{INBOX}"
    with zipfile.ZipFile(archive) as modules:
        modules.extractall(program)
    for path in (inbox, f"{folder}/{OUTBOX}"):
        os.mkdir(path)
    Path(folder, LEASE).touch()
    news, server = linux.watch_arrivals(inbox), os.pidfd_open(os.getppid())
    source = _AGENT.format(program=program, folder=folder, news=news, server=server, lease_s=lease_s)
    subprocess.Popen(
        [sys.executable, "-I", "-S", "-B", "-c", source],
        pass_fds=[held, news, server],  # holding the descriptor open keeps the lock
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd="/",
        env={**PYTHON_ENVIRONMENT, "PATH": os.environ.get("PATH", os.defpath), "TMPDIR": tempfile.gettempdir()},
        start_new_session=True,
    )
    return folder


def main(folder: str, *, news: int, server: int, lease_s: float) -> None:
    """Be the guardian of an agent; see the module. `news` tells of arrivals, `server` of the server's end."""
    linux.set_subreaper()
    if os.fork() == 0:
        try:
            _Agent(Path(folder), lease_s).serve(news, server)
        finally:
            os._exit(0)  # whatever its threads wait for: its sandboxes end with it
    with contextlib.suppress(ChildProcessError):
        while True:
            os.wait()
    shutil.rmtree(folder, ignore_errors=True)


class _Agent:
    """Serves requests, one thread each."""

    def __init__(self, folder: Path, lease_s: float) -> None:
        self._folder = folder
        self._lease_s = lease_s

    def serve(self, news: int, server: int) -> None:
        """Serve until the lease has run out or was given back, or the server has ended."""
        poll = select.poll()
        for fd in (news, server):
            poll.register(fd, select.POLLIN)
        touched, deadline = 0, 0.0
        while True:
            events = dict(poll.poll(_LOOK_MS))
            try:
                last = os.stat(self._folder / LEASE).st_mtime_ns
            except FileNotFoundError:
                return
            if last != touched:
                touched, deadline = last, time.monotonic() + self._lease_s
            if server in events or time.monotonic() > deadline:
                return
            for name in linux.arrivals(news) if news in events else ():
                threading.Thread(target=self._serve, args=(name,), daemon=True).start()

    def _serve(self, name: str) -> None:
        """Answer the request `inbox/name` in `outbox/name`, as text."""
        staged, answered = self._folder / f"answer-{name}", False
        try:
            staged.write_bytes(base64.b64encode(pack(*self._answer_to(name))))
            staged.rename(self._folder / OUTBOX / name)
            answered = True
        finally:
            if not answered:  # no memory or disk, most likely: the client learns that the agent has ended, instead of waiting
                os._exit(1)

    def _answer_to(self, name: str) -> Archive:
        path = self._folder / INBOX / name
        try:
            with path.open("rb") as file:
                facts, blobs = unpack(file)
            path.unlink()
            return self._answer(name, facts, blobs)
        except ComposerError as error:
            return error_facts(error), []
        except (OSError, KeyError, TypeError, ValueError) as error:
            return error_facts(SandboxError(f"the request could not be carried out ({type(error).__name__}: {error})")), []

    def _answer(self, name: str, facts: dict[str, Any], blobs: Sequence[bytes]) -> Archive:
        """Answer a request. Raises SandboxError or TaskError, OSError, and KeyError, TypeError or ValueError on a request of
        another shape."""
        sandbox = open_sandbox()
        if facts["ask"] == "open":
            python = Path(sys.executable)
            if "pytest" not in sandbox.installation(python).modules:
                raise SandboxUnavailableError(f"{python} has no pytest", fix=f"on that machine: {python} -m pip install pytest")
            return {"isolation": dataclasses.asdict(sandbox.isolation), "python": str(python)}, []
        if facts["ask"] == "installation":
            found = dataclasses.asdict(sandbox.installation(Path(facts["python"])))
            return {**found, "modules": sorted(found["modules"])}, []
        if facts["ask"] == "probe":
            (probe,) = (probe for probe in PROBES if probe.name == facts["probe"])
            return {"got": escapes(sandbox, probe)}, []
        command, files, changes = command_of(facts, blobs)
        base = self._folder / f"base-{name}"
        base.mkdir()
        try:
            lay_out(files, base)
            return result_archive(sandbox.run(Tree(base=base, changes=changes), command))
        finally:
            shutil.rmtree(base, ignore_errors=True)
