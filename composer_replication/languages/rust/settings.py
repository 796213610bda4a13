"""Settings of cargo that hold wherever this package runs it: in a sandbox, in an agent's shell, and where an environment is made.

Nothing is downloaded unless a caller says so. This text comes first in every program of this language that runs in a sandbox.
"""

from __future__ import annotations

import os

SETTINGS = {
    "CARGO_NET_OFFLINE": "true",
    "CARGO_TERM_COLOR": "never",
    "CARGO_INCREMENTAL": "0",
    "CARGO_BUILD_JOBS": "2",
    "CARGO_PROFILE_DEV_DEBUG": "0",
    "CARGO_PROFILE_TEST_DEBUG": "0",
    "RUST_BACKTRACE": "0",
    "RUSTFLAGS": "--cap-lints warn",
}
TOOLCHAIN, REGISTRY = "rust-toolchain", "rust-registry"
"""Folders of an environment: a compiler with its standard library, and the crates that projects require."""
_REPLACED = '[source.crates-io]\nreplace-with = "composer"\n[source.composer]\ndirectory = "{folder}"\n'


def sources_for(tree: str, prefix: str) -> str:
    """Return cargo's configuration for a project: where its required crates come from, `vendor` where it has one."""
    for folder in (os.path.join(os.path.abspath(tree), "vendor"), os.path.join(prefix, REGISTRY)):
        if os.path.isdir(folder):
            return _REPLACED.format(folder=folder)
    return ""
