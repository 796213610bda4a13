"""Tests of Rust: those in source files stay the project's own whatever an agent makes of them; and reports of their outcomes.

The tests of a source file are its items with `#[test]` or `#[cfg(test)]`, a module as a whole. A run takes an agent's file
without such items and with those of the file that it replaces, so that what an agent adds, changes or deletes there counts for
nothing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from composer_replication.languages.rust.syntax import Item, functions_of, items_of, root_of
from composer_replication.languages.trees import text_of, walk

if TYPE_CHECKING:
    from tree_sitter import Node

_TEST = re.compile(r"#\[\s*(?:(?:::)?(?:core|std)::prelude::v1::)?test\s*\]")
_PANICS = re.compile(r"#\[\s*should_panic\b(?:.*?=\s*(?P<text>r?(?P<marks>#*)\".*\"(?P=marks)))?", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Replaced:
    """Bytes of a file, and what stands there afterwards."""

    start: int
    end: int
    text: bytes


def with_tests_of(pristine: bytes, work: bytes) -> bytes:
    """Return the file `work` with the tests of the file `pristine` in the place of its own.

    Tests go to the end of the module that they were in; where `work` has no such module, they are lost, and fail.
    """
    after, before = root_of(work), root_of(pristine)
    edits = [_Replaced(start=item.start, end=item.node.end_byte, text=b"") for item in _outermost_tests(after)]
    by_module: dict[tuple[str, ...], list[bytes]] = {}
    for item in _outermost_tests(before):
        by_module.setdefault(item.modules, []).append(pristine[item.start : item.node.end_byte])
    ends: dict[tuple[str, ...], int] = {(): len(work)}
    for item in items_of(after):
        body = item.node.child_by_field_name("body")
        if item.node.type == "mod_item" and body is not None:
            ends[(*item.modules, item.name)] = body.end_byte - 1
    for modules, texts in by_module.items():
        if modules in ends:
            at = ends[modules]
            edits.append(_Replaced(start=at, end=at, text=b"\n" + b"\n".join(texts) + b"\n"))
    return _edited(work, edits)


def without_tests(source: bytes) -> bytes:
    """Return a file without its tests."""
    edits = [_Replaced(start=item.start, end=item.node.end_byte, text=b"") for item in _outermost_tests(root_of(source))]
    return _edited(source, edits)


def has_tests(source: bytes) -> bool:
    """Return whether a file has a function that is a test, or a macro that makes one."""
    return _TEST.search(source.decode(errors="replace")) is not None


def _outermost_tests(root: Node) -> Iterator[Item]:
    """Yield the items that are compiled for tests alone and are in no other of these; not those in an `impl`."""
    end = 0
    for item in items_of(root):
        if item.is_test and item.owner is None and item.start >= end:
            end = item.node.end_byte
            yield item


def reporting(path: str, source: bytes, support: str) -> bytes:
    """Return a file whose tests report their outcomes, each on the lines where it was.

    Args:
        path: its POSIX path in the tree, with which ids begin.
        support: the name of the module with `run`.
    """
    edits: list[_Replaced] = []
    root = root_of(source)
    for item in functions_of(root):
        above = "\n".join(map(text_of, item.attributes))
        if _TEST.search(above) and item.owner is None:
            name = json.dumps(f"{path}::{'::'.join([*item.modules, item.name])}")
            what = f'concat!({name}, "\\t", module_path!(), "::", {json.dumps(item.name)})'
            edits += _wrapped(item.node, what, above, support)
    for node in walk(root):
        if node.type == "macro_definition":
            for inner in walk(node):
                edits += _made_by_macro(inner, support) if inner.type in ("token_tree", "token_repetition") else []
    return _edited(source, edits)


def _wrapped(function: Node, what: str, above: str, support: str) -> list[_Replaced]:
    body = function.child_by_field_name("body")
    gives = text_of(function.child_by_field_name("return_type")) or "()"
    words = text_of(next((child for child in function.children if child.type == "function_modifiers"), None))
    if body is None or gives == "!" or "impl" in gives.split() or "async" in words:
        return []
    inner = [child.end_byte for child in body.named_children if child.type == "inner_attribute_item"]
    return _around(max([body.start_byte + 1, *inner]), body.end_byte - 1, what, above, gives, support)


def _around(start: int, end: int, what: str, above: str, gives: str, support: str) -> list[_Replaced]:
    found = _PANICS.search(above)
    panics = "None" if found is None else f"Some({found['text'] or json.dumps('')})"
    opened = f" crate::{support}::run({what}, {panics}, move || -> {gives} {{"
    return [_Replaced(start=start, end=start, text=opened.encode()), _Replaced(start=end, end=end, text=b" }) ")]


def _made_by_macro(tree: Node, support: str) -> Iterator[_Replaced]:
    """Yield the edits of tests among the tokens of a macro: `#[test] ... fn name() -> type { ... }`.

    Their ids are made of what the compiler says of the place where the macro is called.
    """
    parts = tree.children
    for at, node in enumerate(parts):
        if not (node.type == "token_tree" and text_of(parts[at - 1]) == "#" and re.fullmatch(r"\[\s*test\s*\]", text_of(node))):
            continue
        rest = parts[at + 1 :]
        word = next((n for n, one in enumerate(rest) if text_of(one) == "fn"), None)
        if word is None or len(rest) < word + 4 or text_of(rest[word + 2]) != "()":
            continue
        body = next((n for n in range(word + 3, len(rest)) if text_of(rest[n]).startswith("{")), None)
        above = "".join(map(text_of, [*parts[max(0, at - 3) : at + 1], *rest[:word]]))
        if body is None or "async" in above.split():
            continue
        gives = " ".join(text_of(one) for one in rest[word + 3 : body]).removeprefix("->").strip() or "()"
        named = f"stringify!({text_of(rest[word + 1])})"
        what = f'concat!("@", file!(), "\\t", module_path!(), "::", {named})'
        yield from _around(rest[body].start_byte + 1, rest[body].end_byte - 1, what, above, gives, support)


def _edited(source: bytes, edits: list[_Replaced]) -> bytes:
    for _, edit in sorted(enumerate(edits), key=lambda pair: (pair[1].start, pair[1].end, pair[0]), reverse=True):
        source = source[: edit.start] + edit.text + source[edit.end :]
    return source
