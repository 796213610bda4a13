"""Go source in which functions write down what they are called with, and blocks that they run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from composer_replication.languages.go.syntax import (
    Signature,
    block_starts,
    defined_types,
    named_functions,
    package_name,
    root_of,
    signature_of,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A function that can be called with values that are written down."""

    key: str
    """`path::name`."""
    folder: str
    package: str
    """The name in the package clause."""
    name: str
    signature: Signature

    @property
    def given(self) -> tuple[str, ...]:
        """Names of what it is given: the receiver, then the parameters."""
        whole = (*filter(None, [self.signature.receiver]), *self.signature.parameters)
        return tuple(parameter.name for parameter in whole)


@cache
def template(name: str) -> str:
    """Return a Go file of this package."""
    return (Path(__file__).parent / f"{name}.go").read_text("utf-8")


def folder_of(path: str) -> str:
    """Return the folder of a file of the tree, `.` for the root."""
    return path.rpartition("/")[0] or "."


def callables_of(path: str, source: bytes) -> list[Target]:
    """Return the functions of a file whose calls can be written down: named arguments, and no type parameters."""
    root = root_of(source)
    package, found = package_name(root), []
    for name, node in named_functions(root):
        signature = signature_of(node)
        whole = (*filter(None, [signature.receiver]), *signature.parameters)
        named = all(parameter.name not in ("", "_") for parameter in whole)
        if named and whole and not signature.generic and name not in ("init", "main"):
            key = f"{path}::{name}"
            found.append(Target(key=key, folder=folder_of(path), package=package, name=name, signature=signature))
    return found


def types_of(files: Mapping[str, bytes]) -> dict[str, set[str]]:
    """Return the names of the types that sources define, by folder."""
    found: dict[str, set[str]] = {}
    for path, source in files.items():
        found.setdefault(folder_of(path), set()).update(defined_types(root_of(source)))
    return found


def instrumented(files: Mapping[str, bytes]) -> dict[str, bytes]:
    """Return sources whose functions write down their calls and blocks, with what this takes in each package.

    Lines stay where they are.
    """
    found: dict[str, bytes] = {}
    number = 0
    for path, source in files.items():
        calls = {callable_.key: callable_ for callable_ in callables_of(path, source)}
        insertions: list[tuple[int, str]] = []
        for name, node in named_functions(root_of(source)):
            body = node.child_by_field_name("body")
            known = calls.get(f"{path}::{name}")
            for at in [] if body is None else block_starts(body):
                number += 1
                first = body is not None and at == body.start_byte + 1
                call = _record(known) if first and known is not None else ""
                insertions.append((at, f" composerHit({number}); {call}"))
        for at, text in sorted(insertions, reverse=True):
            source = source[:at] + text.encode() + source[at:]
        found[path] = source
    for folder, package in packages_of(files).items():
        found |= support(folder, package, ("values", "recorder"))
    return found


def _record(known: Target) -> str:
    given = ", ".join(f"&{name}" for name in known.given)
    return f'composerCalled("{known.key}", {given}); '


def packages_of(files: Mapping[str, bytes]) -> dict[str, str]:
    """Return the name of each folder's package."""
    return {folder_of(path): package_name(root_of(source)) for path, source in files.items()}


def support(folder: str, package: str, names: Iterable[str]) -> dict[str, bytes]:
    """Return Go files of this package as files of another one."""
    prefix = "" if folder == "." else f"{folder}/"
    return {
        f"{prefix}zz_composer_{name}.go": template(name).replace("package PACKAGE", f"package {package}", 1).encode()
        for name in names
    }
