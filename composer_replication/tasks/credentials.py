"""Credentials in a project's files: a task must not teach them to a model, nor show them to an agent or a teacher.

Two sorts are told apart. Keys that issuers mark by a prefix or an armour, in the forms that they document, are `certain`. A
literal of high entropy that is given to a name such as `password` or `api_token` is a guess. What was found is named by file,
line and kind; its text is kept nowhere.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from composer_replication.errors import SourceError
from composer_replication.tasks.files import tree_files
from composer_replication.tasks.layout import is_example

__all__ = ["Credential", "credentials_in", "find_credentials", "refuse_credentials"]

_BETWEEN = r"(?:[\s\"'\\+,()]|\\n|[A-Za-z-]{1,20}: [^\n]*\n){0,200}"
"""Line ends, also escaped ones, quotes between lines, and an armour's headers."""
_ARMOUR = rf"-----BEGIN [A-Z ]{{0,20}}PRIVATE KEY(?: BLOCK)?-----{_BETWEEN}(?P<key>[A-Za-z0-9+/]{{40}})"
_CERTAIN = (  # kind, what every one of it holds (a text without is not searched), and its form
    ("private key", ("PRIVATE KEY",), _ARMOUR),
    ("AWS access key", ("AKIA", "ASIA"), r"\b(?:AKIA|ASIA)(?P<key>[A-Z2-7]{16})\b"),
    (
        "GitHub token",
        ("ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_"),
        r"\b(?:gh[pousr]_(?P<key>[A-Za-z0-9]{36})|github_pat_(?P<key2>[A-Za-z0-9]{22}_[A-Za-z0-9]{59}))\b",
    ),
    ("GitLab token", ("glpat-",), r"\bglpat-(?P<key>[A-Za-z0-9_-]{20,})"),
    ("Slack token", ("xox",), r"\bxox[abeprs]-(?P<key>[0-9]{8,}-[A-Za-z0-9-]{10,})"),
    ("Google API key", ("AIza",), r"\bAIza(?P<key>[A-Za-z0-9_-]{35})"),
    ("Stripe key", ("k_live_",), r"\b[rs]k_live_(?P<key>[A-Za-z0-9]{20,})"),
    ("OpenAI key", ("T3BlbkFJ",), r"\bsk-(?P<key>[A-Za-z0-9_-]{16,}T3BlbkFJ[A-Za-z0-9_-]{16,})"),
    ("Anthropic key", ("sk-ant-",), r"\bsk-ant-[a-z]+[0-9]{2}-(?P<key>[A-Za-z0-9_-]{80,})"),
    ("OpenRouter key", ("sk-or-v1-",), r"\bsk-or-v1-(?P<key>[0-9a-f]{64})\b"),
    ("Hugging Face token", ("hf_",), r"\bhf_(?P<key>[A-Za-z0-9]{34,})\b"),
    ("PyPI token", ("pypi-",), r"\bpypi-AgEIcHlwaS5vcmc(?P<key>[A-Za-z0-9_-]{50,})"),
    ("npm token", ("npm_",), r"\bnpm_(?P<key>[A-Za-z0-9]{36})\b"),
    ("SendGrid key", ("SG.",), r"\bSG\.(?P<key>[A-Za-z0-9_-]{22}\.[A-Za-z0-9_-]{43})\b"),
)
_NAME = r"(?:passw(?:or)?d|secret|token|api_?key|access_?key|private_?key|credential)[\w-]{0,40}[\"']?\]?[ \t]{0,8}"
_VALUE = r"[A-Za-z0-9+/=_.~!@#$%^&*-]{16,}"
_QUOTED = (
    rf"(?i:{_NAME})(?::[ \t]?[\w.\[\]| ]{{1,40}}?)?[:=][ \t]{{0,8}}[rbuRBU]{{0,2}}(?P<quote>[\"'])(?P<key>{_VALUE})(?P=quote)"
)
_BARE = rf"(?i:{_NAME})[:=][ \t]{{0,8}}(?P<key>{_VALUE})[ \t]*$"
_PATTERNS = [(kind, marks, re.compile(pattern)) for kind, marks, pattern in _CERTAIN]
_ASSIGNED, _ASSIGNED_BARE = re.compile(_QUOTED), re.compile(_BARE, re.MULTILINE)
_GUESSED = "secret in an assignment"
_MADE_UP = re.compile(r"example|dummy|fake|placeholder|changeme|your[-_]|x{4}|\*{4}|\.{3}|1234567|abcdef", re.IGNORECASE)
_HEX = re.compile(r"[0-9a-fA-F]+")
_REPEATS, _HEX_GUESS, _GUESS = 2.5, 3.0, 3.5
"""Bits per character below which a marked key is filler, and a hexadecimal or another literal no random one."""
_MAX_BYTES = 1 << 20
_SHOWN = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Credential:
    """What looks like one, and where. Never its text."""

    path: str
    """POSIX path relative to the root."""
    line: int
    """1-based."""
    kind: str
    certain: bool
    """It has the form in which its issuer writes keys."""

    def __str__(self) -> str:
        return f"{self.path}:{self.line} ({self.kind})"


