"""Tools of a probe: a sandbox, things on the host to reach for, and programs to reach with."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from composer_replication.sandbox.protocol import Command, Ending, ExecResult, Limits, Sandbox, Tree
from composer_replication.sandbox.request import WARM_FLAGS
from composer_replication.sandbox.scratch import scratch_folder
from composer_replication.types.errors import SandboxError

_BEFORE = """
import json, os, sys
request = json.load(sys.stdin)
got = []
def attempt(what, action):
    try:
        if action() is not False:
            got.append(what)
    except (OSError, OverflowError):
        pass
"""
_AFTER = """
os.write(int(os.environ["COMPOSER_RESULT_FD"]), json.dumps(got).encode())
"""
_VICTIM = "import sys; sys.stdin.read()"


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One sandbox and the bait around it."""

    sandbox: Sandbox
    python: Path
    flags: tuple[str, ...]
    """Flags of the interpreter: they decide whether a program starts one or is forked from a running one."""
    base: Path
    """The tree the programs see: `file` holds `tree`, and `link` points to `secret`."""
    secret: Path
    """A file of the host that anybody may read; it holds `token`."""
    target: Path
    """A file of the host that anybody may write."""
    victim: int
    """A process of the host with `token` in its environment."""
    token: str
    """Random: a program that knows it has seen the host."""

    def execute(
        self, code: str, parameters: dict[str, object] | None = None, *, wall_s: float = 60.0, **limits: int
    ) -> ExecResult:
        """Run a program in a sandbox. It finds `request`, `got` and `attempt(what, action)`; its list `got` is returned."""
        request = {name: str(getattr(self, name)) for name in ("base", "secret", "target", "token")}
        source = _BEFORE + textwrap.dedent(code) + _AFTER
        command = Command(
            argv=(str(self.python), *self.flags, source),
            python=self.python,
            stdin=json.dumps({**request, "victim": self.victim, **(parameters or {})}).encode(),
            limits=Limits(wall_s=wall_s, **{"disk_mb": 32, **limits}),
        )
        return self.sandbox.run(Tree(base=self.base), command)

    def got(self, code: str, parameters: dict[str, object] | None = None, *, wall_s: float = 60.0, **limits: int) -> list[str]:
        """Return what a program that must not fail obtained. Raises SandboxError when it failed."""
        result = self.execute(code, parameters, wall_s=wall_s, **limits)
        if (result.ending, result.returncode) != (Ending.EXITED, 0):
            said = result.stderr.decode(errors="replace").strip().rpartition("\n")[2]
            raise SandboxError(f"a probe did not run to its end ({result.ending}, exit status {result.returncode}): {said}")
        found: list[str] = json.loads(result.channel)
        return found


@contextmanager
def open_attempt(sandbox: Sandbox, *, warm: bool) -> Iterator[Attempt]:
    """Lay out the bait. With `warm` the programs are forked from a running interpreter where the sandbox does that."""
    token = secrets.token_hex(16)
    argv = [sys.executable, "-S", "-c", _VICTIM]
    with scratch_folder() as folder, subprocess.Popen(argv, stdin=subprocess.PIPE, env={"HOST_TOKEN": token}) as victim:
        folder.chmod(0o755)
        base, secret, target = folder / "base", folder / "secret", folder / "target"
        base.mkdir()
        (base / "file").write_text("tree")
        secret.write_text(token)
        target.write_text("before")
        target.chmod(0o666)
        (base / "link").symlink_to(secret)
        yield Attempt(
            sandbox=sandbox,
            python=Path(sys.executable),
            flags=WARM_FLAGS if warm else ("-S", "-B", "-c"),
            base=base,
            secret=secret,
            target=target,
            victim=victim.pid,
            token=token,
        )


def processes_with(argument: str) -> list[int]:
    """Return the processes of this machine with that command-line argument."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                arguments = Path("/proc", name, "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if argument.encode() in arguments:
                found.append(int(name))
    return found
