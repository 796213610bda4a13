"""Credentials in a project's files: a task must not teach them to a model, nor show them to an agent or a teacher.

What was found is named by file, line and kind (`composer_replication.types.secrets`); its text is kept nowhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from composer_replication.tasks.files import tree_files
from composer_replication.tasks.sources.layout import is_example
from composer_replication.types.errors import SourceError
from composer_replication.types.secrets import secrets_in

_MAX_BYTES = 1 << 20
_SHOWN = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Credential:
    """Kind and location of something that looks like a credential. Never its text."""

    path: str
    """POSIX path relative to the root."""
    line: int
    """1-based."""
    kind: str
    certain: bool
    """The match has the form in which its issuer writes keys."""

    def __str__(self) -> str:
        return f"{self.path}:{self.line} ({self.kind})"


def credentials_in(path: str, content: bytes) -> list[Credential]:
    """Find what looks like a credential in one file, by line; at most one of a kind per line.

    Texts that say that they are made up (`EXAMPLE`, `xxxx`) are none. Binary files and what lies beyond the first MiB are not
    read.
    """
    if b"\0" in content[:_MAX_BYTES]:
        return []
    text = content[:_MAX_BYTES].decode(errors="replace")
    found: dict[tuple[int, str], Credential] = {}
    for secret in secrets_in(text, bare=not path.endswith(".py")):
        line = text.count("\n", 0, secret.start) + 1
        found[line, secret.kind] = Credential(path=path, line=line, kind=secret.kind, certain=secret.certain)
    return [found[place] for place in sorted(found)]


def find_credentials(tree: Path, allowed: Sequence[str] = ()) -> tuple[Credential, ...]:
    """Find what looks like a credential below `tree`, except in files whose path matches a pattern of `allowed`."""

    def search() -> Iterator[Credential]:
        for path in tree_files(tree):
            if not any(fnmatchcase(path, pattern) for pattern in allowed):
                yield from credentials_in(path, (tree / path).read_bytes())

    return tuple(search())


def refuse_credentials(found: Sequence[Credential], tests: Sequence[str], source: str) -> None:
    """Raise SourceError when the code holds a certain one: it would be in every task's tree.

    Tests, documentation and examples hold made-up keys more often than real ones; what is there is for the caller to report.
    """
    real = [credential for credential in found if credential.certain and not is_example(credential.path, tests)]
    if real:
        more = f" and {len(real) - _SHOWN} more" if len(real) > _SHOWN else ""
        raise SourceError(
            f"{source} holds credentials: {', '.join(map(str, real[:_SHOWN]))}{more}",
            fix=f"take them out and revoke them; if they are made up, allow the file: --allow-credentials {real[0].path}",
        )
