"""Java source, read with tree-sitter: methods and constructors whose bodies can be deleted.

Nodes are those of https://github.com/tree-sitter/tree-sitter-java (grammar 0.23).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from composer_replication.languages.functions import Function, Skipped, sorted_out, split_lines
from composer_replication.languages.trees import Grammar, text_of, walk

if TYPE_CHECKING:
    from tree_sitter import Node

_CLASSES = frozenset({"class_declaration", "interface_declaration", "enum_declaration", "record_declaration"})
_MEMBERS = frozenset({"method_declaration", "constructor_declaration", "compact_constructor_declaration"})
_BRANCHES = frozenset(
    {
        *("if_statement", "for_statement", "enhanced_for_statement", "while_statement", "do_statement", "switch_label"),
        *("catch_clause", "ternary_expression", "&&", "||"),
    }
)
COMMENTS = frozenset({"line_comment", "block_comment"})
ANY_TYPE = "?"
"""A type variable, in `JavaMember.types`."""


_GRAMMAR = Grammar("tree_sitter_java", "language", "Java", "java")
root_of, is_read_within = _GRAMMAR.root_of, _GRAMMAR.is_read_within


@dataclass(frozen=True, slots=True, kw_only=True)
class JavaMember:
    """A method or constructor of a class that has a name."""

    qualname: str
    """`Outer.Inner.method`, with the types of its parameters where the class has others of that name."""
    node: Node
    owner: str
    """The class as the JVM names it: `package.Outer$Inner`."""
    name: str
    types: tuple[str, ...]
    """Simple names of its parameters' types without type arguments; `?` for a type variable."""
    parameters: tuple[str, ...]
    """Names."""
    variadic: bool
    kind: str
    """`method`, `static` or `new`."""
    inner: bool
    """It belongs to a class whose objects need one of the class around it, or to an enum."""


def members_of(root: Node) -> list[JavaMember]:
    """Return the methods and constructors of a file in order, those of local and anonymous classes left out."""
    package = next((text_of(node.named_children[-1]) for node in root.children if node.type == "package_declaration"), "")
    found = [one for node in root.children if node.type in _CLASSES for one in _of_class(node, package, "", (), False)]
    times = Counter(one.qualname for one in found)
    return [replace(one, qualname=f"{one.qualname}({','.join(one.types)})") if times[one.qualname] > 1 else one for one in found]


def _of_class(node: Node, package: str, outer: str, variables: tuple[str, ...], inner: bool) -> Iterator[JavaMember]:
    """Yield the members of a class and of the classes in it.

    Args:
        outer: the names of the classes around it, with a dot behind each.
        variables: type variables of these.
        inner: its objects need one of the class around it.
    """
    name = f"{outer}{text_of(node.child_by_field_name('name'))}"
    owner = (f"{package}." if package else "") + name.replace(".", "$")
    variables += _variables(node)
    body = node.child_by_field_name("body")
    for child in _declarations(body):
        if child.type in _CLASSES:
            static = node.type == "interface_declaration" or child.type != "class_declaration" or "static" in _modifiers(child)
            yield from _of_class(child, package, f"{name}.", variables, not static)
        elif child.type in _MEMBERS:
            yield _member(child, name, owner, variables, inner or node.type == "enum_declaration")


def _declarations(body: Node | None) -> Iterator[Node]:
    for child in [] if body is None else body.named_children:
        if child.type == "enum_body_declarations":
            yield from child.named_children
        else:
            yield child


def _member(node: Node, class_name: str, owner: str, variables: tuple[str, ...], inner: bool) -> JavaMember:
    short = text_of(node.child_by_field_name("name"))
    parameters = list(_parameters(node.child_by_field_name("parameters"), (*variables, *_variables(node))))
    static = "static" in _modifiers(node)
    return JavaMember(
        qualname=f"{class_name}.{short}",
        node=node,
        owner=owner,
        name=short,
        types=tuple(kind for _, kind, _ in parameters),
        parameters=tuple(name for name, _, _ in parameters),
        variadic=any(variadic for _, _, variadic in parameters),
        kind="static" if static else "method" if node.type == "method_declaration" else "new",
        inner=inner,
    )


def _modifiers(node: Node) -> set[str]:
    return {inner.type for child in node.children if child.type == "modifiers" for inner in child.children}


def _variables(node: Node) -> tuple[str, ...]:
    listed = node.child_by_field_name("type_parameters")
    names = [] if listed is None else [child for child in listed.named_children if child.type == "type_parameter"]
    words = (next((text_of(inner) for inner in one.children if inner.type == "type_identifier"), "") for one in names)
    return tuple(words)


