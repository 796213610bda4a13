"""The sandbox on another machine: a SWE-ReX server carries requests there, and our agent runs them in that machine's own
sandboxes.

The server (`swerex-remote`, https://swe-rex.com) does one thing at a time, so we only send short requests: start the agent
(`remote.agent`), take a file, return one. Any failure on the way is a `SandboxError`, and the next command starts a new agent.
"""

from __future__ import annotations

import asyncio
import atexit
import base64
import contextlib
import dataclasses
import io
import os
import secrets
import threading
import time
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from functools import cache
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

from composer_replication.sandbox.protocol import Command, ExecResult, Installation, Isolation, Tree
from composer_replication.sandbox.remote.mailbox import BOOTSTRAP, INBOX, LEASE, OUTBOX
from composer_replication.sandbox.scratch import scratch_folder
from composer_replication.sandbox.transfer.archive import pack, unpack
from composer_replication.sandbox.transfer.messages import Archive, raise_error, request_archive, result_of_archive
from composer_replication.sandbox.transfer.requests import check_paths
from composer_replication.sandbox.transfer.upload import archive_of, modules_archive, most_bytes, one_line
from composer_replication.types.errors import ComposerError, MissingExtraError, SandboxError, SandboxUnavailableError
from composer_replication.types.secrets import without_secrets

try:
    import aiohttp
    from swerex.runtime import abstract

    from composer_replication.sandbox.remote.server import SHORT, SweRexServer
except ModuleNotFoundError as error:
    raise MissingExtraError(
        "the remote sandbox needs swe-rex, which is not installed", fix="pip install 'composer-replication[remote]'"
    ) from error

KEY_VARIABLE, PYTHON_VARIABLE = "COMPOSER_REMOTE_KEY", "COMPOSER_REMOTE_PYTHON"
"""Environment variables: the server's `--auth-token`, and the remote interpreter for our agent and, by default, for the tests."""

LEASE_S = 30.0
"""Seconds that the agent and its sandboxes outlive a silent client."""
_REQUEST_S, _GRACE_S, _PROBE_S, _CLOSE_S = 120.0, 120.0, 900.0, 5.0
"""Limit for one request, and for an answer: beyond a command's wall limit, to a probe, when this process ends."""
_NONSENSE = (KeyError, TypeError, ValueError, OverflowError, RecursionError)
"""Errors of parsing a malformed reply."""
_FIRST_LOOK_S, _LONGEST_LOOK_S = 0.01, 0.25
_ARGUMENT = 1 << 16
"""Characters per argument, of the 131,071 that Linux allows for one argument of a program."""
_PENDING, _GONE = 3, 4
_TAKE = f"""
cd "$1/{OUTBOX}" 2>/dev/null || {{ rm -rf "$1"; exit {_GONE}; }}
touch -c "../{LEASE}"
[ -e "$2" ] || exit {_PENDING}
cat "$2" && rm -f "$2"
"""
"""Hands out an answer. An agent that has gone has no outbox, and what was put into its inbox since is removed."""

T = TypeVar("T")


