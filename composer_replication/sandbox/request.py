"""The host's request to the launcher: one sandbox, as plain data over one memory file."""

from __future__ import annotations

import dataclasses
import marshal
import struct
from dataclasses import dataclass
from typing import NamedTuple

WARM_FLAGS = ("-s", "-B", "-c")
"""`PYTHON *WARM_FLAGS SOURCE [ARGUMENT...]` need not start an interpreter: a sandbox can be forked from a running one."""


_LENGTH = struct.Struct("<Q")


class WarmProgram(BaseException):
    """Raised in a sandbox's process when all is set up, to leave the launcher's frames: its top level becomes the program."""

    def __init__(self, source: str, argv: list[str]) -> None:
        super().__init__()
        self.source = source
        self.argv = argv


@dataclass(frozen=True, slots=True, kw_only=True)
class BoxRequest:
    """Everything needed to build a sandbox. Only built-in types, so that `marshal` can carry it."""

    base: str
    changes: dict[str, bytes | None]
    argv: list[str]
    env: dict[str, str]
    binds: list[str]
    """Absolute paths visible read-only besides the system's: the interpreter's installation."""
    masks: list[str]
    """Folders below them that must look empty."""
    scratch: str
    """A folder of the host for mount points and private copies."""
    wall_s: float
    rlimits: list[tuple[int, int, int]]
    """(RLIMIT number, soft, hard)."""
    disk_mb: int
    memory_mb: int
    processes: int
    """Limits of the sandbox's control group, where there is one."""
    overlay: bool
    """False: the tree is copied instead of overlaid."""
    cgroup_procs: tuple[str, ...] = ()
    """`cgroup.procs` files the command enters; the launcher fills them in."""
    uid: int | None = None
    """Landlock as root: the user and group the command runs as."""
    program: str = ""
    """Path of `bwrap`."""
    warm: bool = False
    """The command is `PYTHON *WARM_FLAGS SOURCE ...`, and the launcher is that interpreter."""
    most_changed: tuple[int, int] | None = None
    """Files and bytes that may be read back; None when nothing is to be read back."""

    def dumps(self) -> bytes:
        """Serialize the request."""
        return marshal.dumps({field.name: getattr(self, field.name) for field in dataclasses.fields(self)})

    @classmethod
    def loads(cls, data: bytes) -> BoxRequest:
        """Invert `dumps`, for a launcher running the same version of Python."""
        return cls(**marshal.loads(data))


class BoxFds(NamedTuple):
    """Descriptors that travel with a request, in this order."""

    request: int
    stdin: int
    stdout: int
    stderr: int
    channel: int
    report: int
    """Write end: one `BoxReport` when the sandbox has ended."""
    control: int
    """Read end: end of file means the host gave up, and the sandbox is killed."""

    @property
    def streams(self) -> tuple[int, int, int, int]:
        """The four descriptors a command has."""
        return self.stdin, self.stdout, self.stderr, self.channel


@dataclass(frozen=True, slots=True, kw_only=True)
class BoxReport:
    """The supervisor's report after the last process of a sandbox has ended."""

    setup_error: str = ""
    """Why the sandbox could not be set up; empty when the command was started."""
    returncode: int = 0
    cpu_s: float = 0.0
    oom_killed: bool | None = None
    """True when the kernel killed a process of the sandbox for its limit of memory; None where no control group counts."""
    killed_for_the_machine: bool = False
    """It killed one because the machine had no memory left, as far as the control group tells."""
    timed_out: bool = False
    disk_full: bool = False
    host_oom: bool = False
    """The kernel's out-of-memory killer struck somewhere on this machine while the sandbox ran."""
    changes: dict[str, bytes | None] | None = None
    """The difference from the base, when requested and not too large."""
    not_kept: tuple[str, ...] = ()

    def dumps(self) -> bytes:
        """Serialize the report, with its length in front, so that its reader need not wait for the end of the file."""
        data = marshal.dumps({field.name: getattr(self, field.name) for field in dataclasses.fields(self)})
        return _LENGTH.pack(len(data)) + data

    @staticmethod
    def is_whole(data: bytes | bytearray) -> bool:
        """Return whether `data` holds a whole record."""
        return len(data) >= _LENGTH.size and len(data) >= _LENGTH.size + _LENGTH.unpack_from(data)[0]

    @classmethod
    def loads(cls, data: bytes) -> BoxReport:
        """Invert `dumps`. Raises ValueError, EOFError or TypeError on a torn record."""
        return cls(**marshal.loads(data[_LENGTH.size :]))
