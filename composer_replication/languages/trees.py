"""Syntax trees of tree-sitter, the same for every language that is read with it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING

from composer_replication.types.errors import MissingExtraError

if TYPE_CHECKING:
    from tree_sitter import Node, Parser

_CHUNK = 64 << 10


@dataclass(frozen=True)
class Grammar:
    """A grammar of tree-sitter, imported when something is read with it."""

    module: str
    function: str
    """The name of the module's function that gives the grammar."""
    language: str
    """The name of the language, for people."""
    extra: str
    """The extra of this package that brings the module."""

    @cached_property
    def parser(self) -> Parser:
        """Return the parser. Raises MissingExtraError where the extra is not installed."""
        try:
            from tree_sitter import Language
            from tree_sitter import Parser as TreeSitterParser

            made = getattr(import_module(self.module), self.function)
        except ModuleNotFoundError as error:
            fix = f"pip install 'composer-replication[{self.extra}]'"
            raise MissingExtraError(f"reading {self.language} needs tree-sitter", fix=fix) from error
        return TreeSitterParser(Language(made()))

    def root_of(self, source: bytes) -> Node:
        """Return the root of a file's syntax tree; a part that cannot be parsed is a node of the kind `ERROR` in it."""
        return self.parser.parse(source).root_node

    def is_read_within(self, path: str, source: bytes, seconds: float) -> bool:
        """Return whether a file, wherever it lies, can be parsed in so many CPU seconds."""
        del path
        return is_parsed_within(self.parser, source, seconds)


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
