"""The native Linux sandbox: seven namespaces, an overlay on a tmpfs, and a new root holding nothing of the host's files.

Needs neither root nor any program: user namespaces (kernel 5.12 or newer, as Debian ships it) make the mounts. The command is
uid 65534 in a second user namespace inside the first, so it owns the tree's files and holds no capability over anything.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Sequence
from typing import NoReturn

from composer_replication.sandbox.backends import linux, seccomp
from composer_replication.sandbox.backends.stage import Stage, mount_stage, write_id_maps
from composer_replication.sandbox.backends.supervisor import (
    SETUP_ERRORS,
    Started,
    exec_command,
    exit_with,
    fork,
    join_cgroups,
    open_cgroups,
    read_request,
    receive_fds,
    send_fds,
    take_limits,
)
from composer_replication.sandbox.backends.system import system_view
from composer_replication.sandbox.request import BoxFds, BoxRequest

BOX_UID = 65534
KEY_LIST = "/proc/keys"
"""Names the keys of the user, also those made outside the sandbox, and is hidden for that."""
_DEVICES = ("null", "zero", "full", "random", "urandom")
_READY = b"ready"
_MESSAGE = 4000
_REQUEST_FDS = 6
ETC_FILES = {
    "passwd": f"root:x:0:0:root:/:/usr/sbin/nologin\nnobody:x:{BOX_UID}:{BOX_UID}:nobody:/tmp:/usr/sbin/nologin\n",
    "group": f"root:x:0:\nnogroup:x:{BOX_UID}:\n",
    "hosts": "127.0.0.1 localhost\n::1 localhost\n",
}
_NAMESPACES = linux.CLONE_NEWPID | linux.CLONE_NEWNET | linux.CLONE_NEWIPC | linux.CLONE_NEWUTS | linux.CLONE_NEWCGROUP


def enter_user_namespace(flags: int) -> int:
    """Become root of a new user namespace, with no right over the host's, and of the ones in `flags`; returns an open /proc."""
    uid, gid = os.geteuid(), os.getegid()
    if uid == 0:
        os.setgroups([])
    proc_fd = os.open("/proc", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    linux.unshare(linux.CLONE_NEWUSER | linux.CLONE_NEWNS | flags)
    write_id_maps(0, uid, gid, proc_fd)
    return proc_fd


class Prepared:
    """A sandbox that waits for its command: it has its namespaces, root and processes, but no tree yet.

    Making namespaces and processes is most of what a sandbox costs, and none of it depends on the command.
    """

    def __init__(self, stage: Stage, init: int, status_fd: int, command: int) -> None:
        self._stage = stage
        self._init = init
        self._mounts = os.open(f"/proc/{init}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
        """Kept open, so that the end of the sandbox does not wait for unmounting; that happens when this process ends."""
        self._status_fd = status_fd
        self._command = command

    def start(self, request: BoxRequest, fds: BoxFds, error_fd: int) -> Started:
        """Add the tree and the interpreter, and let the waiting process become the command. Raises OSError."""
        send_fds(self._command, [fds.request, error_fd, *fds.streams])  # read while the tree is laid out
        changes = self._stage.lay_out(request)
        _add_interpreter(self._stage, request)
        _expect_ready(self._command)
        os.write(self._command, _READY)
        os.close(self._command)
        return Started(pid=self._init, changes=changes, status_fd=self._status_fd, finish=self._stage.disk_full)


def prepare(scratch: str, cgroup_procs: Sequence[str]) -> Prepared:
    """Make a sandbox that waits for its command, in its control groups: entering one takes the kernel a while. Raises OSError."""
    cgroups = open_cgroups(cgroup_procs)
    proc_fd = enter_user_namespace(_NAMESPACES)
    linux.loopback_up()
    stage = mount_stage(scratch)
    _build_root(stage)
    status_read, status_write = os.pipe()
    ours, theirs = (end.detach() for end in socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET))

    def init() -> NoReturn:
        try:
            linux.die_with_parent()
            os.close(ours)
            _enter_root(stage.root)
            command = fork(lambda: _command(theirs, proc_fd, cgroups))
        except SETUP_ERRORS as error:
            os.write(theirs, str(error).encode()[:_MESSAGE])
            os._exit(70)
        _reap_until(command, status_write)

    pid = fork(init)
    os.close(status_write)
    os.close(theirs)
    _expect_ready(ours)
    stage.rehearse()
    return Prepared(stage, pid, status_read, ours)


def _expect_ready(connection: int) -> None:
    """Wait for `_READY`. Raises OSError with what is said instead."""
    said = os.read(connection, _MESSAGE)
    if said != _READY:
        raise OSError(said.decode(errors="replace") or "the sandbox's first processes ended")


def _reap_until(command: int, status_fd: int) -> NoReturn:
    """Run as the sandbox's init: collect orphans, report the command's wait status, end. The kernel kills whatever is left."""
    os.closerange(0, status_fd)
    linux.close_from(status_fd + 1)
    while True:
        pid, status = os.wait()
        if pid == command:
            os.write(status_fd, str(status).encode())
            os._exit(0)


def _build_root(stage: Stage) -> None:
    """Fill the root; what is mounted in it from then on also appears in the namespace of `_enter_root`."""
    root = stage.root
    linux.mount(root, root, "", linux.MS_BIND)
    _add_system(root)
    for name in ("proc", "dev", "tmp"):
        os.mkdir(f"{root}/{name}")
    os.chmod(f"{root}/tmp", 0o1777)
    linux.mount(f"{root}/tmp", f"{root}/tmp", "", linux.MS_BIND)
    os.mkdir(f"{os.path.dirname(root)}/empty")
    _add_devices(root)
    linux.mount("", root, "", linux.MS_REC | linux.MS_SHARED)


def _enter_root(root: str) -> None:
    """Move this process to a mount namespace with nothing but the new root, read-only.

    To unmount what it leaves takes the kernel a while, so it is done before the command is there.
    """
    linux.unshare(linux.CLONE_NEWNS)
    linux.mount("", root, "", linux.MS_REC | linux.MS_SLAVE)
    _mount_proc(f"{root}/proc")
    linux.mount("", root, "", linux.MS_REMOUNT | linux.MS_BIND | linux.MS_RDONLY | linux.MS_NOSUID | linux.MS_NODEV)
    linux.pivot_root(root)


def _add_interpreter(stage: Stage, request: BoxRequest) -> None:
    root = stage.root
    for path in request.binds:
        _bind_path(path, root)
    for path in request.masks:
        if os.path.isdir(root + path):
            linux.bind(f"{os.path.dirname(root)}/empty", root + path)


def _mount_proc(target: str) -> None:
    """Mount the sandbox's own /proc, read-only: root's files in it (sysctl) stay out of reach even where the host's user is root.

    Below this user namespace there may be one more (the command's) and no other: no process in the sandbox becomes root of
    anything.
    """
    flags = linux.MS_NOSUID | linux.MS_NODEV | linux.MS_NOEXEC
    linux.mount("proc", target, "proc", flags)
    with open(f"{target}/sys/user/max_user_namespaces", "w", encoding="ascii") as file:
        file.write("1")
    if os.path.exists(KEY_LIST):
        linux.mount("/dev/null", f"{target}/{os.path.basename(KEY_LIST)}", "", linux.MS_BIND)
    linux.mount("", target, "", flags | linux.MS_REMOUNT | linux.MS_BIND | linux.MS_RDONLY)


def _bind_path(path: str, root: str) -> None:
    os.makedirs(os.path.dirname(root + path), exist_ok=True)
    with contextlib.suppress(FileExistsError):
        _make_mount_point(path, root)
    linux.bind(path, root + path)


def _make_mount_point(path: str, root: str) -> None:
    if os.path.isdir(path):
        os.mkdir(root + path)
    else:
        os.close(os.open(root + path, os.O_CREAT | os.O_EXCL | os.O_WRONLY))


def _add_system(root: str) -> None:
    """Fill the root with the system's files. No process of the sandbox is there yet, so the mounts are protected all at once."""
    view = system_view()
    for folder in view.folders:
        os.mkdir(root + folder)
    for path in view.paths:
        _make_mount_point(path, root)
        linux.mount(path, root + path, "", linux.MS_BIND | linux.MS_REC)
    for link, target in view.links:
        os.symlink(target, root + link)
    for name, content in ETC_FILES.items():
        with open(f"{root}/etc/{name}", "w", encoding="ascii") as file:
            file.write(content)
    linux.protect_below(root)


def _add_devices(root: str) -> None:
    for name in _DEVICES:
        os.close(os.open(f"{root}/dev/{name}", os.O_CREAT | os.O_WRONLY))
        linux.mount(f"/dev/{name}", f"{root}/dev/{name}", "", linux.MS_BIND)
    os.symlink("/tmp", f"{root}/dev/shm")
    for name, target in (("fd", ""), ("stdin", "/0"), ("stdout", "/1"), ("stderr", "/2")):
        os.symlink(f"/proc/self/fd{target}", f"{root}/dev/{name}")


def _command(connection: int, proc_fd: int, cgroups: list[int]) -> NoReturn:
    """Give up every right, wait for the request, and become the sandbox's program."""
    try:
        os.setsid()
        join_cgroups(cgroups)
        linux.unshare(linux.CLONE_NEWUSER)
        write_id_maps(BOX_UID, 0, 0, proc_fd)
        linux.drop_bounding_set()
        linux.drop_capabilities()
        seccomp.seal(seccomp.box_filter())
        os.write(connection, _READY)
        received = receive_fds(connection, _REQUEST_FDS)
        if not received:
            os._exit(0)
        request_fd, error_fd, *streams = received
        request = read_request(request_fd)
        take_limits(request.rlimits)
        os.write(connection, _READY)
    except SETUP_ERRORS as error:
        os.write(connection, str(error).encode()[:_MESSAGE])
        os._exit(70)
    try:
        if os.read(connection, len(_READY)) != _READY:
            os._exit(0)
        exec_command(request, streams, request.argv, request.env, "/repo")
    except SETUP_ERRORS as error:
        exit_with(error_fd, error)
