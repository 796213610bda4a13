"""Java source in which methods write down what they are called with, and blocks that they run. Lines stay where they are."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from composer_replication.languages.insertions import Instrumented, SourceInsertion, inserted
from composer_replication.languages.java.syntax import COMMENTS, JavaMember, explicit_call, members_of, root_of
from composer_replication.languages.trees import text_of, walk

if TYPE_CHECKING:
    from tree_sitter import Node

_BODIES = frozenset({"method_declaration", "constructor_declaration", "compact_constructor_declaration", "lambda_expression"})
_LOOPS = frozenset({"for_statement", "enhanced_for_statement", "while_statement", "do_statement"})
_RECORDER = "zzcomposer.Recorder"
_STATEMENTS = frozenset(
    {"block", "constructor_body", "switch_block_statement_group", "labeled_statement", "if_statement", *_LOOPS}
)
_NO_BLOCKS = frozenset({"annotation", "marker_annotation", "enum_constant"})


@dataclass(slots=True)
class _Numbers:
    """Gives blocks numbers, and lines the last block that they are in."""

    last: int = 0
    own: dict[int, int] = field(default_factory=dict)

    def of(self, block: Node) -> int:
        self.last += 1
        for line in range(block.start_point[0] + 2, block.end_point[0] + 1):
            self.own[line] = self.last
        return self.last

    def one(self) -> int:
        self.last += 1
        return self.last


def callables_of(path: str, source: bytes) -> dict[str, JavaMember]:
    """Return the methods and constructors of a file whose calls can be written down, by their keys."""
    members = members_of(root_of(source))
    return {
        f"{path}::{one.qualname}": one
        for one in members
        if one.node.child_by_field_name("body") is not None
        and all(one.parameters)
        and one.node.type != "compact_constructor_declaration"
        and not (one.kind == "new" and one.inner)
        and not (one.name == "main" and one.types == ("String[]",))
    }


def instrumented(files: Mapping[str, bytes]) -> Instrumented:
    """Return sources whose methods write down their calls and blocks, by path. What cannot be parsed stays as it is."""
    found: dict[str, bytes] = {}
    lines: dict[int, tuple[str, tuple[int, ...]]] = {}
    numbers = _Numbers()
    for path, source in files.items():
        root = root_of(source)
        if root.has_error:
            continue
        calls = {one.node.start_byte: _record(key, one) for key, one in callables_of(path, source).items()}
        numbers.own = {}
        insertions = list(_insertions(root, calls, numbers))
        for line, owner in numbers.own.items():
            lines[owner] = (path, (*lines.get(owner, (path, ()))[1], line))
        found[path] = inserted(source, insertions)
    return Instrumented(files=found, lines=lines)


def _insertions(root: Node, calls: Mapping[int, str], numbers: _Numbers) -> Iterator[SourceInsertion]:
    """Yield what is put into a file, outer blocks before those in them."""
    waiting: list[tuple[Node, bool]] = [(root, False)]
    while waiting:
        node, runs = waiting.pop()
        if node.type in _NO_BLOCKS and node.type != "enum_constant":
            continue
        if node.type in _BODIES or node.type == "static_initializer":
            body = node.child_by_field_name("body") or next((one for one in node.named_children if one.type == "block"), None)
            if body is not None and body.type in ("block", "constructor_body"):
                yield _into(body, f"{_hit(numbers.of(body))}{calls.get(node.start_byte, '')}")
                runs = True
        elif runs:
            yield from _of_statement(node, numbers)
        waiting += [(child, runs) for child in reversed(node.named_children)]


def _into(body: Node, text: str) -> SourceInsertion:
    """Return a text at the beginning of a body, behind `this(...)` or `super(...)`."""
    before = explicit_call(body) if body.type == "constructor_body" else None
    at = body.start_byte + 1 if before is None else before.end_byte
    return SourceInsertion(at, at, text)


def _hit(number: int) -> str:
    return f"{_RECORDER}.hit({number});"


def _of_statement(node: Node, numbers: _Numbers) -> Iterator[SourceInsertion]:
    """Yield what notes the branches of a statement or an expression."""
    if node.type == "if_statement":
        for name in ("consequence", "alternative"):
            yield from _branch(node.child_by_field_name(name), numbers)
    elif node.type in _LOOPS:
        yield from _branch(node.child_by_field_name("body"), numbers)
    elif node.type in ("catch_clause", "finally_clause"):
        body = node.child_by_field_name("body") or next((one for one in node.named_children if one.type == "block"), None)
        yield from _branch(body, numbers)
    elif node.type == "switch_block_statement_group":
        colons = [child for child in node.children if child.type == ":"]
        statements = [child for child in node.named_children if child.type not in ("switch_label", *COMMENTS)]
        if colons and statements:
            yield SourceInsertion(colons[-1].end_byte, colons[-1].end_byte, _hit(numbers.of(node)))
    elif node.type == "switch_rule":
        yield from _rule(node, numbers)
    elif node.type == "ternary_expression":
        condition = node.child_by_field_name("condition")
        if condition is not None and not _binds(condition):
            yes, no = numbers.one(), numbers.one()
            yield SourceInsertion(condition.start_byte, condition.end_byte, f"{_RECORDER}.branch(", f", {yes}, {no})")
    elif node.type == "binary_expression" and text_of(node.child_by_field_name("operator")) in ("&&", "||"):
        right = node.child_by_field_name("right")
        if right is not None and not _binds(right):
            yield SourceInsertion(right.start_byte, right.end_byte, f"({_RECORDER}.hit({numbers.one()}) && (", "))")


def _branch(node: Node | None, numbers: _Numbers) -> Iterator[SourceInsertion]:
    if node is None or node.type == ";":
        return
    number = numbers.of(node)
    if node.type == "block":
        yield SourceInsertion(node.start_byte + 1, node.start_byte + 1, _hit(number))
    else:
        yield SourceInsertion(node.start_byte, node.end_byte, f"{{{_hit(number)}", "}")


def _rule(node: Node, numbers: _Numbers) -> Iterator[SourceInsertion]:
    """Yield what notes a case with an arrow: what gives a value yields it behind the note."""
    body = node.named_children[-1] if node.named_children else None
    if body is None or body.type == "switch_label":
        return
    if body.type == "expression_statement":
        switch = node.parent.parent if node.parent is not None else None
        above = None if switch is None else switch.parent
        is_statement = above is not None and (above.type in _STATEMENTS or _stands_alone(above))
        yield SourceInsertion(
            body.start_byte, body.end_byte, f"{{{_hit(numbers.of(body))}{'' if is_statement else 'yield '}", "}"
        )
    else:
        yield from _branch(body, numbers)


def _stands_alone(node: Node) -> bool:
    return node.type == "expression_statement" and (node.parent is None or node.parent.type != "switch_rule")


def _binds(expression: Node) -> bool:
    """Return whether an expression gives names a meaning or a value that what follows may count on."""
    return any(
        inner.type in ("assignment_expression", "update_expression", "record_pattern", "type_pattern")
        or (inner.type == "instanceof_expression" and (inner.child_by_field_name("name") or inner.child_by_field_name("pattern")))
        for inner in walk(expression)
    )


def _record(key: str, one: JavaMember) -> str:
    given = ", ".join(["this"] * (one.kind == "method") + list(one.parameters))
    return f"{_RECORDER}.called({json.dumps(key)}, new Object[] {{{given}}});"
