"""The instruction of a commit's task: its message without what is for machines, and never its code."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence

_TRAILER = re.compile(
    r"(?:[A-Za-z]+(?:-[A-Za-z]+)*-by|cc|change-id|reviewed-on|differential revision|git-svn-id|pull-request-url|pr-url|"
    r"commit-queue|auto-submit|x-[\w-]+)\s*:.*|\(cherry picked from commit .*\)|.*generated with \[?claude.*",
    re.IGNORECASE,
)
"""Lines at which an instruction has nothing to say: who signed and reviewed, and marks of tools."""
_OF_TOOLS = re.compile(r"\[(?:skip[ -]ci|ci[ -]skip|skip actions)\]", re.IGNORECASE)
_PULL_REQUEST = re.compile(r"Merge pull request (?P<number>#\d+) from \S+")
_MERGE = re.compile(r"Merge (?:(?:remote-tracking )?branch|commit|tag) .*", re.IGNORECASE)
_ISSUE = re.compile(r"#\d")
_DIFF = re.compile(r"^(?:diff --git |@@ .* @@|(?:---|\+\+\+) \S+$|index [0-9a-f]{7,})", re.MULTILINE)
_SAYS_NOTHING = frozenset(
    {
        "a", "an", "and", "are", "as", "at", "bug", "bugs", "bump", "bumped", "by", "change", "changed", "changes",
        "clean", "cleaned", "cleaning", "cleanup", "code", "comment", "comments", "commit", "commits", "dev", "finally",
        "fix", "fixed", "fixes", "fixing", "fixup", "for", "from", "hotfix", "in", "improve", "improved",
        "improvements", "initial", "into", "is", "it", "lint", "main", "master", "merge", "merged", "minor", "misc",
        "more", "new", "of", "on", "patch", "pr", "pull", "quick", "refactor", "refactored", "refactoring", "release",
        "request", "review", "small", "some", "squash", "stuff", "test", "tests", "that", "the", "things", "this", "to",
        "try", "tweak", "tweaks", "typo", "typos", "up", "update", "updated", "updates", "version", "wip", "with",
        "work", "working",
    }
)  # fmt: skip
"""Words that do not tell one change from another."""
_FEWEST_WORDS = 2
_MOST_NEWS, _FEWEST_NEWS_WORDS = 12, 3
_LONGEST = 6000
"""Characters of a message; what is longer is cut at a paragraph."""
_MOST_TESTS, _MOST_FUNCTIONS = 5, 12


def instruction_of(
    message: str,
    *,
    merged: Sequence[str],
    news: Iterable[str],
    added: Sequence[str],
    changed: Sequence[str],
    tests: Sequence[str],
    gives_away: Callable[[str], bool],
) -> str:
    """Return the instruction for a commit's change.

    It holds the message's paragraphs without trailers, the lines that the commit adds to the changelog and, where neither says
    anything, the names of the functions. A paragraph or line that holds some of the commit's code is left out.

    Args:
        message: of the commit.
        merged: subjects of the commits that a merge brings; they count where its own message says nothing.
        added: functions that it adds, as they are to be named.
        changed: functions that it changes.
        tests: files of its tests.
    """
    paragraphs = [text for text in _paragraphs(message) if not gives_away(text)]
    if not _says_something(paragraphs):
        paragraphs = [text for text in paragraphs if _ISSUE.search(text)]
        paragraphs += ["\n".join(f"- {text}" for text in usable)] if (usable := _usable(merged, gives_away)) else []
    notes = _usable(news, gives_away)[:_MOST_NEWS]
    parts = ["\n\n".join(paragraphs)] if paragraphs else []
    parts += ["The changelog says of it:\n" + "\n".join(f"- {line}" for line in notes)] if notes else []
    if not _says_something([*paragraphs, *notes]):
        parts.append(_named(added, changed))
    files = ", ".join(tests[:_MOST_TESTS]) + (", ..." if len(tests) > _MOST_TESTS else "")
    parts.append(f"Make the tests pass that fail without it{f', in {files}' if files else ''}.")
    return "\n\n".join(part for part in parts if part)


def _paragraphs(message: str) -> list[str]:
    """Return the paragraphs of a message, without trailers, diffs and what git writes about a merge itself."""
    lines = [_OF_TOOLS.sub("", line).rstrip() for line in message.strip().splitlines()]
    lines = [line for line in lines if not _TRAILER.fullmatch(line.strip())]
    request = _PULL_REQUEST.fullmatch(lines[0]) if lines else None
    if lines and (request or _MERGE.fullmatch(lines[0])):
        lines = lines[1:]
    found = [text.strip("\n") for text in re.split(r"\n\s*\n", "\n".join(lines).strip("\n"))]
    found = [text for text in found if text.strip() and not _DIFF.search(text)]
    if request and found:
        found[0] = f"{found[0]} ({request['number']})"
    while sum(map(len, found)) > _LONGEST and len(found) > 1:
        found.pop()
    return [text[:_LONGEST] for text in found]


def _usable(lines: Iterable[str], gives_away: Callable[[str], bool]) -> list[str]:
    """Return lines of text that say something, once each: no headings, dates, versions and rules."""
    texts = (re.sub(r"^(?:[-*+•]|\d+\.)\s+", "", line.strip()) for line in lines)
    kept = (text for text in texts if len(_words(text)) >= _FEWEST_NEWS_WORDS and not text.startswith(("#", "..", "<!--")))
    return [text for text in dict.fromkeys(kept) if not _MERGE.fullmatch(text) and not gives_away(text)]


def _words(text: str) -> list[str]:
    return re.findall(r"[^\W\d_]\w*", text)


def _says_something(texts: Iterable[str]) -> bool:
    words = {word.lower() for text in texts for word in _words(text)}
    return len(words - _SAYS_NOTHING) >= _FEWEST_WORDS


def _named(added: Sequence[str], changed: Sequence[str]) -> str:
    """Say which functions the change is about."""
    what = [f"{verb} {_listed(names)}" for verb, names in (("add", added), ("change", changed)) if names]
    text = " and ".join(what)
    return f"{text[:1].upper()}{text[1:]}." if text else ""


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:_MOST_FUNCTIONS]) + (" and others" if len(names) > _MOST_FUNCTIONS else "")