def credentials_in(path: str, content: bytes) -> list[Credential]:
    """What looks like a credential in one file, by line; at most one of a kind in a line.

    Texts that say that they are made up (`EXAMPLE`, `xxxx`) are none. Binary files and what lies beyond the first MiB are not
    read.
    """
    if b"\0" in content[:_MAX_BYTES]:
        return []
    text = content[:_MAX_BYTES].decode(errors="replace")
    matches = [(kind, m, True) for kind, marks, p in _PATTERNS if any(mark in text for mark in marks) for m in p.finditer(text)]
    for pattern in (_ASSIGNED,) if path.endswith(".py") else (_ASSIGNED, _ASSIGNED_BARE):
        matches += [(_GUESSED, m, False) for m in pattern.finditer(text)]
    found: dict[tuple[int, str], Credential] = {}
    for kind, match, certain in matches:
        key = next(value for name, value in match.groupdict().items() if name.startswith("key") and value)
        if not _MADE_UP.search(key) and _looks_random(key, certain):
            line = text.count("\n", 0, match.start()) + 1
            found[line, kind] = Credential(path=path, line=line, kind=kind, certain=certain)
    return [found[place] for place in sorted(found)]


def find_credentials(tree: Path, allowed: Sequence[str] = ()) -> tuple[Credential, ...]:
    """What looks like a credential below `tree`, but for files whose path matches a pattern of `allowed`."""

    def search() -> Iterator[Credential]:
        for path in tree_files(tree):
            if not any(fnmatchcase(path, pattern) for pattern in allowed):
                yield from credentials_in(path, (tree / path).read_bytes())

    return tuple(search())


def refuse_credentials(found: Sequence[Credential], tests: Sequence[str], source: str) -> None:
    """Raises SourceError when the code holds a certain one: it would be in every task's tree.

    Tests, documentation and examples hold made-up keys more often than real ones; what is there is for the caller to report.
    """
    real = [credential for credential in found if credential.certain and not is_example(credential.path, tests)]
    if real:
        more = f" and {len(real) - _SHOWN} more" if len(real) > _SHOWN else ""
        raise SourceError(
            f"{source} holds credentials: {', '.join(map(str, real[:_SHOWN]))}{more}",
            fix=f"take them out and revoke them; if they are made up, allow the file: --allow-credentials {real[0].path}",
        )


def _looks_random(key: str, certain: bool) -> bool:
    bits = -sum(n / len(key) * math.log2(n / len(key)) for n in Counter(key).values())
    if certain:
        return bits >= _REPEATS
    mixed = any(c.isdigit() for c in key) and any(c.isalpha() for c in key)
    return mixed and bits >= (_HEX_GUESS if _HEX.fullmatch(key) else _GUESS)
