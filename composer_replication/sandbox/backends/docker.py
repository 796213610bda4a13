"""The Docker backend: one container per command, through the `docker` program and whatever daemon it is set up for.

The image provides what is under /usr; the interpreter is the host's, shown read-only as in the other kinds, so the daemon has
to be one of this machine. The tree travels over the container's standard input into a tmpfs; nothing else of the host is mounted.
"""

from __future__ import annotations

import contextlib
import csv
import io
import json
import logging
import os
import secrets
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from composer_replication.sandbox.backends.container_runner import BOOTSTRAP
from composer_replication.sandbox.backends.namespaces import BOX_UID
from composer_replication.sandbox.interpreter import installation_of
from composer_replication.sandbox.protocol import Command, ExecResult, Installation, Isolation, Tree
from composer_replication.sandbox.request import BoxReport
from composer_replication.sandbox.transfer.archive import pack, pack_files, unpack, unpack_files
from composer_replication.sandbox.transfer.requests import check_paths, environment_of, result_of, rlimits_of
from composer_replication.sandbox.transfer.upload import Disk, archive_of, modules_archive, most_bytes, one_line
from composer_replication.types.errors import SandboxError, SandboxUnavailableError

DEFAULT_IMAGE = "debian:stable-slim"

_log = logging.getLogger(__name__)
_ROOM, _SPARE = "/tmp", "/spare"
_LABEL = "composer-box"
_ABANDONED = "1h"
"""Containers of ours that ended so long ago have lost their host, and are removed."""
_GRACE_S = 120.0
"""Extra seconds beyond its wall limit for starting and ending a container."""
_ANSWER_S = 60.0
"""Most for a question to the daemon."""
_OWN_MB, _OWN_PROCESSES = 48, 2
"""Memory and threads of the container's process 1, on top of what the command may use."""


class DockerSandbox:
    """A `Sandbox` whose commands run in containers of one image."""

    def __init__(self, docker: str, image: str, isolation: Isolation) -> None:
        self._docker = docker
        self._image = image
        self._lock = threading.Lock()
        self.cpu_s = 0.0
        self.isolation = isolation

    def run(self, tree: Tree, command: Command) -> ExecResult:
        check_paths(tree.changes)
        files, disk = archive_of(tree)
        request = _request(tree, command, files)
        name = f"{_LABEL}-{os.getpid()}-{secrets.token_hex(8)}"
        argv = [self._docker, "run", *_options(command, name, disk, len(request)), self._image, *_PROGRAM]
        started = time.monotonic()
        try:
            with _container(argv, command.limits.wall_s + _GRACE_S) as process:
                answer, said = _exchange(process, request, most_bytes(command.limits))
            report, kept = self._judged(name, answer, said)
        finally:
            _tidy(self._docker, "rm", "--force", name)
        with self._lock:
            self.cpu_s += report.cpu_s
        return result_of(tree, command, report, kept, time.monotonic() - started)

    def installation(self, python: Path) -> Installation:
        return installation_of(python)

    def _judged(self, name: str, answer: bytes, said: str) -> tuple[BoxReport, dict[str, bytes]]:
        """Read process 1's answer; without one, only the daemon knows whether memory was why. Raises SandboxError."""
        if not answer and _ask(self._docker, "inspect", "--format", "{{.State.OOMKilled}}", name).stdout.strip() == "true":
            return BoxReport(returncode=-9, oom_killed=True), dict.fromkeys(("stdout", "stderr", "channel"), b"")
        if not answer:
            raise SandboxError(
                f"the container ended without an answer: {said or 'it was stopped, or took too long'}", fix="see the daemon's log"
            )
        try:
            return _opened(answer)
        except (ValueError, TypeError, KeyError) as error:
            raise SandboxError(f"the container's answer is torn ({error})", fix="see the daemon's log") from error


_PROGRAM = ("-I", "-S", "-B", "-W", "ignore", "-c", BOOTSTRAP, _ROOM, _SPARE)