def _parameters(listed: Node | None, variables: Sequence[str]) -> Iterator[tuple[str, str, bool]]:
    """Yield (name, simple type, whether it takes any number)."""
    for one in [] if listed is None else listed.named_children:
        if one.type == "formal_parameter":
            arrays = text_of(one.child_by_field_name("dimensions")).count("[")
            yield (
                text_of(one.child_by_field_name("name")),
                _simple(one.child_by_field_name("type"), variables) + "[]" * arrays,
                False,
            )
        elif one.type == "spread_parameter":
            kinds = [child for child in one.named_children if child.type not in ("modifiers", "variable_declarator")]
            label = next((child for child in one.named_children if child.type == "variable_declarator"), None)
            name = "" if label is None else text_of(label.child_by_field_name("name"))
            yield name, _simple(kinds[0] if kinds else None, variables) + "[]", True


def _simple(kind: Node | None, variables: Sequence[str]) -> str:
    """Return the simple name of a type without its arguments."""
    text = re.sub(r"@[\w.]+(\([^)]*\))?\s*", "", text_of(kind))
    while "<" in text and (shorter := re.sub(r"<[^<>]*>", "", text)) != text:
        text = shorter
    bare = "".join(text.split())
    name, arrays = bare.replace("[]", ""), bare.count("[]")
    return (ANY_TYPE if name in variables else name.rpartition(".")[2]) + "[]" * arrays


def find_functions(path: str, source: bytes) -> tuple[list[Function], list[Skipped]]:
    """Find the deletable methods and constructors of one file in order, and what was skipped and why. A comment above stays."""
    root = root_of(source)
    if root.has_error:
        return [], [Skipped(path, "cannot be parsed")]
    lines = split_lines(source)
    return sorted_out(path, ((one.qualname, _examine(path, one, lines)) for one in members_of(root)))


def _examine(path: str, one: JavaMember, lines: list[bytes]) -> Function | str:
    """Return the function, or the reason why it is skipped."""
    body = one.node.child_by_field_name("body")
    if body is None:
        return "it has no body"
    if one.name == "main" and one.types == ("String[]",):
        return "nothing calls it by name"
    statements = body_statements(body)
    if not statements:
        return "empty body"
    before = explicit_call(body)
    opening = body.start_point[0] if before is None else before.end_point[0]
    first, last = opening + 1, body.end_point[0] - 1  # 0-based lines between the braces
    if first > last or statements[0].start_point[0] < first or statements[-1].end_point[0] > last:
        return "body on the line of its signature"
    if one.node.type == "compact_constructor_declaration":
        return "a constructor of a record that assigns nothing itself"
    indent = lines[statements[0].start_point[0]][: statements[0].start_point[1]]
    return Function(
        path=path,
        qualname=one.qualname,
        def_line=one.node.start_point[0] + 1,
        parameters=one.parameters,
        rest=one.parameters[-1] if one.variadic else "",
        first_line=first + 1,
        last_line=last + 1,
        indent=indent,
        calls=frozenset(_called_names(body)),
        branches=sum(inner.type in _BRANCHES for inner in walk(body)),
    )


def explicit_call(body: Node) -> Node | None:
    """Return the call `this(...)` or `super(...)` that a constructor begins with."""
    return next((child for child in body.named_children if child.type == "explicit_constructor_invocation"), None)


def body_statements(body: Node) -> list[Node]:
    """Return the statements of a body that deleting it removes: without comments, and without `this(...)` or `super(...)`."""
    return [
        child for child in body.named_children if child.type not in COMMENTS and child.type != "explicit_constructor_invocation"
    ]


def _called_names(body: Node) -> Iterator[str]:
    for node in walk(body):
        if node.type in ("method_invocation", "field_access"):
            yield text_of(node.child_by_field_name("name") or node.child_by_field_name("field"))
        elif node.type == "object_creation_expression":
            yield text_of(node.child_by_field_name("type")).partition("<")[0].rpartition(".")[2]


def outline(source: bytes, qualname: str) -> tuple[str, str]:
    """Return a function's signature in one line, without its annotations, and the comment above it."""
    node = next(one.node for one in members_of(root_of(source)) if one.qualname == qualname)
    body = node.child_by_field_name("body")
    end = node.end_byte if body is None else body.start_byte
    annotations = [
        child
        for modifiers in node.children
        if modifiers.type == "modifiers"
        for child in modifiers.children
        if child.type in ("annotation", "marker_annotation")
    ]
    start = max((child.end_byte for child in annotations), default=node.start_byte)
    header = " ".join(source[start:end].decode(errors="replace").split())
    return header, _comment_above(node)


def _comment_above(node: Node) -> str:
    lines: list[str] = []
    row, before = node.start_point[0], node.prev_named_sibling
    while before is not None and before.type in COMMENTS and before.end_point[0] >= row - 1:
        text = text_of(before)
        if text.startswith("//"):
            lines.insert(0, text[2:].strip())
        else:
            inner = (re.sub(r"^\s*\*\s?", "", line) for line in text[2:-2].splitlines())
            lines.insert(0, "\n".join(inner).strip().lstrip("*").strip())
        row, before = before.start_point[0], before.prev_named_sibling
    return "\n".join(lines).strip()
