"""Source of JavaScript and TypeScript in which functions write down what they are called with, and blocks that they run; and
modules that give out what their names stand for. Lines stay where they are."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from composer_replication.languages.insertions import Instrumented, SourceInsertion, inserted
from composer_replication.languages.javascript.syntax import (
    TYPED,
    Found,
    classes_of,
    functions_of,
    is_module,
    parameters_of,
    root_of,
)
from composer_replication.languages.trees import text_of, walk

if TYPE_CHECKING:
    from tree_sitter import Node

_FUNCTIONS = frozenset(
    {
        *("function_declaration", "generator_function_declaration", "function_expression", "generator_function"),
        *("arrow_function", "method_definition"),
    }
)
_LOOPS = frozenset({"for_statement", "for_in_statement", "while_statement", "do_statement"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleFunction:
    """A function that can be called from outside of its module."""

    key: str
    """`path::name`."""
    owner: str
    member: str
    kind: str


def targets_of(path: str, source: bytes) -> list[ModuleFunction]:
    """Return the functions of a file that can be called from outside of it."""
    return [_target(path, one) for one in functions_of(root_of(path, source)) if one.owner]


def _target(path: str, one: Found) -> ModuleFunction:
    return ModuleFunction(key=f"{path}::{one.qualname}", owner=one.owner, member=one.member, kind=one.kind)


def instrumented(files: Mapping[str, bytes]) -> Instrumented:
    """Return sources whose functions write down their calls and blocks, by path. What cannot be parsed stays as it is."""
    found: dict[str, bytes] = {}
    lines: dict[int, tuple[str, tuple[int, ...]]] = {}
    number = 0
    for path, source in files.items():
        root = root_of(path, source)
        if root.has_error:
            continue
        blocks = [block for node in walk(root) if node.type in _FUNCTIONS for block in _blocks(node)]
        calls = {one.node.id: _record(path, one) for one in functions_of(root) if one.owner}
        insertions = []
        own: dict[int, int] = {}
        for block in blocks:
            number += 1
            hit = f"{_global(path)}.__composerHit({number})"
            parent = block.parent
            call = calls.get(parent.id, "") if parent is not None and parent.type in _FUNCTIONS else ""
            insertions.append(_insertion(block, hit, call))
            for line in range(block.start_point[0] + 2, block.end_point[0] + 1):
                own[line] = number
        for line, owner in own.items():
            lines.setdefault(owner, (path, ()))
            lines[owner] = (path, (*lines[owner][1], line))
        support = 'import "zz-composer";' if is_module(root) else 'require("zz-composer");'
        insertions.append(SourceInsertion(_behind_directives(root), _behind_directives(root), support))
        found[path] = inserted(source, insertions) + exposure(path, source, ()).encode()
    return Instrumented(files=found, lines=lines)


def _blocks(function: Node) -> Iterable[Node]:
    """Yield what of a function, without functions inside it, is run or not: its body, branches and right sides of `&&`."""
    body = function.child_by_field_name("body")
    if body is None:
        return
    yield body
    waiting = [body]
    while waiting:
        node = waiting.pop(0)
        yield from _branches(node)
        waiting += [child for child in node.named_children if child.type not in _FUNCTIONS]


def _branches(node: Node) -> Iterable[Node]:
    if node.type == "if_statement":
        yield from filter(None, [node.child_by_field_name("consequence")])
        alternative = node.child_by_field_name("alternative")
        if alternative is not None and alternative.named_children:
            yield alternative.named_children[-1]
    elif node.type in _LOOPS or node.type in ("catch_clause", "finally_clause"):
        yield from filter(None, [node.child_by_field_name("body")])
    elif node.type in ("switch_case", "switch_default"):
        yield node
    elif node.type == "ternary_expression":
        yield from filter(None, [node.child_by_field_name("consequence"), node.child_by_field_name("alternative")])
    elif node.type == "binary_expression" and text_of(node.child_by_field_name("operator")) in ("&&", "||", "??"):
        yield from filter(None, [node.child_by_field_name("right")])


def _insertion(block: Node, hit: str, call: str) -> SourceInsertion:
    if block.type == "statement_block":
        return SourceInsertion(block.start_byte + 1, block.start_byte + 1, f"{hit};{call}")
    if block.type in ("switch_case", "switch_default"):
        colon = next(child.end_byte for child in block.children if child.type == ":")
        return SourceInsertion(colon, colon, f"{hit};")
    if block.type.endswith(("_statement", "_declaration")):
        return SourceInsertion(block.start_byte, block.end_byte, f"{{{hit};", "}")
    return SourceInsertion(block.start_byte, block.end_byte, f"({hit},", ")")


def _record(path: str, one: Found) -> str:
    """Return a statement that writes down what a function is called with; nothing where its arguments cannot be named."""
    if one.node.type == "arrow_function":
        names, rest = parameters_of(one.node)
        if not all(names):
            return ""
        given = f"[{', '.join([*names, *([f'...{rest}'] if rest else [])])}]"
    else:
        given = "[this, ...arguments]" if one.kind in ("method", "get", "set") else "[...arguments]"
    return f"{_global(path)}.__composerCalled({json.dumps(f'{path}::{one.qualname}')}, {given});"


def _global(path: str) -> str:
    return "(globalThis as any)" if path.endswith(TYPED) else "globalThis"


def _behind_directives(root: Node) -> int:
    """Return the byte at which the first statement that is no directive begins."""
    for node in root.children:
        directive = node.type == "expression_statement" and node.named_children and node.named_children[0].type == "string"
        if node.type not in ("comment", "hash_bang_line") and not directive:
            return node.start_byte
    return root.end_byte


def exposure(path: str, source: bytes, owners: Iterable[str]) -> str:
    """Return a line behind a module, in which it gives out what its names stand for.

    Args:
        owners: names beside those of its classes and functions, such as `exports`.
    """
    root = root_of(path, source)
    classes = classes_of(root)
    targets = {one.owner for one in functions_of(root) if one.owner}
    names = dict.fromkeys([*(name for name, _ in classes), *sorted(targets), *sorted(owners)])
    private = [name for name, hidden in classes if hidden]
    getters = ", ".join(f"{json.dumps(name)}: () => {name}" for name in names)
    return f"\n;{_global(path)}.__composerExpose?.({json.dumps(path)}, {{ {getters} }}, {json.dumps(private)});\n"
