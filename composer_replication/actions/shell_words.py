"""Read a shell command line as far as its meaning is plain: simple commands of words, what joins them, where they read and write.

Understood are quotes, escapes, comments, `&&`, `||`, `;`, `|`, newlines and redirections of the POSIX shell language
(https://pubs.opengroup.org/onlinepubs/9799919799/utilities/V3_chap02.html). Everything else, above all substitutions,
here-documents, groups, compound commands and background jobs, is refused: nothing is guessed. So is a number or a brace that
touches a redirection, which may be a descriptor. A word that the shell would expand (a variable, a pattern, a brace, a tilde)
stays as it is written.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass


class NotUnderstoodError(Exception):
    """The command line has a meaning that is not read here, or none."""


@dataclass(frozen=True, slots=True)
class Word:
    """One word of a command."""

    text: str
    """Without quotes; of a word that expands, its source."""
    source: str
    """The word as written."""
    expands: bool
    """True when the shell expands it, possibly into several words or none."""


@dataclass(frozen=True, slots=True)
class Redirect:
    """Redirection of a command's input or output."""

    descriptor: str
    """The digits before the operator; those the shell supplies when there are none. Empty for `&>`."""
    operator: str
    target: Word


@dataclass(frozen=True, slots=True)
class Simple:
    """One simple command."""

    joint: str
    """The operator before it: nothing, `&&`, `||`, `|`, or `;`, which stands for a newline too."""
    assignments: tuple[Word, ...]
    words: tuple[Word, ...]
    redirects: tuple[Redirect, ...]
    """Redirections in order; their position among the words does not matter to a shell."""


_BLANK = re.compile(r"(?:[ \t]|\\\n)+")
_COMMENT = re.compile(r"#[^\n]*")
_REDIRECT = re.compile(r"(?:(?P<fd>[0-9]*)(?P<operator>>>|>&|>\||>|<&|<(?![<(&>]))|(?P<both>&>>?))")
_OPERATOR = re.compile(r"&?>|<")
_JOINT = re.compile(r"&&|\|\||;(?!;)|\|(?!&)|\n")
_PART = re.compile(
    r"""'(?P<single>[^']*)'
    |"(?P<double>(?:[^"\\]|\\.)*)"
    |(?P<joined>\\\n)
    |\\(?P<escaped>.)
    |(?P<variable>\$[A-Za-z_][A-Za-z0-9_]*)
    |(?P<special>[*?\[\]{}~!])
    |(?P<dollar>\$(?=[ \t\n|&;<>]|\Z))
    |(?P<bare>[^\s\0'"\\$`|&;<>()*?\[\]{}~!]+)""",
    re.VERBOSE | re.DOTALL,
)
_IN_DOUBLE = re.compile(
    r"""\\(?P<escaped>[$`"\\])
    |(?P<joined>\\\n)
    |(?P<expands>\$[A-Za-z_][A-Za-z0-9_]*|!)
    |(?P<literal>\\|\$(?![A-Za-z0-9_({@*\#?!$-]|\\\n)|[^\\$`!]+)""",
    re.VERBOSE | re.DOTALL,
)
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=")
_RESERVED = frozenset(
    "! { } [[ ]] if then else elif fi for select while until do done case esac in function time coproc".split(),  # noqa: SIM905
)


def read_line(command: str) -> tuple[Simple, ...]:
    """Parse the simple commands of a line, or of several. Raises NotUnderstoodError, also for the empty line."""
    found: list[Simple] = []
    joint = ""
    parts: list[Word | Redirect] = []
    for token in _tokens(command):
        if not isinstance(token, str):
            parts.append(token)
        elif parts:
            found.append(_simple(joint, parts))
            joint, parts = ";" if token == "\n" else token, []
        elif token != "\n":
            raise NotUnderstoodError("a joint without a command before it")
    if parts:
        found.append(_simple(joint, parts))
    elif joint != ";":
        raise NotUnderstoodError("a joint without a command after it")
    return tuple(found)


def _simple(joint: str, parts: list[Word | Redirect]) -> Simple:
    words = [p for p in parts if isinstance(p, Word)]
    count = next((i for i, word in enumerate(words) if not _ASSIGNMENT.match(word.source)), len(words))
    if any(word.source in _RESERVED for word in words[count : count + 1]):
        raise NotUnderstoodError("a compound command")
    redirects = tuple(p for p in parts if isinstance(p, Redirect))
    return Simple(joint, tuple(words[:count]), tuple(words[count:]), redirects)


def _tokens(command: str) -> Iterator[Word | Redirect | str]:
    """Yield words, redirections, and what joins commands."""
    at = 0
    while at < len(command):
        blank = _BLANK.match(command, at) or _COMMENT.match(command, at)
        if blank:
            at = blank.end()
            continue
        redirect = _REDIRECT.match(command, at)
        if redirect:
            at = redirect.end()
            gap = _BLANK.match(command, at)
            at = gap.end() if gap else at
            if command[at : at + 1] == "#":
                raise NotUnderstoodError("a redirection to a comment")
            word, at = _word(command, at)
            operator = redirect["both"] or redirect["operator"]
            if operator.endswith("&") and "-" in word.text and word.source != "-":
                raise NotUnderstoodError("a descriptor that is moved or closed")
            default = "" if redirect["both"] else "0" if operator.startswith("<") else "1"
            yield Redirect(redirect["fd"] or default, operator, word)
            continue
        joint = _JOINT.match(command, at)
        if joint:
            at = joint.end()
            yield joint[0]
            continue
        word, at = _word(command, at)
        yield word


def _word(command: str, start: int) -> tuple[Word, int]:
    at, text, expands = start, "", False
    while part := _PART.match(command, at):
        at = part.end()
        if part["double"] is not None:
            inner, inner_expands = _double(part["double"])
            text += inner
            expands |= inner_expands
        else:
            text += (
                part["single"] or part["escaped"] or part["bare"] or part["dollar"] or part["variable"] or part["special"] or ""
            )
            expands |= part["variable"] is not None or part["special"] is not None
    if at == start or command[at : at + 1] not in ("", " ", "\t", "\n", "|", "&", ";", "<", ">"):
        raise NotUnderstoodError(f"nothing plain at {command[at : at + 20]!r}")
    if _OPERATOR.match(command, at) and (text.isdigit() or command[start] == "{"):
        raise NotUnderstoodError("a word that may be a descriptor")
    source = command[start:at]
    return Word(source if expands else text, source, expands), at


def _double(quoted: str) -> tuple[str, bool]:
    """Return the content of double quotes, and whether something in it expands. `!` does in an interactive shell."""
    at, text, expands = 0, "", False
    while at < len(quoted):
        piece = _IN_DOUBLE.match(quoted, at)
        if piece is None:
            raise NotUnderstoodError(f"a substitution at {quoted[at : at + 20]!r}")
        at = piece.end()
        text += piece["escaped"] or piece["literal"] or piece["expands"] or ""
        expands |= piece["expands"] is not None
    return text, expands