def open_docker(kind: str, image: str) -> DockerSandbox:
    """Open a sandbox that starts containers of `image`, which must already exist; `kind` is the name it was requested by.

    Raises:
        SandboxUnavailableError: there is no `docker` program, no daemon that answers in time, or no such image.
    """
    docker = shutil.which("docker")
    if docker is None:
        raise SandboxUnavailableError("the program docker is not installed", fix="install Docker, or use another sandbox kind")
    info = _ask(docker, "info", "--format", "{{json .}}")
    try:
        facts: dict[str, Any] = json.loads(info.stdout) if info.returncode == 0 else {"ServerErrors": [one_line(info.stderr)]}
    except ValueError:
        said = one_line(info.stdout)[:200]
        raise SandboxUnavailableError(
            f"{docker} is not Docker: to `docker info` it says {said!r}", fix="install Docker"
        ) from None
    if facts.get("ServerErrors"):
        fix = "start it, or say with DOCKER_HOST or `docker context use` where it is"
        raise SandboxUnavailableError(f"no Docker daemon answers: {facts['ServerErrors'][0]}", fix=fix)
    unlimited = [name for name in ("MemoryLimit", "PidsLimit") if not facts.get(name)]
    if unlimited:
        fix = "start it with control groups of version 2, or as root"
        raise SandboxUnavailableError(f"the Docker daemon cannot enforce {' and '.join(unlimited)}", fix=fix)
    found = _ask(docker, "image", "inspect", "--format", "{{.Id}}", image)
    if found.returncode != 0:
        fix = f"docker pull {image}, or name another one as docker:IMAGE"
        raise SandboxUnavailableError(f"there is no Docker image {image}: {one_line(found.stderr)}", fix=fix)
    _tidy(docker, "container", "prune", "--force", "--filter", f"label={_LABEL}", "--filter", f"until={_ABANDONED}")
    return DockerSandbox(docker, image, _isolation(kind, image, found.stdout.strip(), facts))


def _isolation(kind: str, image: str, digest: str, facts: Mapping[str, Any]) -> Isolation:
    counted = f"cgroup v{facts.get('CgroupVersion', '1')} of Docker {facts.get('ServerVersion', '')} (memory, pids)"
    return Isolation(
        name=kind,
        network="no network",
        files=f"no host files but the interpreter, read-only; /usr of {image} ({digest[:19]})",
        user=f"uid {BOX_UID}, no capabilities",
        limits=f"{counted}, rlimits, sized tmpfs",
        missing=("shared files: sandboxes that run at the same time can see that others lock and open files of the interpreter",),
    )


