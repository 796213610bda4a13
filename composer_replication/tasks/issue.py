"""An instruction that reads as an issue: what is missing, what the project's own pages say of it, and what is looked at."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath

from composer_replication.languages.functions import Function, body_of
from composer_replication.tasks.feature import Feature
from composer_replication.tasks.proofs.leak import gives_away

_MOST_PASSAGES, _MOST_CHARACTERS = 2, 1000
"""Passages of documentation that are quoted for a function, and the characters of each, and of its docstring, about."""
_MOST_BEHAVIOURS = 8
_FEWEST_WORDS = 4
"""Words of a passage that says something."""
_MOST_NAMES = 3
"""Names in a title."""
_CHANGELOG = re.compile(r"change|history|news|release", re.IGNORECASE)
_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_MARKUP = re.compile(r"\s*(?:\.\. |#+ |[^\w\s]{4,}\s*$)")
"""Begins a directive, a heading, or what underlines one."""
_DIRECTIVE = re.compile(r"\s*\.\. [\w:-]+::")
_BULLET = re.compile(r"^(\s*)[-*+]\s+")


def as_issue(feature: Feature, functions: Sequence[Function]) -> str:
    """Write an issue of `functions`, in order of file and line.

    It quotes docstrings, passages of the documentation that name a function as code, and lines of the changelog, but none with a
    run of the deleted code; and it lists what is tested by the tests' names, not by what they assert.
    """
    names = [f"`{function.qualname}`" for function in functions]
    several = len(names) > 1
    lost = "missing" if feature.removed else "not implemented"
    lines = [f"{_listed(names)} {'are' if several else 'is'} {lost}", "", _symptom(feature, functions), ""]
    for function in functions:
        lines += [*_section(function, feature, several=several), ""]
    return "\n".join([*lines, *_asked(feature, functions)])


def _symptom(feature: Feature, functions: Sequence[Function]) -> str:
    """Say what a person sees who uses the functions."""
    places = _listed(list(dict.fromkeys(function.path for function in functions)))
    they, them = ("they are", "them") if len(functions) > 1 else ("it is", "it")
    if feature.removed:
        return f"I wanted to use {them} from {places}, but {they} not there: neither defined nor imported anywhere."
    fail = "All of them fail" if len(functions) > 2 else "Both fail" if len(functions) == 2 else "It fails"
    return f"{fail} as soon as {they} called, because in {places} there is no code behind {them}."


def _section(function: Function, feature: Feature, *, several: bool) -> Iterator[str]:
    signature, docstring = feature.language.outline(feature.sources[function.path], function.qualname)
    about = f"`{function.qualname}`" if several else "it"
    yield f"This is how {about} is declared in {function.path}:"
    yield from ("", textwrap.indent(signature, "    "))
    if docstring:
        yield from ("", f"And this is what {about} is supposed to do:", "", _quoted(_beginning(docstring)))
    body = body_of(feature.sources[function.path], function).decode(errors="replace")
    told: dict[str, list[str]] = {}
    for path, passage in _passages(function, feature):
        known = passage in docstring or gives_away(passage, [body], shown=f"{signature}\n{docstring}")
        if not known and sum(map(len, told.values())) < _MOST_PASSAGES:
            told.setdefault(path, []).append(passage)
    for path, passages in told.items():
        yield from ("", f"{path} has this to say:", "", _quoted("\n\n".join(passages)))


def _beginning(text: str) -> str:
    """Return the first paragraphs of a docstring, as many as one reads."""
    text = textwrap.dedent(text).strip()
    found = ""
    for paragraph in re.split(r"\n\s*\n", text):
        if found and len(found) + len(paragraph) > _MOST_CHARACTERS:
            return f"{found}\n\n(and so on)"
        found = f"{found}\n\n{paragraph}" if found else paragraph
    return found


def _quoted(text: str) -> str:
    return textwrap.indent(textwrap.dedent(text).strip(), "> ", lambda _: True).replace("> \n", ">\n")


def _passages(function: Function, feature: Feature) -> list[tuple[str, str]]:
    """Return paragraphs of the documentation that name a function as code, those with its whole name first; of a changelog the
    item alone."""
    whole, last = function.qualname, re.escape(function.qualname.rpartition(".")[2])
    module = "" if "." in whole else r"(?:[\w.]+\.)?"  # a method of that name in another class is another method
    names = (rf"`{module}{last}\b", rf":: {module}{last}\b", rf"(?<![\w.]){module}{last}\(")
    mention = re.compile("|".join((*names, rf"\b{re.escape(whole)}\b") if "." in whole else names))
    found = [
        (path, passage)
        for path, text in feature.docs.items()
        for passage in _paragraphs(text, items=bool(_CHANGELOG.search(PurePosixPath(path).name)))
        if len(passage) <= _MOST_CHARACTERS and mention.search(passage)
    ]
    return sorted(found, key=lambda one: whole not in one[1])  # stable: else in order of the pages


def _paragraphs(text: str, *, items: bool) -> Iterator[str]:
    """Yield what stands between empty lines, and of lists the single items where `items`. A directive goes with what it holds;
    one that holds nothing, and a heading, are left out."""
    blocks = re.split(r"\n[ \t]*\n", text)
    for block, after in zip(blocks, [*blocks[1:], ""], strict=True):
        lines = block.rstrip().strip("\n").splitlines()
        if lines and _MARKUP.match(lines[0]):
            if not _DIRECTIVE.match(lines[0]) or _depth(after) <= _depth(block):
                continue
            lines += ["", *after.rstrip().splitlines()]
        starts = [n for n, line in enumerate(lines) if _BULLET.match(line)] if items else []
        for begin, end in zip(starts, [*starts[1:], len(lines)], strict=True) if starts else [(0, len(lines))]:
            passage = textwrap.dedent("\n".join(lines[begin:end])).strip()
            if len(passage.split()) >= _FEWEST_WORDS:
                yield passage


def _depth(block: str) -> int:
    line = next((line for line in block.splitlines() if line.strip()), "")
    return len(line) - len(line.lstrip())


def _asked(feature: Feature, functions: Sequence[Function]) -> Iterator[str]:
    files = list(dict.fromkeys(test_id.partition("::")[0] for test_id in feature.fail_to_pass))
    known = {_phrase(function.qualname.rpartition(".")[2]) for function in functions}
    phrases = [one for one in dict.fromkeys(map(_behaviour, feature.fail_to_pass)) if one and one not in known]
    it = "it" if len(functions) == 1 else "them"
    yield f"Please implement {it}, so that the tests in {_listed(files)} pass again." + (" They check:" if phrases else "")
    if phrases:
        yield from ("", *(f"- {phrase}" for phrase in phrases[:_MOST_BEHAVIOURS]))
    if len(phrases) > _MOST_BEHAVIOURS:
        yield f"- and {len(phrases) - _MOST_BEHAVIOURS} more"


def _behaviour(test_id: str) -> str:
    """Return a test's name as words, without that of its class and of its parameters."""
    name = re.sub(r"\[.*\]$|#\d+$", "", test_id.partition("::")[2]).rpartition("::")[2]
    if " " in name:
        return name  # a sentence already, such as those of JavaScript
    words = _phrase(name)
    return words.removeprefix("test ") if words != "test" else ""


def _phrase(name: str) -> str:
    return " ".join(word if word.isupper() and len(word) > 1 else word.lower() for word in _WORDS.findall(name))


def _listed(names: Sequence[str]) -> str:
    if len(names) > 3:
        return f"{', '.join(names[:2])} and {len(names) - 2} others"
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
