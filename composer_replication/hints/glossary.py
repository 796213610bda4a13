"""Terms that a project's own documentation defines, each with the line that defines it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

PROSE_SUFFIXES = (".md", ".rst", ".txt")

MAX_DEFINITION_CHARS = 160
"""A longer definition is cut, at its first sentence when that is shorter and at a word otherwise."""

# Labels that open a line like a term does but define nothing.
_LABELS = frozenset(
    re.findall(
        r"\S+",
        """
        a an and args arguments as at attributes author authors because bug bugs but by caution changelog changes contents
        copyright danger date default defaults definition definitions description e.g. email error example examples false
        feature features first fix fixed fixes for from goal hint i.e. if important in info input install installation is it
        last licence license link links methods name none not note notes of on option optional options or output outputs
        parameter parameters params problem purpose question raise raises reason required requires result results return
        returns second see shape since solution source status step summary tests that the then there they this tip title to
        todo true type types url usage version versions warning warnings when where why yield yields you
        """,
    )
)

_WORD = r"[A-Za-z][\w'-]*"
_TERM = rf"{_WORD}(?: {_WORD}){{0,2}}"
_BULLET = r"(?:[-*+•]|\d+[.)])"
_MARK = r"(?:\*\*|__|``|`|\*|_|\"|')"
_LINE = re.compile(
    rf"^\s*(?:{_BULLET}\s+)?(?:(?:An?|The)\s+)?(?P<mark>{_MARK})?(?P<term>{_TERM})(?P<inner>:)?(?(mark)(?P=mark))"
    rf"(?P<sep>\s*:\s+|\s+(?:-{{1,3}}|–|—)\s+|\s+(?:means|denotes|stands for|is|are)\s+|(?<=[:*_`])\s+)(?P<text>\S.*)$"
)
_HEADING = re.compile(r"^\s{0,3}(?P<marks>#{1,6})\s+(?P<title>\S.*?)\s*#*$")
_UNDERLINE = re.compile(r"^([=\-~^\"'*+#])\1{2,}\s*$")
_RULE_CELL = re.compile(r"^:?-{3,}:?$")
_FENCE = re.compile(r"^\s*(```|~~~)")
_COPULA = re.compile(r"^(?:is|are|means|denotes|stands for|refers to)\s+", re.IGNORECASE)
_SENTENCE_END = re.compile(r"(?<=[.!?;])(?<!e\.g\.)(?<!i\.e\.)(?:\s|$)")
_OF_TERMS = re.compile(
    r"\b(?:glossary|terms?|terminology|vocabulary|words|definitions?|concepts|nomenclature|lexicon|jargon|dictionary|meanings?)\b",
    re.IGNORECASE,
)
"""Names of files and headings below which lists and tables define terms. Elsewhere they list links, options and changes."""
_OTHER_FILES = re.compile(
    r"change|history|news|release|what_?s_?new|todo|roadmap|contribut|conduct|governance|security|support|credits|migrat|upgrad",
    re.IGNORECASE,
)
"""Names of files and folders whose lines begin with a word and a colon, and define nothing."""
_A_THING = re.compile(r"(?:an?|the|one|any|each|every|all|how|what|where|when|whether|which)\b", re.IGNORECASE)
_NO_MEANING = re.compile(r"[^A-Za-z(]|\S*://|\S*[{}\[\]=<>|]|_\b")
"""How links, code and markup begin."""


def definitions(documentation: Mapping[str, str]) -> dict[str, str]:
    """Map each term that the prose files (`.md`, `.rst`, `.txt`) define to its meaning, in order of path and line.

    The first definition of a term wins. A meaning is quoted from the defining sentence: at most `MAX_DEFINITION_CHARS`
    characters, without a closing period. Everywhere but in notes on releases and on contributing are read: `term means text`, a
    marked-up term that `is a` or `is the` something, and headings whose first sentence says so of their term. In files and
    below headings whose names promise definitions (a glossary, terms, words, concepts) also `term: text` and `term - text`
    (bulleted, marked up or bare), two-column table rows and definition lists (a term above an indented or `:` line).
    """
    found: dict[str, tuple[str, str]] = {}
    for path in sorted(documentation):
        if not path.lower().endswith(PROSE_SUFFIXES) or _OTHER_FILES.search(path):
            continue
        for term, text in _parse(documentation[path], lists=bool(_OF_TERMS.search(re.sub(r"[\W_]+", " ", path)))):
            key = term.casefold()
            if key not in found and key not in _LABELS and (short := _shorten(text)):
                found[key] = (term, short)
    return dict(found.values())


def mentions(text: str, terms: Iterable[str]) -> list[str]:
    """Return the `terms` that `text` mentions, in order of their first mention: as whole words, any case, plural or possessive
    included."""
    positions: dict[str, int] = {}
    for term in terms:
        pattern = r"\s+".join(re.escape(word) for word in term.split())
        match = re.search(rf"(?<![\w-]){pattern}(?:s|es|'s)?(?![\w-])", text, re.IGNORECASE)
        if match:
            positions[term] = match.start()
    return sorted(positions, key=positions.__getitem__)


def _parse(text: str, *, lists: bool) -> Iterator[tuple[str, str]]:
    """Yield terms and meanings. `lists`: the whole file is one of definitions.

    `below` is the level of the heading that promises them, 0 for the whole file.
    """
    lines, below = _without_code(text), 0 if lists else None
    for index, line in enumerate(lines):
        following = lines[index + 1] if index + 1 < len(lines) else ""
        pair = None
        if (heading := _heading(line, following)) is not None:
            level, title = heading
            if below is None or level <= below:  # a deeper heading still stands below the one that promises definitions
                below = level if _OF_TERMS.search(title) else None
            pair = _headed(title, lines[index + 1 :], here=below is not None)
        elif (here := below is not None) and line.strip().startswith("|"):
            pair = _table_row(line, following)
        elif match := _LINE.match(line):
            pair = _labelled(match, here=here)
        elif here:
            pair = _definition_list(line, following)
        if pair and not _NO_MEANING.match(pair[1]):
            yield pair[0], _whole_sentence(pair[1], lines[index + 1 :])


def _whole_sentence(text: str, rest: list[str]) -> str:
    """Return a meaning with the lines that its sentence goes on in."""
    for line in rest[:3]:
        if (
            _SENTENCE_END.search(text)
            or not line.strip()
            or re.match(rf"\s*(?:{_BULLET}\s|[|#:])", line)
            or _UNDERLINE.match(line)
        ):
            break
        if _LINE.match(line):
            break
        text = f"{text} {line.strip()}"
    return text


def _without_code(text: str) -> list[str]:
    """Return the lines with fenced code blocks blanked out."""
    lines, fenced = [], False
    for line in text.splitlines():
        fence = bool(_FENCE.match(line))
        lines.append("" if fenced or fence else line)
        fenced ^= fence
    return lines


def _table_row(line: str, following: str) -> tuple[str, str] | None:
    cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
    rule = [cell.strip() for cell in following.strip().strip("|").split("|")]
    if len(cells) < 2 or all(_RULE_CELL.match(cell) for cell in rule):
        return None
    term = cells[0].strip("*_`\"' ")
    return (term, cells[1]) if re.fullmatch(_TERM, term) else None


def _heading(line: str, following: str) -> tuple[int, str] | None:
    """Return the level and the title of a heading."""
    if match := _HEADING.match(line):
        return len(match["marks"]), match["title"]
    if line.strip() and not line[:1].isspace() and (under := _UNDERLINE.match(following)):
        return {"=": 1, "-": 2}.get(under[1], 3), line.strip()
    return None


def _headed(title: str, rest: list[str], *, here: bool) -> tuple[str, str] | None:
    """Return the first sentence under a heading, when it defines the heading's term: `A zind is a ...`, `Zind means ...`."""
    term = title.strip("*_`\"' ")
    if not re.fullmatch(_TERM, term):
        return None
    body = next((line for line in rest if line.strip() and not _UNDERLINE.match(line)), "")
    plain = re.sub(r"[*_`]", "", body.strip())
    match = re.match(
        rf"(?:(?:an?|the)\s+)?{re.escape(term)}\s+(?P<verb>is|are|means|denotes|stands for|refers to)\s(?P<text>.+)", plain, re.I
    )
    if match is None or not _defines(match["verb"].lower(), match["text"], here=here):
        return None
    return term, match["text"]


