"""Sandboxes for untrusted code, and the grading that happens in them.

`open_sandbox()` picks the strongest isolation this machine allows and says what it is; `pytest_run` runs tests in its sandboxes
and `grading` turns them into verdicts.
"""

from __future__ import annotations

from composer_replication.sandbox.opening import SandboxKind, open_sandbox
from composer_replication.sandbox.protocol import Command, Ending, ExecResult, Installation, Isolation, Limits, Sandbox, Tree

__all__ = [
    "Command",
    "Ending",
    "ExecResult",
    "Installation",
    "Isolation",
    "Limits",
    "Sandbox",
    "SandboxKind",
    "Tree",
    "open_sandbox",
]
