"""Equality of shell command lines.

The lines are read into words (`words.py`), so blanks, quotes, comments and line breaks do not matter, and nothing is moved but
the options of the few programs whose manuals allow it (`programs.py`). Two lines with one form have one meaning in every state of
the files; two forms say nothing.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import Any

from composer_replication.actions.agreement.programs import Arguments, ProgramOptions, find_program, read_arguments
from composer_replication.actions.shell_words import Redirect, Simple, Word, read_line
from composer_replication.actions.tool_effects import plain_path

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
_PASS_LINES = frozenset({("cat",), ("head",), ("tail",)})


def shell_form(command: str, folders: Container[str] = ()) -> tuple[Any, ...]:
    """Return the line's form, equal for lines that do the same. Raises NotUnderstoodError.

    Args:
        folders: paths, without `./` and closing slash, that are known to be folders.
    """
    form: list[Any] = []
    trusted = True
    line = read_line(command)
    for place, simple in enumerate(line):
        known = None if not trusted else folders if place == 0 else ()  # the first command may move, make or remove folders
        part = _simple_form(simple, known, messages_shown=_messages_shown(simple, line[place + 1 :]))
        form.append((simple.joint, part, _redirects(simple.redirects)))
        trusted = trusted and not _changes_the_shell(simple)
    return tuple(form)


def _changes_the_shell(simple: Simple) -> bool:
    return not simple.words or simple.words[0].expands or simple.words[0].text in _CHANGES_THE_SHELL


def _simple_form(simple: Simple, folders: Container[str] | None, *, messages_shown: bool) -> tuple[Any, ...]:
    """Return the form of a simple command; `folders` is None where no program can be trusted to be itself."""
    words = tuple(map(_word, simple.words))
    assignments = tuple(map(_word, simple.assignments))
    read = None if folders is None else arguments_of(simple)
    if read is None or folders is None:
        return ("words", assignments, words)
    called, program, arguments = read
    plain = messages_shown and not program.shows(arguments)
    operands = tuple(_operand(text, program, arguments, folders, plain=plain) for text in arguments.operands)
    return ("program", assignments, called, arguments.options, arguments.values, arguments.leading, operands)


def arguments_of(simple: Simple) -> tuple[tuple[str, ...], ProgramOptions, Arguments] | None:
    """Parse how a simple command calls a known program; None where nothing expands only by chance, or the program is not
    known."""
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


def _messages_shown(simple: Simple, after: Sequence[Simple]) -> bool:
    """Return whether a command's error messages reach the agent only, or are discarded: there a path may be written in any
    way."""
    for r in simple.redirects:
        if (r.descriptor, r.operator, r.target.text) == ("2", ">&", "1"):
            if not _output_shown(simple, after):
                return False
        elif (r.descriptor in ("2", "") and r.target.text != "/dev/null") or (r.operator == ">&" and r.target.text != "2"):
            return False
    return True


def _output_shown(simple: Simple, after: Sequence[Simple]) -> bool:
    """Return whether whole lines of a command's output reach the agent, and nothing else reads them."""
    if any(r.descriptor == "1" for r in simple.redirects):
        return False
    for follower in after:
        if follower.joint != "|":
            break
        read = arguments_of(follower)
        if read is None or read[0] not in _PASS_LINES or follower.redirects:
            return False
        if read[2].options or read[2].operands or any(name != "n=" for name, _ in read[2].values):
            return False
    return True


def _operand(text: str, program: ProgramOptions, arguments: Arguments, folders: Container[str], *, plain: bool) -> str:
    """Return the operand; if `plain`, only its meaning counts."""
    if not program.paths:
        return text
    path, separator, test = text.partition("::") if program.pytest else (text, "", "")
    short = plain_path(path)
    bare = short.rstrip("/") or short
    apart = program.slash is None or len(arguments.operands) > 1 or bool(program.slash & frozenset(arguments.options))
    folder = not apart and (bare == "." or bare in folders)
    if program.lists:
        return bare if folder and plain else text
    if plain:
        path = bare if folder or (program.pytest and not separator) else short
    elif folder:
        path = path.rstrip("/")
    return path + separator + test


def _word(word: Word) -> tuple[str, ...]:
    return ("expands", word.source) if word.expands else (word.text,)


def _redirects(redirects: tuple[Redirect, ...]) -> tuple[Any, ...]:
    return tuple((r.descriptor, r.operator, _word(r.target)) for r in redirects)
