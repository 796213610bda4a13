"""The Linux system calls that sandboxes are built from, through ctypes: each raises OSError with the call's name.

Calls without a wrapper in the C library (`open_tree` and its kin, Landlock, `pivot_root`) are made by their numbers in
`syscalls.py`; structures come from `linux/mount.h`, `linux/capability.h` and `linux/filter.h`.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import socket
import struct

from composer_replication.sandbox.backends.syscalls import number_of

CLONE_NEWNS, CLONE_NEWCGROUP, CLONE_NEWUTS, CLONE_NEWIPC = 0x00020000, 0x02000000, 0x04000000, 0x08000000
CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x10000000, 0x20000000, 0x40000000
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT, MS_BIND, MS_REC = 1, 2, 4, 8, 32, 4096, 16384
MS_PRIVATE, MS_SLAVE, MS_SHARED = 1 << 18, 1 << 19, 1 << 20
MNT_DETACH = 2

_AT_FDCWD, _AT_EMPTY_PATH, _AT_RECURSIVE = -100, 0x1000, 0x8000
_OPEN_TREE_CLONE, _MOVE_MOUNT_F_EMPTY_PATH, _MOVE_MOUNT_T_SYMLINKS = 1, 0x04, 0x10
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_CAPBSET_DROP, _PR_SET_SECCOMP, _PR_SET_CHILD_SUBREAPER = 1, 4, 24, 22, 36
_PR_SET_NO_NEW_PRIVS, _PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL = 38, 47, 4
_KEYCTL_JOIN_SESSION_KEYRING = 1
_SIGKILL = 9
_LAST_DESCRIPTOR = 0x7FFFFFFF
_IN_CLOSE_WRITE, _IN_MOVED_TO = 0x08, 0x80
_INOTIFY_EVENT = struct.Struct("iIII")
_SECCOMP_MODE_FILTER, _SOCK_FILTER_BYTES = 2, 8
_CAP_SETPCAP = 8
_CAPABILITY_VERSION_3 = struct.pack("Ii", 0x20080522, 0)

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long


def _check(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def syscall(name: str, *args: object, about: str = "") -> int:
    """Make a system call of `syscalls.NUMBERS`; integers are passed as longs, bytes and ctypes pointers as they are.

    `about` is what an error names besides the call. Raises OSError.
    """
    number = number_of(name)
    if number is None:
        raise OSError(errno.ENOSYS, f"{name}: this machine does not have it")
    converted = [ctypes.c_long(a) if isinstance(a, int) else a for a in args]
    return _check(_libc.syscall(ctypes.c_long(number), *converted), f"{name} {about}".rstrip())


def close_from(first: int) -> None:
    """Close every descriptor from the number `first` on, whatever the limit of their number is now: some may be older than it."""
    try:
        syscall("close_range", first, _LAST_DESCRIPTOR, 0)
    except OSError as error:
        if error.errno not in (errno.ENOSYS, errno.EPERM):  # before Linux 5.9, or a container's filter that does not know it
            raise
        for name in os.listdir("/proc/self/fd"):
            if int(name) >= first:
                with contextlib.suppress(OSError):  # the folder's own descriptor is closed by now
                    os.close(int(name))


def _prctl(what: str, *args: int) -> int:
    longs = [ctypes.c_ulong(a) for a in (*args, 0, 0, 0, 0)[:5]]
    return _check(_libc.prctl(*longs), what)


def unshare(flags: int) -> None:
    """Leave the namespaces named by `flags`."""
    _check(_libc.unshare(ctypes.c_int(flags)), "unshare")


def mount(source: str, target: str, kind: str, flags: int = 0, options: str = "") -> None:
    """Call mount(2)."""
    arguments = (os.fsencode(source), os.fsencode(target), kind.encode(), ctypes.c_ulong(flags), os.fsencode(options))
    _check(_libc.mount(*arguments), f"mount {kind or 'none'} on {target}")


class _MountAttr(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in ("attr_set", "attr_clr", "propagation", "userns_fd")]


def bind(source: str, target: str) -> None:
    """Make `source` and every mount below it visible at `target`: no set-uid, and read-only down to the last sub-mount.

    It is so from the moment it is there, also where the mount is propagated to.
    """
    read_only = _MountAttr(attr_set=MS_RDONLY | MS_NOSUID)
    size = ctypes.sizeof(read_only)
    flags = _OPEN_TREE_CLONE | os.O_CLOEXEC | _AT_RECURSIVE
    tree = syscall("open_tree", _AT_FDCWD, os.fsencode(source), flags, about=source)
    try:
        flags = _AT_EMPTY_PATH | _AT_RECURSIVE
        syscall("mount_setattr", tree, b"", flags, ctypes.byref(read_only), size, about=target)
        flags = _MOVE_MOUNT_F_EMPTY_PATH | _MOVE_MOUNT_T_SYMLINKS
        syscall("move_mount", tree, b"", _AT_FDCWD, os.fsencode(target), flags, about=f"to {target}")
    finally:
        os.close(tree)


def protect_below(top: str) -> None:
    """Make every mount below the mount `top` read-only and without set-uid; `top` itself stays writable."""
    _set_attributes(top, _AT_RECURSIVE, _MountAttr(attr_set=MS_RDONLY | MS_NOSUID))
    _set_attributes(top, 0, _MountAttr(attr_clr=MS_RDONLY))


def _set_attributes(target: str, flags: int, attributes: _MountAttr) -> None:
    size = ctypes.sizeof(attributes)
    syscall("mount_setattr", _AT_FDCWD, os.fsencode(target), flags, ctypes.byref(attributes), size, about=target)


def umount(target: str, flags: int = 0) -> None:
    """Call umount2(2)."""
    _check(_libc.umount2(os.fsencode(target), ctypes.c_int(flags)), f"umount {target}")


def pivot_root(new_root: str) -> None:
    """Make `new_root` (a mount point) the root and unmount the old one."""
    os.chdir(new_root)
    syscall("pivot_root", b".", b".")
    umount(".", MNT_DETACH)
    os.chdir("/")


def die_with_parent(sent: int = _SIGKILL) -> None:
    """Send this process a signal when the thread that forked it ends."""
    _prctl("prctl PDEATHSIG", _PR_SET_PDEATHSIG, sent)


def set_dumpable(allowed: bool) -> None:
    """Set whether other processes of this user, and after a change of user this process itself, may inspect it (/proc,
    ptrace)."""
    _prctl("prctl DUMPABLE", _PR_SET_DUMPABLE, int(allowed))


def set_subreaper() -> None:
    """Adopt every orphaned descendant of this process."""
    _prctl("prctl SUBREAPER", _PR_SET_CHILD_SUBREAPER, 1)


def no_new_privs() -> None:
    """Prevent programs started from here from gaining a privilege."""
    _prctl("prctl NO_NEW_PRIVS", _PR_SET_NO_NEW_PRIVS, 1)


def drop_bounding_set() -> None:
    """Prevent programs started from here from getting a capability from their file. Does nothing without CAP_SETPCAP, which that
    would take."""
    with open("/proc/sys/kernel/cap_last_cap", "rb") as file:
        last = int(file.read())
    effective = struct.unpack("6I", _capabilities())[0]
    if effective >> _CAP_SETPCAP & 1:
        for capability in range(last + 1):
            _prctl("prctl CAPBSET_DROP", _PR_CAPBSET_DROP, capability)


def drop_capabilities() -> None:
    """Empty the ambient, effective, permitted and inheritable sets of this process."""
    _prctl("prctl CAP_AMBIENT", _PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL)
    _check(_libc.capset(_CAPABILITY_VERSION_3, struct.pack("6I", 0, 0, 0, 0, 0, 0)), "capset")


def _capabilities() -> bytes:
    data = ctypes.create_string_buffer(24)
    _check(_libc.capget(_CAPABILITY_VERSION_3, data), "capget")
    return data.raw


def loopback_up() -> None:
    """Start `lo` in this (new, otherwise empty) network namespace."""
    get_flags, set_flags, up = 0x8913, 0x8914, 1
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        request = fcntl.ioctl(control, get_flags, struct.pack("16sH22x", b"lo", 0))
        flags = struct.unpack("16sH22x", request)[1]
        fcntl.ioctl(control, set_flags, struct.pack("16sH22x", b"lo", flags | up))


def watch_arrivals(folder: str) -> int:
    """Return a descriptor that becomes readable when a file in `folder` is fully written, or moved there; see `arrivals`."""
    fd = _check(_libc.inotify_init1(ctypes.c_int(os.O_CLOEXEC)), "inotify_init1")
    events = ctypes.c_uint32(_IN_CLOSE_WRITE | _IN_MOVED_TO)
    _check(_libc.inotify_add_watch(ctypes.c_int(fd), os.fsencode(folder), events), f"inotify_add_watch {folder}")
    return fd


def arrivals(fd: int) -> list[str]:
    """Wait for files to arrive and return the names of those that arrived since the last call."""
    data, names = os.read(fd, 1 << 16), []
    while data:
        length = _INOTIFY_EVENT.unpack_from(data)[3]
        end = _INOTIFY_EVENT.size + length
        names.append(os.fsdecode(data[_INOTIFY_EVENT.size : end].rstrip(b"\0")))
        data = data[end:]
    return [name for name in names if name]


class _SockFprog(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_void_p)]


def load_filter(program: bytes) -> None:
    """Put this process, and all that it starts, under a filter of system calls: a BPF program. Needs `no_new_privs`.

    Of several filters the strictest answer counts. Raises OSError.
    """
    code = ctypes.create_string_buffer(program, len(program))
    fprog = _SockFprog(length=len(program) // _SOCK_FILTER_BYTES, filter=ctypes.cast(code, ctypes.c_void_p))
    arguments = (ctypes.c_ulong(_SECCOMP_MODE_FILTER), ctypes.byref(fprog), ctypes.c_ulong(0), ctypes.c_ulong(0))
    _check(_libc.prctl(ctypes.c_int(_PR_SET_SECCOMP), *arguments), "prctl SECCOMP")


def join_session_keyring() -> None:
    """Leave the session keyring that this process inherited for a new, empty one.

    Where keyctl is refused by a filter of the host there is nothing to leave: the keys are out of reach already. Where the user
    has no key left of their quota (/proc/sys/kernel/keys/maxkeys) the process keeps the keyring it has. Raises OSError.
    """
    try:
        syscall("keyctl", _KEYCTL_JOIN_SESSION_KEYRING, None, about="JOIN_SESSION_KEYRING")
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.ENOSYS, errno.EDQUOT):
            raise
