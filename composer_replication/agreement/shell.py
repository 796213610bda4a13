"""When two shell command lines are the same command.

The lines are read into words (`words.py`), so blanks, quotes, comments and line breaks do not matter, and nothing is moved but
the options of the few programs whose manuals allow it (`programs.py`). Two lines with one form have one meaning in every state of
the files; two forms say nothing.
"""

from __future__ import annotations

import re
from collections.abc import Container
from typing import Any

from composer_replication.agreement.programs import Arguments, Program, find_program, read_arguments
from composer_replication.agreement.words import Redirect, Simple, Word, read_line

__all__ = ["arguments_of", "plain_path", "shell_form"]

_HARMLESS = frozenset(
    {
        "CI",
        "COLUMNS",
        "LANG",
        "LC_ALL",
        "NO_COLOR",
        "PYTHONDONTWRITEBYTECODE",
        "PYTHONHASHSEED",
        "PYTHONPATH",
        "PYTHONUNBUFFERED",
        "TZ",
    }
)
"""Variables for one command that do not change which program runs or how it reads its options."""
_CHANGES_THE_SHELL = frozenset(
    {
        ".",
        "alias",
        "builtin",
        "command",
        "declare",
        "enable",
        "eval",
        "exec",
        "export",
        "hash",
        "local",
        "readonly",
        "set",
        "shopt",
    }
    | {"source", "trap", "typeset", "unalias", "unset"}
)
"""After one of these, a program's name may mean something else."""


def shell_form(command: str, folders: Container[str] = ()) -> tuple[Any, ...]:
    """The line's form: equal for lines that do the same. Raises NotUnderstoodError.

    Args:
        folders: paths, without `./` and closing slash, that are known to be folders.
    """
    form: list[Any] = []
    trusted = True
    for simple in read_line(command):
        form.append((simple.joint, _simple_form(simple, folders if trusted else None), _redirects(simple.redirects)))
        trusted = trusted and not _changes_the_shell(simple)
    return tuple(form)


def _changes_the_shell(simple: Simple) -> bool:
    return not simple.words or simple.words[0].expands or simple.words[0].text in _CHANGES_THE_SHELL


def _simple_form(simple: Simple, folders: Container[str] | None) -> tuple[Any, ...]:
    """`folders` is None where no program can be trusted to be itself."""
    words = tuple(map(_word, simple.words))
    assignments = tuple((word.source,) if word.expands else (word.text,) for word in simple.assignments)
    read = None if folders is None else arguments_of(simple)
    if read is None or folders is None:
        return ("words", assignments, words)
    called, program, arguments = read
    operands = tuple(_operand(text, program, arguments, folders) for text in arguments.operands)
    return ("program", assignments, called, arguments.options, arguments.values, arguments.leading, operands)


def arguments_of(simple: Simple) -> tuple[tuple[str, ...], Program, Arguments] | None:
    """How a simple command calls a known program; None where nothing expands only by chance, or the program is not known."""
    if not simple.words or any(word.expands for word in (*simple.words, *simple.assignments)):
        return None
    if any(word.source.partition("=")[0] not in _HARMLESS for word in simple.assignments):
        return None
    found = find_program([word.text for word in simple.words])
    if found is None:
        return None
    called, program, words = found
    arguments = read_arguments(program, words)
    return None if arguments is None else (called, program, arguments)


def _operand(text: str, program: Program, arguments: Arguments, folders: Container[str]) -> str:
    if not program.paths:
        return text
    path, separator, test = text.partition("::") if program.pytest else (text, "", "")
    path = plain_path(path)
    if path.endswith("/") and path != "/":
        bare = path.rstrip("/")
        known = program.slash is not None and (bare == "." or bare in folders) and len(arguments.operands) == 1
        if program.pytest or (known and not (program.slash or frozenset()) & frozenset(arguments.options)):
            path = bare
    return path + separator + test


def plain_path(path: str) -> str:
    """The path without `./` in front, `/./` and doubled slashes. `..`, links and a closing slash stay what they are.

    `./-` stays, for `-` alone may mean the standard input; so does `//` in front, which POSIX leaves to the system.
    """
    if path.startswith("//") and not path.startswith("///"):
        return path
    short = re.sub(r"/(?:\./|/)+", "/", path)
    bare = short.removeprefix("./")
    return short if not bare or bare[0] in "-/" else bare


def _word(word: Word) -> tuple[str, ...]:
    return ("expands", word.source) if word.expands else (word.text,)


def _redirects(redirects: tuple[Redirect, ...]) -> tuple[Any, ...]:
    return tuple((r.descriptor, r.operator, _word(r.target)) for r in redirects)
