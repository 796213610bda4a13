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
_HEADING = re.compile(rf"^\s{{0,3}}#{{1,6}}\s+{_MARK}?(?P<term>{_TERM}){_MARK}?\s*#*$")
_UNDERLINE = re.compile(r"^([=\-~^\"'*+#])\1{2,}\s*$")
_RULE_CELL = re.compile(r"^:?-{3,}:?$")
_FENCE = re.compile(r"^\s*(```|~~~)")
_COPULA = re.compile(r"^(?:is|are|means|denotes|stands for|refers to)\s+", re.IGNORECASE)
_SENTENCE_END = re.compile(r"(?<=[.!?;])(?<!e\.g\.)(?<!i\.e\.)\s")


def definitions(documentation: Mapping[str, str]) -> dict[str, str]:
    """Map each term that the prose files (`.md`, `.rst`, `.txt`) define to its meaning, in order of path and line.

    The first definition of a term wins. A meaning is quoted from the defining line: at most `MAX_DEFINITION_CHARS` characters,
    without a closing period. Read are `term: text` and `term - text` lines (bulleted, marked up or bare), `term means text`,
    two-column table rows, definition lists (a term above an indented or `:` line), and headings whose first sentence says what
    the heading's term is.
    """
    found: dict[str, tuple[str, str]] = {}
    for path in sorted(documentation):
        if not path.lower().endswith(PROSE_SUFFIXES):
            continue
        for term, text in _parse(documentation[path]):
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


def _parse(text: str) -> Iterator[tuple[str, str]]:
    lines = _without_code(text)
    for index, line in enumerate(lines):
        following = lines[index + 1] if index + 1 < len(lines) else ""
        if line.strip().startswith("|"):
            pair = _table_row(line, following)
        elif heading := _heading(line, following):
            pair = _headed(heading, lines[index + 1 :])
        elif match := _LINE.match(line):
            pair = _labelled(match)
        else:
            pair = _definition_list(line, following)
        if pair:
            yield pair


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


def _heading(line: str, following: str) -> str | None:
    if match := _HEADING.match(line):
        return match["term"]
    underlined = _UNDERLINE.match(following) and re.fullmatch(_TERM, line.strip())
    return line.strip() if underlined else None


def _headed(term: str, rest: list[str]) -> tuple[str, str] | None:
    """Return the first sentence under a heading, when it defines the heading's term: `A zind is ...`, `Zind means ...`."""
    body = next((line for line in rest if line.strip() and not _UNDERLINE.match(line)), "")
    plain = re.sub(r"[*_`]", "", body.strip())
    match = re.match(
        rf"(?:(?:an?|the)\s+)?{re.escape(term)}\s+(?P<text>(?:is|are|means|denotes|stands for|refers to)\s.+)", plain, re.I
    )
    return (term, match["text"]) if match else None


def _labelled(match: re.Match[str]) -> tuple[str, str] | None:
    term, separator = match["term"], match["sep"]
    if match["inner"] is None and not separator.strip():
        return None
    if not match["mark"] and (separator.strip() in ("is", "are") or (" " in term and ":" not in separator)):
        return None  # a run of prose, not a term
    return term, match["text"]


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