def _ask(docker: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Return the daemon's answer. Raises SandboxUnavailableError when it takes too long."""
    with _started([docker, *arguments], subprocess.DEVNULL) as process:
        try:
            stdout, stderr = process.communicate(timeout=_ANSWER_S)
        except subprocess.TimeoutExpired:
            fix = "see the daemon's log, and restart it if it hangs; or use another sandbox kind"
            asked = f"docker {arguments[0]}"
            raise SandboxUnavailableError(f"`{asked}` did not end within {_ANSWER_S:g} s: the daemon hangs", fix=fix) from None
        finally:
            _end(process)
    texts = (text.decode(errors="replace") for text in (stdout, stderr))
    return subprocess.CompletedProcess(process.args, process.returncode, *texts)


def _tidy(docker: str, *arguments: str) -> None:
    """Have containers removed. What stays is removed by a later process, so a daemon that does not do it spoils no result."""
    try:
        _ask(docker, *arguments)
    except SandboxUnavailableError as error:
        _log.warning("a container may be left: %s", error.message)


def _started(argv: Sequence[str], stdin: int) -> subprocess.Popen[bytes]:
    """Start `docker` in a new process group. Raises SandboxUnavailableError."""
    pipe = subprocess.PIPE
    try:
        return subprocess.Popen(argv, stdin=stdin, stdout=pipe, stderr=pipe, start_new_session=True)
    except OSError as error:
        raise SandboxUnavailableError(f"{argv[0]} cannot be started: {error}", fix="mend it, or use another kind") from error


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill the whole group, as `docker` may be a script around another program. Nothing when it was waited for already."""
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def _options(command: Command, name: str, disk: Disk, request_bytes: int) -> list[str]:
    limits, installed = command.limits, installation_of(command.python)
    held_mb = (2 * request_bytes + 3 * limits.output_bytes >> 20) + _OWN_MB
    memory = f"{limits.memory_mb + limits.disk_mb + 2 * disk.mb + held_mb}m"
    inodes = disk.entries + max(1024, limits.disk_mb * 64)
    options = ["--interactive", "--name", name, "--label", _LABEL, "--pull", "never", "--log-driver", "none"]
    options += ["--network", "none", "--ipc", "private", "--read-only", "--user", f"{BOX_UID}:{BOX_UID}"]
    options += ["--cap-drop", "ALL", "--security-opt", "no-new-privileges"]
    options += ["--memory", memory, "--memory-swap", memory, "--pids-limit", str(limits.processes + _OWN_PROCESSES)]
    options += ["--ulimit", "core=0:0", "--ulimit", "nofile=1024:1024"]
    options += ["--shm-size", f"{limits.disk_mb}m"]
    options += ["--tmpfs", f"{_ROOM}:exec,size={limits.disk_mb + disk.mb}m,nr_inodes={inodes},mode=1777"]
    if command.read_back:
        options += ["--tmpfs", f"{_SPARE}:size={disk.mb + 1}m,nr_inodes={disk.entries + 16},mode=1777"]
    options += [word for mount in _mounts(installed) for word in ("--mount", mount)]
    return [*options, "--workdir", _ROOM, "--entrypoint", str(command.python)]


def _mounts(installed: Installation) -> list[str]:
    """Return values of `--mount`, which are lines of CSV: the interpreter's installation, with this package's folder hidden.

    What is below /usr is the image's.
    """
    binds = [path for path in installed.binds if not path.startswith("/usr/")]
    lines = [("type=bind", f"source={path}", f"target={path}", "readonly") for path in binds]
    lines += [("type=tmpfs", f"target={path}", "tmpfs-size=4096", "tmpfs-mode=0555") for path in installed.masks]
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(lines)
    return text.getvalue().splitlines()


def _request(tree: Tree, command: Command, files: bytes) -> bytes:
    """Return all that the container's process 1 reads: its own program, then what to run."""
    limits = command.limits
    request = {
        "base": "",
        "argv": list(command.argv),
        "env": environment_of(command),
        "binds": [],
        "masks": [],
        "scratch": "",
        "wall_s": limits.wall_s,
        "rlimits": rlimits_of(limits, counted=True, sized_disk=True),
        "disk_mb": limits.disk_mb,
        "memory_mb": limits.memory_mb,
        "processes": limits.processes,
        "overlay": False,
        "most_changed": (limits.changed_files, limits.changed_mb << 20) if command.read_back else None,
    }
    listed, contents = pack_files(tree.changes)
    facts = {"request": request, "changes": listed, "output_bytes": limits.output_bytes}
    return _program() + pack(facts, [files, command.stdin, *contents])


@cache
def _program() -> bytes:
    """Return the modules that run inside, preceded by the size of their archive."""
    archive = modules_archive("sandbox/backends/container_runner.py")
    return b"%d\n" % len(archive) + archive


@contextlib.contextmanager
def _container(argv: Sequence[str], most_s: float) -> Iterator[subprocess.Popen[bytes]]:
    """Run `docker run`, and kill it when it takes too long."""
    with _started(argv, subprocess.PIPE) as process:
        watchdog = threading.Timer(most_s, _end, (process,))
        watchdog.start()
        try:
            yield process
        finally:
            watchdog.cancel()
            watchdog.join()
            _end(process)


def _exchange(process: subprocess.Popen[bytes], request: bytes, most_bytes: int) -> tuple[bytes, str]:
    """Send the request and return the answer, or the text of stderr; standard input stays open, as its end would end the sandbox.

    Raises SandboxError when the answer is longer than any may be.
    """
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        process.stdin.write(request)
        process.stdin.flush()
    except BrokenPipeError:
        with contextlib.suppress(BrokenPipeError):  # the rest of its buffer
            process.stdin.close()
    answer = process.stdout.read(most_bytes + 1)
    if len(answer) > most_bytes:
        raise SandboxError(f"the container sent more than {most_bytes} bytes")
    return answer, "" if answer else one_line(process.stderr.read().decode(errors="replace"))


def _opened(answer: bytes) -> tuple[BoxReport, dict[str, bytes]]:
    """Read an answer. Raises SandboxError when the sandbox could not be made; ValueError, TypeError or KeyError for a torn
    answer."""
    facts, blobs = unpack(io.BytesIO(answer))
    if "error" in facts:
        raise SandboxError(str(facts["error"]))
    stdout, stderr, channel, *contents = blobs
    changes = None if facts["changes"] is None else unpack_files(facts["changes"], contents)
    check_paths(changes or ())
    report = BoxReport(**{**facts["report"], "not_kept": tuple(facts["report"]["not_kept"]), "changes": changes})
    return report, {"stdout": stdout, "stderr": stderr, "channel": channel}
