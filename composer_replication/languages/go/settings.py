"""Settings of the go command that hold wherever this package runs it: in a sandbox, in an agent's shell, and where an environment
is made. Nothing is downloaded unless a caller says so, and only what lies in the tree or the environment counts.

This text comes first in every program of this language that runs in a sandbox.
"""

from __future__ import annotations

import os

SETTINGS = {
    "GOENV": "off",
    "GOWORK": "off",
    "GOPROXY": "off",
    "GOSUMDB": "off",
    "GOTOOLCHAIN": "local",
    "GOTELEMETRY": "off",
    "GOMAXPROCS": "2",
    "CGO_ENABLED": "0",
}
CACHE, MODULES = "go-cache", "go-modules"
"""Folders of an environment: compiled packages, of the standard library and of required modules and nothing of a project; and
these modules."""


def flags_for(tree: str) -> str:
    """Return GOFLAGS for a module: its required modules come from `vendor` where it has one."""
    return "-mod=vendor" if os.path.isdir(os.path.join(tree, "vendor")) else "-mod=mod"
