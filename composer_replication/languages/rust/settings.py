"""Settings of cargo that hold wherever this package runs it: in a sandbox, in an agent's shell, and where an environment is made.

Nothing is downloaded unless a caller says so. This text comes first in every program of this language that runs in a sandbox.
"""

from __future__ import annotations

import hashlib
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
LOOSE = "composer-loose"
"""A file in a folder of crates that are not those of the project's lock file."""
_NOT_LOOKED_AT = frozenset({"target", "vendor", ".git", "node_modules"})
_REPLACED = '[source.crates-io]\nreplace-with = "composer"\n[source.composer]\ndirectory = "{folder}"\n'


def registry_for(tree: str) -> str:
    """Return the name of the folder below `REGISTRY` that holds what a project requires."""
    found = hashlib.sha256()
    for folder, inner, names in os.walk(tree):
        inner[:] = sorted(name for name in inner if name not in _NOT_LOOKED_AT)
        if "Cargo.toml" in names:
            with open(os.path.join(folder, "Cargo.toml"), "rb") as file:
                found.update(os.path.relpath(folder, tree).encode() + b" " + file.read())
    return found.hexdigest()[:16]


def crates_for(tree: str, prefix: str) -> str:
    """Return the folder with the crates that a project requires, `vendor` where it has one; empty where there is none."""
    places = (os.path.join(os.path.abspath(tree), "vendor"), os.path.join(prefix, REGISTRY, registry_for(tree)))
    return next((place for place in places if os.path.isdir(place)), "")


def sources_for(folder: str) -> str:
    """Return cargo's configuration for crates that come from a folder."""
    return _REPLACED.format(folder=folder) if folder else ""
