"""Probes that reach for parts of the kernel which no program of a task needs."""

from __future__ import annotations

from composer_replication.sandbox.attempt import Attempt
from composer_replication.sandbox.doctor.calls import got_by_calls


def sockets(attempt: Attempt) -> list[str]:
    """Open sockets of every family but AF_UNIX, AF_INET and AF_INET6."""
    return attempt.got("""
        import socket
        names = {16: "netlink", 17: "raw packets", 38: "the kernel's ciphers (AF_ALG)", 40: "the hypervisor (vsock)"}
        for family in range(3, 64):
            if family == socket.AF_INET6:
                continue
            for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_RAW, socket.SOCK_SEQPACKET):
                what = names.get(family, f"a socket of family {family}")
                if what not in got:
                    attempt(what, lambda: socket.socket(family, kind).close())
    """)


def interfaces(attempt: Attempt) -> list[str]:
    """Call large interfaces of the kernel, with arguments that none of them takes."""
    return got_by_calls(
        attempt,
        """
        names = ("bpf", "perf_event_open", "userfaultfd", "memfd_secret", "fanotify_init", "kcmp", "process_madvise")
        for name in (*names, "io_uring_setup", "io_uring_enter", "io_uring_register"):
            attempt(name, lambda: reached(name, -1, -1, -1, -1, -1, -1))
        """,
    )


def file_handles(attempt: Attempt) -> list[str]:
    """Get a handle of a folder, and open a file by one."""
    return got_by_calls(
        attempt,
        """
        handle, mount, here = ctypes.create_string_buffer(bytes([128]) + bytes(135)), ctypes.c_int(), -100
        attempt("a handle of a folder", lambda: reached("name_to_handle_at", here, b"/usr", handle, ctypes.byref(mount), 0))
        attempt("a file by its handle", lambda: reached("open_by_handle_at", here, handle, 0))
        """,
    )


def terminal(attempt: Attempt) -> list[str]:
    """Type into the terminal behind standard input. That it is none there is an answer of the kernel too, of a call that was
    made."""
    return got_by_calls(
        attempt,
        """
        for what, request_number in (("TIOCSTI", 0x5412), ("TIOCLINUX", 0x541C)):
            attempt(what, lambda: reached("ioctl", 0, request_number, b"x"))
        """,
    )
