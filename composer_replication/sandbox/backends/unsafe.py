"""No sandbox at all: a plain subprocess over a copy of the tree, for trusted code only.

It can read the host's files, use the network and outlive limits; it exists only behind its explicit name.
"""

from __future__ import annotations

import dataclasses
import os
import resource
import shutil
import tempfile
from collections.abc import Callable

from composer_replication.sandbox.backends import linux
from composer_replication.sandbox.backends.stage import apply_changes, copy_tree
from composer_replication.sandbox.backends.supervisor import Started, fork_command, open_cgroups
from composer_replication.sandbox.changes import Changed, read_changes
from composer_replication.sandbox.request import BoxFds, BoxRequest


def start(request: BoxRequest, fds: BoxFds, error_fd: int) -> Started:
    """Copy the tree and run the command there, as the requesting user. Raises OSError."""
    return start_in_copy(request, fds, error_fd, confine=lambda _box: None)


def start_in_copy(request: BoxRequest, fds: BoxFds, error_fd: int, confine: Callable[[str], None]) -> Started:
    """Run the command in a private copy of the tree after `confine(folder)` has run in its process. Raises OSError."""
    if request.uid is None:
        request = _allow_for_running_threads(request)
    cgroups = open_cgroups(request.cgroup_procs)
    box = tempfile.mkdtemp(prefix="box-", dir=request.scratch)
    repo, tmp = f"{box}/repo", f"{box}/tmp"
    env = {**request.env, "HOME": tmp, "TMPDIR": tmp}

    def confine_command() -> None:
        linux.die_with_parent()
        confine(box)

    def changes(most_files: int, most_bytes: int) -> Changed:
        copy, base = (os.open(path, os.O_RDONLY | os.O_DIRECTORY) for path in (repo, request.base))
        return read_changes(copy, base, overlay=False, most_files=most_files, most_bytes=most_bytes)

    def finish() -> bool:
        full = _over(box, request.disk_mb)
        shutil.rmtree(box, ignore_errors=True)
        return full

    try:
        for folder in (repo, tmp):
            os.mkdir(folder)
        copy_tree(request.base, repo)
        apply_changes(repo, request.changes)
        if request.uid is not None:
            _give_to(box, request.uid)
        pid = fork_command(
            request, fds, error_fd, argv=request.argv, env=env, directory=repo, cgroups=cgroups, confine=confine_command
        )
    except OSError:
        shutil.rmtree(box, ignore_errors=True)
        raise
    return Started(pid=pid, changes=changes, watch=lambda: _over(box, request.disk_mb), finish=finish)


def _allow_for_running_threads(request: BoxRequest) -> BoxRequest:
    """Add the user's running threads to the sandbox's limit: RLIMIT_NPROC counts every thread of the user."""
    running = 0
    for name in os.listdir("/proc"):
        try:
            if name.isdigit() and os.stat(f"/proc/{name}").st_uid == os.geteuid():
                running += len(os.listdir(f"/proc/{name}/task"))
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
    limits = [(n, s + running, h + running) if n == resource.RLIMIT_NPROC else (n, s, h) for n, s, h in request.rlimits]
    return dataclasses.replace(request, rlimits=limits)


def _give_to(box: str, uid: int) -> None:
    os.chown(box, uid, uid)
    for folder, folders, files in os.walk(box):
        for name in (*folders, *files):
            os.chown(f"{folder}/{name}", uid, uid, follow_symlinks=False)


def _over(box: str, disk_mb: int) -> bool:
    """Return whether the sandbox's files fill its disk limit."""
    used = 0
    for folder, folders, files in os.walk(box):
        for name in (*folders, *files):
            try:
                used += os.lstat(f"{folder}/{name}").st_blocks * 512
            except FileNotFoundError:
                continue
    return used >= disk_mb << 20
