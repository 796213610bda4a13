"""Rust source, read with tree-sitter: items by name, functions whose bodies can be deleted, and the blocks of functions.

Nodes are those of https://github.com/tree-sitter/tree-sitter-rust (grammar 0.24).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from composer_replication.languages.functions import Function, Skipped, sorted_out, split_lines
from composer_replication.languages.trees import Grammar, text_of, walk

if TYPE_CHECKING:
    from tree_sitter import Node

_BRANCHES = frozenset(
    {
        *("if_expression", "match_arm", "for_expression", "while_expression", "loop_expression", "try_expression"),
        *("&&", "||"),
    }
)
_COMMENTS = ("line_comment", "block_comment")
_TESTS = re.compile(r"#\[\s*(?:[\w:]+::)?(?:test|bench|test_case|rstest|quickcheck|wasm_bindgen_test)\b")
_CFG_TEST = re.compile(r"#\[\s*cfg\s*\(\s*(?:test|all\s*\(\s*test\b.*)\s*(?:\)|,)", re.DOTALL)
_PROC_MACROS = re.compile(r"#\[\s*proc_macro\w*")


_GRAMMAR = Grammar("tree_sitter_rust", "language", "Rust", "rust")
root_of, is_read_within = _GRAMMAR.root_of, _GRAMMAR.is_read_within


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """An item of a file, where it stands, and what is written above it."""

    node: Node
    attributes: tuple[Node, ...]
    """Those above it."""
    modules: tuple[str, ...]
    """Names of the modules of this file that it is in."""
    owner: Node | None = None
    """The `impl` or `trait` that it is in."""
    is_test: bool = False
    """It, or what it is in, is compiled for tests alone."""

    @property
    def start(self) -> int:
        """The byte at which its attributes begin."""
        return self.attributes[0].start_byte if self.attributes else self.node.start_byte

    @property
    def name(self) -> str:
        """Its name; empty where it has none."""
        return text_of(self.node.child_by_field_name("name"))

    @property
    def qualname(self) -> str:
        """Its dotted name: modules of the file, type, trait, name."""
        return ".".join([*self.modules, *_owner_names(self.owner), self.name])


def items_of(root: Node) -> Iterator[Item]:
    """Yield the items of a file in order, with those in its modules, `impl`s and traits; not those in functions."""
    yield from _items_in(root, (), None, False)


def _items_in(parent: Node, modules: tuple[str, ...], owner: Node | None, is_test: bool) -> Iterator[Item]:
    above: list[Node] = []
    for node in parent.named_children:
        if node.type == "attribute_item":
            above.append(node)
            continue
        if node.type in _COMMENTS:
            continue
        tested = is_test or any(marks_test(text_of(one)) for one in above)
        yield Item(node=node, attributes=tuple(above), modules=modules, owner=owner, is_test=tested)
        above = []
        body = node.child_by_field_name("body")
        if body is None:
            continue
        if node.type == "mod_item":
            yield from _items_in(body, (*modules, text_of(node.child_by_field_name("name"))), None, tested)
        elif node.type in ("impl_item", "trait_item"):
            yield from _items_in(body, modules, node, tested)


def marks_test(attribute: str) -> bool:
    """Return whether an attribute says that its item is a test, or compiled for tests alone."""
    return _TESTS.match(attribute) is not None or _CFG_TEST.match(attribute) is not None


def _owner_names(owner: Node | None) -> list[str]:
    if owner is None:
        return []
    if owner.type == "trait_item":
        return [text_of(owner.child_by_field_name("name"))]
    trait = owner.child_by_field_name("trait")
    return [_bare(owner.child_by_field_name("type")), *([_short(text_of(trait))] if trait is not None else [])]


def _bare(kind: Node | None) -> str:
    """Return the name of a type without its parameters and path."""
    while kind is not None and kind.type in ("generic_type", "reference_type", "scoped_type_identifier"):
        kind = kind.child_by_field_name("name" if kind.type == "scoped_type_identifier" else "type")
    return _short(text_of(kind))


def _short(text: str) -> str:
    """Return a type without blanks and paths."""
    return re.sub(r"\s+|\w+::", "", text).replace(".", "")


def functions_of(root: Node) -> Iterator[Item]:
    """Yield the functions of a file, tests included."""
    return (item for item in items_of(root) if item.node.type == "function_item")


def find_functions(path: str, source: bytes, *, keep_docstring: bool = True) -> tuple[list[Function], list[Skipped]]:
    """Find the deletable functions and methods of one file in order, and what was skipped and why.

    A comment above a function stays, so `keep_docstring` changes nothing. The name of a method is `Type.method`, or
    `Type.Trait.method` where a trait asks for it.
    """
    del keep_docstring
    root = root_of(source)
    if root.has_error:
        return [], [Skipped(path, "cannot be parsed")]
    lines = split_lines(source)
    return sorted_out(path, ((item.qualname, _examine(path, item, lines)) for item in functions_of(root) if not item.is_test))


def _examine(path: str, item: Item, lines: list[bytes]) -> Function | str:
    """Return the function, or the reason why it is skipped."""
    body = item.node.child_by_field_name("body")
    refused = _refused(item)
    if body is None or refused:
        return refused
    statements = [child for child in body.named_children if child.type not in _COMMENTS]
    if not statements:
        return "empty body"
    first, last = body.start_point[0] + 1, body.end_point[0] - 1  # 0-based lines between the braces
    if first > last or statements[0].start_point[0] < first or statements[-1].end_point[0] > last:
        return "body on the line of its signature"
    return Function(
        path=path,
        qualname=item.qualname,
        def_line=item.node.start_point[0] + 1,
        parameters=tuple(parameter.name for parameter in parameters_of(item.node) if parameter.name),
        first_line=first + 1,
        last_line=last + 1,
        indent=lines[statements[0].start_point[0]][: statements[0].start_point[1]],
        calls=frozenset(_called_names(body)),
        branches=sum(inner.type in _BRANCHES for inner in walk(body)),
    )


def _refused(item: Item) -> str:
    """Return why a function's body cannot be deleted; empty where it can be."""
    words = modifiers_of(item.node)
    if "const" in words:
        return "const fn: it also runs in the compiler"
    if "extern" in words:
        return "extern fn: other languages call it"
    if item.name == "main" and not item.modules and item.owner is None:
        return "nothing calls it by name"
    if any(_PROC_MACROS.match(text_of(one)) for one in item.attributes):
        return "a macro that runs in the compiler"
    if re.search(r"\bimpl\b", text_of(item.node.child_by_field_name("return_type"))):
        return "it returns an `impl Trait`, for which no stub compiles"
    return ""


