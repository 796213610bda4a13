"""Probes that reach for rights: privileges, mounts, namespaces."""

from __future__ import annotations

from composer_replication.sandbox.attempt import Attempt


def privileges(attempt: Attempt) -> list[str]:
    """Use root's rights."""
    return attempt.got("""
        import ctypes, stat
        libc = ctypes.CDLL(None)
        facts = dict(line.split(":", 1) for line in open("/proc/self/status").read().splitlines())
        for name in ("CapEff", "CapPrm", "CapInh", "CapAmb"):
            attempt(f"capabilities ({name})", lambda: int(facts[name], 16) != 0)
        attempt("programs may gain privileges", lambda: facts["NoNewPrivs"].strip() != "1")
        attempt("became root", lambda: os.getuid() != 0 and libc.setuid(0) == 0)
        name = os.uname().nodename.encode()
        attempt("set the machine's name", lambda: libc.sethostname(name, len(name)) == 0)
        attempt("made a device", lambda: (os.mknod("device", 0o600 | stat.S_IFBLK, os.makedev(7, 0)), os.remove("device")))
        for path in ("/proc/sys/kernel/core_pattern", "/proc/sysrq-trigger", "/dev/mem", "/dev/kmsg"):
            attempt(f"opened {path}", lambda: os.close(os.open(path, os.O_WRONLY)))
    """)


def mounts(attempt: Attempt) -> list[str]:
    """Make mounts and namespaces, once the sandbox is set up."""
    return attempt.got("""
        import ctypes
        libc = ctypes.CDLL(None)
        def forked(action):
            child = os.fork()
            if child == 0:
                os._exit(0 if action() >= 0 else 1)
            return os.waitpid(child, 0)[1] == 0
        new_mounts, new_users = 0x00020000, 0x10000000
        attempt("a mount namespace", lambda: forked(lambda: libc.unshare(new_mounts)))
        attempt("a user namespace", lambda: forked(lambda: libc.unshare(new_users)))
        attempt("chroot", lambda: forked(lambda: libc.chroot(b".")))
        open_tree, here, copy = 428, -100, 1
        attempt("a copy of a mount", lambda: forked(lambda: libc.syscall(open_tree, here, b"/usr", copy)))
        attempt("fsopen", lambda: forked(lambda: libc.syscall(430, b"tmpfs", 0)))
        os.makedirs("point", exist_ok=True)
        def mount():
            if libc.mount(b"none", b"point", b"tmpfs", 0, None) != 0:
                return False
            libc.umount2(b"point", 2)
        def writable_again():
            read_only_bind = 32 | 4096
            return libc.mount(None, b"/usr/bin", None, read_only_bind, None) == 0
        attempt("mount", mount)
        attempt("made /usr writable again", writable_again)
    """)