class _AgentSession:
    """One agent on the remote machine, from its start until the client abandons it."""

    def __init__(self, url: str, key: str, python: str) -> None:
        self._server = SweRexServer(url, key)
        self._url, self._key = url, key
        self._owner = os.getpid()
        self.usable = True
        """False: the next command starts a new agent."""
        self._folder = self._call(self._begin(python))
        self._beating = asyncio.run_coroutine_threadsafe(self._beat(), _loop(self._owner))
        atexit.register(self.leave)

    @property
    def ours(self) -> bool:
        """True when this process can use it: a fork has no thread that renews the lease."""
        return self.usable and self._owner == os.getpid()

    def _lost(self) -> None:
        """Mark the session as lost; its lease ends the agent, if there still is one."""
        atexit.unregister(self.leave)
        self.usable = False
        self._beating.cancel()

    def leave(self) -> None:
        """Tell the agent to end; where that fails, its lease ends it."""
        if self._owner != os.getpid():
            return
        self._lost()
        with contextlib.suppress(SandboxError):
            self._call(asyncio.wait_for(self._execute("rm", "-f", f"{self._folder}/{LEASE}"), _CLOSE_S))

    def ask(self, what: str, facts: Mapping[str, Any], blobs: Sequence[bytes], most_s: float, most: int = SHORT) -> Archive:
        """Return the agent's answer, of at most `most` bytes.

        Raises:
            SandboxError: what the agent answered with, or no answer came, and the session is not usable any more.
            TaskError: what the agent answered with.
        """
        try:
            with _understood(self._url), scratch_folder() as folder:
                (folder / "request").write_bytes(pack({**facts, "ask": what}, blobs))
                answer = self._call(self._exchange(folder / "request", secrets.token_hex(8), time.monotonic() + most_s, most))
                taken = unpack(io.BytesIO(answer))
        except OSError as error:
            raise SandboxError(f"a request for {self._url} cannot be written here: {error}", fix="free some space") from error
        except SandboxError:
            self._lost()
            raise
        raise_error(taken[0], self._url)
        return taken

    async def _begin(self, python: str) -> str:
        """Start an agent; its folder."""
        archive = base64.b64encode(_program()).decode()
        pieces = [archive[at : at + _ARGUMENT] for at in range(0, len(archive), _ARGUMENT)]
        reply = await self._execute(python, "-I", "-S", "-B", "-W", "ignore", "-c", BOOTSTRAP, str(LEASE_S), *pieces)
        folder = str(reply.stdout).strip()
        if reply.exit_code != 0 or not os.path.isabs(folder):
            raise SandboxUnavailableError(
                f"the agent does not start at {self._url}: {self._said(reply.stderr)[-300:] or 'it says nothing'}",
                fix=f"install Python 3.11 or newer on that machine (Linux), and name it in {PYTHON_VARIABLE} here",
            )
        return folder

    def _said(self, words: object) -> str:
        """Return the server's words as one line, without the key that it was sent."""
        return one_line(without_secrets(str(words), self._key))

    async def _exchange(self, request: Path, name: str, deadline: float, most: int) -> bytes:
        """Put the request into the agent's inbox and wait for the answer in its outbox."""
        target = f"{self._folder}/{INBOX}/{name}"
        async with asyncio.timeout(_REQUEST_S):
            await self._server.upload(request, target)
        wait = _FIRST_LOOK_S
        while True:
            reply = await self._execute("/bin/sh", "-c", _TAKE, "sh", self._folder, name, most=SHORT + 4 * most // 3)
            if reply.exit_code == 0:
                return base64.b64decode(reply.stdout, validate=True)
            if reply.exit_code == _GONE:
                raise SandboxError(f"the agent at {self._url} has ended", fix="try again; a new one is started")
            if reply.exit_code != _PENDING:
                raise SandboxError(f"an answer cannot be taken from {self._url}: {self._said(reply.stderr)}")
            if time.monotonic() > deadline:
                raise SandboxError(f"the agent at {self._url} does not answer; that machine may be overloaded", fix="try again")
            await asyncio.sleep(wait)
            wait = min(1.5 * wait, _LONGEST_LOOK_S)

    async def _beat(self) -> None:
        """Renew the lease. A server that does not answer is noticed by the commands."""
        while True:
            await asyncio.sleep(LEASE_S / 6)
            with contextlib.suppress(SandboxError, aiohttp.ClientError, TimeoutError, *_NONSENSE):
                await self._execute("touch", "-c", f"{self._folder}/{LEASE}")

    async def _execute(self, *argv: str, most: int = SHORT) -> abstract.CommandResponse:
        async with asyncio.timeout(_REQUEST_S):
            return await self._server.execute(argv, most)

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run `work` and return its result. Raises SandboxError, which never carries the request: its headers have the key."""
        future = asyncio.run_coroutine_threadsafe(work, _loop(self._owner))
        fault: SandboxError
        try:
            return future.result()
        except aiohttp.ClientResponseError as error:
            fault = _refusal(self._url, error.status)
        except aiohttp.ClientError as error:
            fix = "start it there (swerex-remote --host HOST --port PORT --auth-token KEY), or correct the address"
            fault = SandboxUnavailableError(f"the server {self._url} does not answer: {self._said(error)}", fix=fix)
        except TimeoutError:
            fix = "see whether that machine or the way there is overloaded"
            fault = SandboxUnavailableError(f"the server {self._url} did not answer within {_REQUEST_S:g} s", fix=fix)
        except _NONSENSE as error:
            fault = SandboxError(f"the reply of {self._url} makes no sense ({self._said(error)[:200]})", fix="is it SWE-ReX?")
        finally:
            future.cancel()
        raise fault


@contextlib.contextmanager
def _understood(url: str) -> Iterator[None]:
    """Raise SandboxError where an agent's answer has a different shape than ours."""
    try:
        yield
    except _NONSENSE as error:
        raise SandboxError(f"the answer of {url} is torn ({error})", fix="try again") from error


def _refusal(url: str, status: int) -> SandboxUnavailableError:
    if status in (401, 403):
        fix = f"put the server's --auth-token into the environment variable {KEY_VARIABLE}"
        return SandboxUnavailableError(f"the server {url} refuses the key", fix=fix)
    return SandboxUnavailableError(f"the server {url} answers with status {status}", fix="is it a SWE-ReX server of version 1?")


class RemoteSandbox:
    """A `Sandbox` on the machine of a SWE-ReX server.

    Args:
        kind: what it is asked for as: `remote:` and the server's address, http or https.

    Raises:
        SandboxUnavailableError: no key, an address that is none, a server that cannot be reached or refuses the key, or a machine
            without a Python for the agent, without pytest in it, or without isolation.
    """

    def __init__(self, kind: str) -> None:
        self._url = kind.partition(":")[2].rstrip("/")
        try:
            place = urlsplit(self._url)
        except ValueError as error:
            raise SandboxUnavailableError(
                f"{self._url} is not an address: {error}", fix="write remote:http://HOST:PORT"
            ) from error
        if place.username is not None or place.query or place.fragment:
            raise SandboxUnavailableError("the address of a remote sandbox is not a place for a key", fix=f"use {KEY_VARIABLE}")
        self._key = os.environ.get(KEY_VARIABLE, "")
        if not self._key:
            fix = f"put the server's --auth-token into the environment variable {KEY_VARIABLE}"
            raise SandboxUnavailableError(f"there is no key for {self._url}", fix=fix)
        self._lock = threading.Lock()
        self.cpu_s = 0.0
        self._installations: dict[str, Installation] = {}
        self._attempts: dict[int, Future[_AgentSession]] = {}
        """The attempt at a new agent that is in progress in a process: a fork has not the thread that makes it."""
        self._session, found = self._open()
        with _understood(self._url):
            self.isolation = _isolation(kind, place.hostname or "", place.scheme, found["isolation"])
            self.python = Path(found["python"])
        """The default interpreter of the remote machine."""
        self._there = found

    def run(self, tree: Tree, command: Command) -> ExecResult:
        check_paths(tree.changes)
        request = request_archive(tree, command, archive_of(tree)[0])
        facts, blobs = self._ask("run", *request, command.limits.wall_s + _GRACE_S, most_bytes(command.limits))
        with _understood(self._url):
            result = result_of_archive(facts, blobs)
            if max(map(len, (result.stdout, result.stderr, result.channel))) > command.limits.output_bytes:
                raise ValueError("more output than was asked for")
        with self._lock:
            self.cpu_s += result.cpu_s
        return result

    def installation(self, python: Path) -> Installation:
        """Sandboxes see nothing of this machine."""
        if (known := self._installations.get(str(python))) is None:
            facts, _ = self._ask("installation", {"python": str(python)}, (), _GRACE_S)
            with _understood(self._url):
                known = Installation(
                    binds=(),
                    masks=(),
                    pytest_plugins=tuple((str(name), str(module)) for name, module in facts["pytest_plugins"]),
                    version=(int(facts["version"][0]), int(facts["version"][1])),
                    modules=frozenset(map(str, facts["modules"])),
                )
            self._installations[str(python)] = known
        return known

    def escapes(self, probe: str) -> list[str]:
        facts, _ = self._ask("probe", {"probe": probe}, (), _PROBE_S)
        with _understood(self._url):
            return [str(what) for what in facts["got"]]

    def _ask(self, what: str, facts: Mapping[str, Any], blobs: Sequence[bytes], most_s: float, most: int = SHORT) -> Archive:
        """Ask the agent, or a new one when the last has been lost. Raises SandboxError and TaskError."""
        return self._current().ask(what, facts, blobs, most_s, most)

    def _current(self) -> _AgentSession:
        """Return the agent, or start a new one when the last was lost. Concurrent callers share one start, and its failure.
        Raises SandboxError and TaskError."""
        with self._lock:
            if self._session.ours:
                return self._session
            attempt = self._attempts.get(os.getpid())
            mine = attempt is None
            attempt = self._attempts.setdefault(os.getpid(), Future())
        if mine:
            self._reopen(attempt)
        try:
            return attempt.result()
        except CancelledError:  # the attempt was interrupted, which must not fail the other callers
            return self._current()

    def _reopen(self, attempt: Future[_AgentSession]) -> None:
        """Let `attempt` have a new agent, or what went wrong."""
        opened: _AgentSession | None = None
        fault: ComposerError | None = None
        try:
            opened = self._reopened()
        except ComposerError as error:
            fault = error
        finally:
            with self._lock:
                self._session = opened or self._session
                del self._attempts[os.getpid()]
            if fault is not None:
                attempt.set_exception(fault)
            elif opened is not None:
                attempt.set_result(opened)
            else:
                attempt.cancel()

    def _reopened(self) -> _AgentSession:
        session, found = self._open()
        if found == self._there:
            return session
        session.leave()
        raise SandboxError(f"{self._url} is not the machine it was", fix="restart this program")

    def _open(self) -> tuple[_AgentSession, dict[str, Any]]:
        session = _AgentSession(self._url, self._key, os.environ.get(PYTHON_VARIABLE, "python3"))
        try:
            return session, session.ask("open", {}, (), _GRACE_S)[0]
        except BaseException:
            session.leave()
            raise


def _isolation(kind: str, host: str, scheme: str, found: Mapping[str, Any]) -> Isolation:
    there = Isolation(**{**found, "missing": tuple(found["missing"])})
    open_way = scheme == "http" and host not in ("127.0.0.1", "::1", "localhost")
    return dataclasses.replace(
        there,
        name=kind,
        network=f"{there.name} there: {there.network}",
        missing=(*there.missing, *(("secrecy of key, code and results on the way (http)",) if open_way else ())),
    )


@cache
def _program() -> bytes:
    """Return the archive of modules that the agent runs from."""
    return modules_archive("sandbox/remote/agent.py")


@cache
def _loop(_process: int) -> asyncio.AbstractEventLoop:
    """Return the running loop of a dedicated thread of this process: callers may have their own loops."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="composer-remote", daemon=True).start()
    return loop