def modifiers_of(function: Node) -> set[str]:
    """Return the words in front of `fn`: `const`, `async`, `unsafe`, `extern`."""
    found = next((child for child in function.children if child.type == "function_modifiers"), None)
    return set(re.findall(r"\w+", text_of(found)))


def _called_names(body: Node) -> Iterator[str]:
    for node in walk(body):
        if node.type != "call_expression":
            continue
        function = node.child_by_field_name("function")
        if function is not None and function.type == "generic_function":
            function = function.child_by_field_name("function")
        if function is not None and function.type in ("scoped_identifier", "field_expression"):
            function = function.child_by_field_name("name") or function.child_by_field_name("field")
        if function is not None and function.type in ("identifier", "field_identifier"):
            yield text_of(function)


@dataclass(frozen=True, slots=True)
class RustParameter:
    """A parameter as it is written."""

    name: str
    """Empty where it is a pattern; `self` for the object."""
    type: str


def parameters_of(function: Node) -> list[RustParameter]:
    """Return the parameters of a function, `self` first."""
    found = []
    listed = function.child_by_field_name("parameters")
    for node in [] if listed is None else listed.named_children:
        if node.type == "self_parameter":
            found.append(
                RustParameter("self", text_of(node).replace("mut self", "self") if "&" not in text_of(node) else text_of(node))
            )
        elif node.type == "parameter":
            pattern = node.child_by_field_name("pattern")
            name = text_of(pattern) if pattern is not None and pattern.type in ("identifier", "self") else ""
            found.append(RustParameter(name, text_of(node.child_by_field_name("type"))))
    return found


def outline(root: Node, qualname: str) -> tuple[str, str]:
    """Return a function's signature in one line, and what the comment above it says."""
    item = next(one for one in functions_of(root) if one.qualname == qualname)
    body = item.node.child_by_field_name("body")
    whole = item.node.text or b""
    end = len(whole) if body is None else body.start_byte - item.node.start_byte
    return " ".join(whole[:end].decode(errors="replace").split()), _comment_above(item)


def _comment_above(item: Item) -> str:
    lines: list[str] = []
    before = item.node.prev_named_sibling
    while before is not None and before.type in (*_COMMENTS, "attribute_item"):
        if before.type != "attribute_item":
            text = re.sub(r"^(///?!?|/\*\*?)[ \t]?|\s*\*/$", "", text_of(before).rstrip("\n"))
            lines.insert(0, text)
        before = before.prev_named_sibling
    return "\n".join(lines).strip()


def block_starts(function: Node) -> list[int]:
    """Return the bytes at which the blocks of a function begin, its body among them; not those that run in the compiler."""
    found = []
    waiting = [function]
    while waiting:
        node = waiting.pop()
        if node.type in ("const_item", "static_item", "const_block", "macro_definition", "type_arguments", "array_type"):
            continue
        if node.type == "function_item" and "const" in modifiers_of(node):
            continue
        if node.type == "block":
            found.append(_first_byte(node))
        length = node.child_by_field_name("length") if node.type == "array_expression" else None
        waiting += [child for child in node.children if child != length]
    return sorted(found)


def _first_byte(block: Node) -> int:
    """Return where statements of a block begin: behind the brace and inner attributes."""
    at = block.start_byte + 1
    for child in block.named_children:
        if child.type != "inner_attribute_item":
            break
        at = child.end_byte
    return at