def _defines(verb: str, text: str, *, here: bool) -> bool:
    """Return whether what follows a verb is a meaning, and not what is said about the term or follows from it."""
    if re.match(r"that\b|\w+ed\b", text):
        return False
    return verb not in ("is", "are") or here or bool(_A_THING.match(text))


def _labelled(match: re.Match[str], *, here: bool) -> tuple[str, str] | None:
    """Return the term and the meaning of a line. `here`: lists define terms here."""
    term, separator = match["term"], match["sep"].strip()
    if separator in ("is", "are", "means", "denotes", "stands for"):
        prose = not match["mark"] and (separator in ("is", "are") or " " in term)
        return None if prose or not _defines(separator, match["text"], here=here) else (term, match["text"])
    if not here or (match["inner"] is None and not separator):
        return None
    return None if not match["mark"] and " " in term and ":" not in separator else (term, match["text"])


def _definition_list(line: str, following: str) -> tuple[str, str] | None:
    term = line.strip().strip("*_`\"'")
    if line[:1].isspace() or not re.fullmatch(_TERM, term):
        return None
    match = re.match(r"^(?::\s+|\s{2,}|\t)(?P<text>\S.*)$", following)
    return (term, match["text"]) if match else None


def _shorten(text: str) -> str:
    text = _COPULA.sub("", " ".join(re.sub(r"[*`]", "", text).split()))
    sentence = _SENTENCE_END.split(text, maxsplit=1)[0]
    if len(sentence) > MAX_DEFINITION_CHARS:
        sentence = sentence[:MAX_DEFINITION_CHARS].rsplit(" ", 1)[0]
    return sentence.rstrip(" .;,:")
