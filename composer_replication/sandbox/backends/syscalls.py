"""Numbers of the Linux system calls that sandboxes make or refuse, on the machines that sandboxes are built for.

They come from the kernel's `arch/x86/entry/syscalls/syscall_64.tbl` and `include/uapi/asm-generic/unistd.h`.
"""

from __future__ import annotations

import errno
import platform
from typing import TypeAlias

MACHINES = ("x86_64", "aarch64")
"""Names of `platform.machine`, in the order of the numbers below."""


def _everywhere(number: int) -> tuple[int, int]:
    """Return the numbers of a call that is newer than Linux 5.0: the same on every machine."""
    return number, number


Numbers: TypeAlias = dict[str, tuple[int, int | None]]
"""System call -> its number on each of `MACHINES`; None where the machine does not have it."""

REFUSED: Numbers = {
    # keys
    "add_key": (248, 217), "request_key": (249, 218), "keyctl": (250, 219),
    # programs, events and memory of the kernel
    "bpf": (321, 280), "perf_event_open": (298, 241), "userfaultfd": (323, 282), "memfd_secret": _everywhere(447),
    "io_uring_setup": _everywhere(425), "io_uring_enter": _everywhere(426), "io_uring_register": _everywhere(427),
    # other processes
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "kcmp": (312, 272),
    "process_madvise": _everywhere(440), "pidfd_getfd": _everywhere(438),
    # mounts and namespaces
    "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41), "chroot": (161, 51), "unshare": (272, 97),
    "setns": (308, 268), "open_tree": _everywhere(428), "move_mount": _everywhere(429), "fsopen": _everywhere(430),
    "fsconfig": _everywhere(431), "fsmount": _everywhere(432), "fspick": _everywhere(433), "mount_setattr": _everywhere(442),
    "open_tree_attr": _everywhere(467),
    # files without a path
    "name_to_handle_at": (303, 264), "open_by_handle_at": (304, 265), "fanotify_init": (300, 262),
    # the machine
    "init_module": (175, 105), "finit_module": (313, 273), "delete_module": (176, 106), "kexec_load": (246, 104),
    "kexec_file_load": (320, 294), "reboot": (169, 142), "swapon": (167, 224), "swapoff": (168, 225), "acct": (163, 89),
    "quotactl": (179, 60), "quotactl_fd": _everywhere(443), "syslog": (103, 116), "settimeofday": (164, 170),
    "clock_settime": (227, 112), "adjtimex": (159, 171), "clock_adjtime": (305, 266), "sethostname": (170, 161),
    "setdomainname": (171, 162), "vhangup": (153, 58), "lookup_dcookie": (212, 18), "lsm_set_self_attr": _everywhere(460),
    "iopl": (172, None), "ioperm": (173, None), "modify_ldt": (154, None), "uselib": (134, None),
}  # fmt: skip
"""Calls that no sandbox allows, whatever their arguments are."""

BY_ARGUMENT: Numbers = {
    "socket": (41, 198), "socketpair": (53, 199), "clone": (56, 220), "clone3": _everywhere(435), "ioctl": (16, 29),
    "personality": (135, 92),
}  # fmt: skip
"""Calls that are allowed or not by their arguments."""

SHARED_MEMORY: Numbers = {"shmget": (29, 194), "semget": (64, 190), "msgget": (68, 186), "mq_open": (240, 180)}
"""Calls that reach the shared memory, semaphores and messages of an IPC namespace."""

METADATA: Numbers = {
    "chmod": (90, None), "fchmod": (91, 52), "fchmodat": (268, 53), "fchmodat2": _everywhere(452), "chown": (92, None),
    "fchown": (93, 55), "lchown": (94, None), "fchownat": (260, 54), "utime": (132, None), "utimes": (235, None),
    "futimesat": (261, None), "utimensat": (280, 88), "setxattr": (188, 5), "lsetxattr": (189, 6), "fsetxattr": (190, 7),
    "setxattrat": _everywhere(463), "removexattr": (197, 14), "lremovexattr": (198, 15), "fremovexattr": (199, 16),
    "removexattrat": _everywhere(466), "file_setattr": _everywhere(469),
}  # fmt: skip
"""Calls that change modes, owners, times and extended attributes."""

OTHERS_OF_THE_USER: Numbers = {
    "prlimit64": (302, 261), "sched_setparam": (142, 118), "sched_setscheduler": (144, 119), "sched_setaffinity": (203, 122),
    "sched_setattr": (314, 274), "migrate_pages": (256, 238), "move_pages": (279, 239), "setpriority": (141, 140),
    "ioprio_set": (251, 30),
}  # fmt: skip
"""Calls that change limits, priority and place of other processes of the same user."""

_OURS: Numbers = {
    "landlock_create_ruleset": _everywhere(444), "landlock_add_rule": _everywhere(445),
    "landlock_restrict_self": _everywhere(446), "openat2": _everywhere(437), "close_range": _everywhere(436),
}  # fmt: skip
"""Further calls that the host and the sandboxes make themselves."""

NUMBERS: Numbers = {**REFUSED, **BY_ARGUMENT, **SHARED_MEMORY, **METADATA, **OTHERS_OF_THE_USER, **_OURS}
"""Every call whose number is known here."""


def number_of(name: str, machine: str | None = None) -> int | None:
    """Return the number of a system call, by default on this machine; None where the machine does not have that call.

    Raises OSError for a machine that is not one of `MACHINES`.
    """
    machine = machine or platform.machine()
    if machine not in MACHINES:
        raise OSError(errno.ENOSYS, f"the system calls of {machine} are not known, only those of {' and '.join(MACHINES)}")
    return NUMBERS[name][MACHINES.index(machine)]
