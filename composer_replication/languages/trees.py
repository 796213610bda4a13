"""Syntax trees of tree-sitter, the same for every language that is read with it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tree_sitter import Node, Parser

_CHUNK = 64 << 10


def text_of(node: Node | None) -> str:
    """Return the source text of a node; empty for none."""
    return "" if node is None else (node.text or b"").decode(errors="replace")


def walk(node: Node) -> Iterator[Node]:
    """Yield a node and all below it, in the order of the source."""
    waiting = [node]
    while waiting:
        here = waiting.pop()
        yield here
        waiting += reversed(here.children)


def is_parsed_within(parser: Parser, source: bytes, seconds: float) -> bool:
    """Return whether a source can be parsed in so much CPU time: a few kilobytes can be written that take minutes."""
    from tree_sitter import Parser as TreeSitterParser

    own = TreeSitterParser(parser.language)  # of this thread: its callbacks let others run
    end = time.thread_time() + seconds
    try:
        own.parse(lambda at, _: source[at : at + _CHUNK], progress_callback=lambda *_: time.thread_time() > end)
    except ValueError:  # ended by the callback
        return False
    return True
