"""Functions, blocks and imports of JavaScript and TypeScript, found with tree-sitter."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from composer_replication.languages.functions import Function, Skipped, sorted_out, split_lines
from composer_replication.languages.trees import Grammar, text_of, walk

if TYPE_CHECKING:
    from tree_sitter import Node

ENDINGS = (".js", ".mjs", ".cjs", ".jsx", ".ts", ".mts", ".cts", ".tsx")
TYPED = (".ts", ".mts", ".cts", ".tsx")
_DECLARED = ("function_declaration", "generator_function_declaration")
_VALUES = ("function_expression", "generator_function", "arrow_function")
_CLASSES = ("class_declaration", "abstract_class_declaration", "class")
_BRANCHES = frozenset(
    {
        *("if_statement", "for_statement", "for_in_statement", "while_statement", "do_statement", "switch_case", "catch_clause"),
        "ternary_expression",
    }
)
_NAME = re.compile(r"[A-Za-z_$][\w$]*")


_JAVASCRIPT, _TYPESCRIPT, _TSX = (
    Grammar(module, function, "JavaScript and TypeScript", "javascript")
    for module, function in (
        ("tree_sitter_javascript", "language"),
        ("tree_sitter_typescript", "language_typescript"),
        ("tree_sitter_typescript", "language_tsx"),
    )
)


def root_of(path: str, source: bytes) -> Node:
    """Return the root of a file's syntax tree; a part that cannot be parsed is a node of the kind `ERROR` in it."""
    return _grammar_of(path).root_of(source)


def _grammar_of(path: str) -> Grammar:
    return _TSX if path.endswith(".tsx") else _TYPESCRIPT if path.endswith(TYPED) else _JAVASCRIPT


def is_read_within(path: str, source: bytes, seconds: float) -> bool:
    """Return whether a file can be parsed in so many CPU seconds."""
    return _grammar_of(path).is_read_within(path, source, seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A function at the top of a module, or a method of a class or object there."""

    qualname: str
    node: Node
    """Of the function: it has the body."""
    whole: Node
    """Of the statement or member that defines it, which a comment precedes."""
    owner: str
    """The expression that gives, in the module, what holds it: the function's own name, or a class, object or `exports`. Empty
    where nothing in the module can name it."""
    member: str = ""
    """Its name in the owner; empty where it is the owner."""
    kind: str = "function"
    """How it is called: `function`, `static` (on the owner), `method`, `get`, `set` or `new`."""
    derived: bool = False
    """It is the constructor of a class that extends another."""


def functions_of(root: Node) -> Iterator[Found]:
    """Yield the functions of a module in order."""
    for statement in root.named_children:
        inner = statement
        if statement.type == "export_statement":
            declared = statement.child_by_field_name("declaration") or statement.child_by_field_name("value")
            if declared is None:
                continue
            inner = declared
        yield from _of_statement(inner, statement)


def _of_statement(node: Node, whole: Node) -> Iterator[Found]:
    if node.type in _DECLARED:
        name = text_of(node.child_by_field_name("name"))
        yield Found(qualname=name or "default", node=node, whole=whole, owner=name)
    elif node.type in _CLASSES:
        yield from _of_class(text_of(node.child_by_field_name("name")), node)
    elif node.type in ("lexical_declaration", "variable_declaration"):
        for declared in node.named_children:
            label, value = declared.child_by_field_name("name"), declared.child_by_field_name("value")
            if declared.type == "variable_declarator" and label is not None and label.type == "identifier" and value is not None:
                yield from _of_value(text_of(label), value, whole)
    elif node.type == "expression_statement" and node.named_children:
        inner = node.named_children[0]
        left, right = inner.child_by_field_name("left"), inner.child_by_field_name("right")
        if inner.type == "assignment_expression" and left is not None and right is not None:
            yield from _of_assignment(text_of(left), right, whole)
    elif node.type in _VALUES:
        yield Found(qualname="default", node=node, whole=whole, owner="")
    elif node.type == "object":
        yield from _of_object("", "default", node)


def _of_value(name: str, value: Node, whole: Node) -> Iterator[Found]:
    """Yield what `name = value` defines."""
    while value.type in ("as_expression", "satisfies_expression", "parenthesized_expression") and value.named_children:
        value = value.named_children[0]
    if value.type in _VALUES:
        yield Found(qualname=name, node=value, whole=whole, owner=name)
    elif value.type in _CLASSES:
        yield from _of_class(name, value)
    elif value.type == "object":
        yield from _of_object(name, name, value)


def _of_assignment(left: str, right: Node, whole: Node) -> Iterator[Found]:
    """Yield what an assignment at the top of a module defines: `exports.f = …`, `C.prototype.m = …`, `module.exports = …`."""
    while right.type == "assignment_expression" and (inner := right.child_by_field_name("right")) is not None:
        right = inner
    parts = left.split(".")
    if not all(map(_NAME.fullmatch, parts)):
        return
    if left in ("module.exports", "exports") or len(parts) == 1:
        name = text_of(right.child_by_field_name("name")) if right.type in (*_VALUES, *_CLASSES) else ""
        if right.type in _VALUES:
            yield Found(qualname=name or left, node=right, whole=whole, owner=left)
        elif right.type in _CLASSES:
            yield from _of_class(name or left, right, owner=left)
        elif right.type == "object":
            yield from _of_object(left, left, right)
        return
    *holder, member = parts
    if right.type in _VALUES:
        method = len(holder) > 1 and holder[-1] == "prototype"
        owner = ".".join(holder[:-1] if method else holder)
        kind = "method" if method else "static"
        yield Found(qualname=f"{owner}.{member}", node=right, whole=whole, owner=owner, member=member, kind=kind)
    elif right.type in _CLASSES:
        yield from _of_class(left, right, owner=left)


def _of_class(name: str, node: Node, *, owner: str | None = None) -> Iterator[Found]:
    """Yield the methods of a class, and functions that its fields hold."""
    owner = name if owner is None else owner
    body = node.child_by_field_name("body")
    derived = any(child.type == "class_heritage" and "extends" in text_of(child) for child in node.children)
    for member in [] if body is None else body.named_children:
        if member.type != "method_definition":
            continue
        label = member.child_by_field_name("name")
        words = {child.type for child in member.children}
        kind = next((word for word in ("get", "set") if word in words), "method")
        named = label is not None and label.type == "property_identifier"
        short = text_of(label)
        kind = "new" if short == "constructor" and named else "static" if "static" in words and kind == "method" else kind
        reach = owner if named and not ("static" in words and kind in ("get", "set")) else ""
        prefix = f"{kind} " if kind in ("get", "set") else ""
        yield Found(
            qualname=f"{name or 'default'}.{prefix}{short}",
            node=member,
            whole=member,
            owner=reach,
            member=short,
            kind=kind,
            derived=derived and kind == "new",
        )


def _of_object(owner: str, name: str, node: Node) -> Iterator[Found]:
    """Yield the methods of an object and the functions that its properties hold."""
    for member in node.named_children:
        if member.type == "method_definition":
            label, value = member.child_by_field_name("name"), member
        elif member.type == "pair":
            label, found = member.child_by_field_name("key"), member.child_by_field_name("value")
            if found is None or found.type not in _VALUES:
                continue
            value = found
        else:
            continue
        accessor = any(child.type in ("get", "set") for child in member.children)
        named = label is not None and label.type == "property_identifier" and not accessor
        qualname, reach = f"{name}.{text_of(label)}", owner if named else ""
        yield Found(qualname=qualname, node=value, whole=member, owner=reach, member=text_of(label), kind="static")


def find_functions(path: str, source: bytes) -> tuple[list[Function], list[Skipped]]:
    """Find the deletable functions and methods of one file in order, and what was skipped and why.

    A comment above a function stays. The name of a method is `Class.method`.
    """
    root = root_of(path, source)
    if root.has_error:
        return [], [Skipped(path, "cannot be parsed")]
    lines = split_lines(source)
    return sorted_out(path, ((one.qualname, _examine(path, one, lines)) for one in functions_of(root)))


def _examine(path: str, one: Found, lines: list[bytes]) -> Function | str:
    """Return the function, or the reason why it is skipped."""
    body = one.node.child_by_field_name("body")
    if body is None or body.type != "statement_block":
        return "its body is an expression" if body is not None else "it has no body"
    if one.derived:
        return "the constructor of a class that extends another"
    statements = [child for child in body.named_children if child.type != "comment"]
    if not statements:
        return "empty body"
    first, last = body.start_point[0] + 1, body.end_point[0] - 1  # 0-based lines between the braces
    if first > last or statements[0].start_point[0] < first or statements[-1].end_point[0] > last:
        return "body on the line of its signature"
    if "\n" in one.qualname or not one.qualname.isprintable():
        return "its name is computed"
    names, rest = parameters_of(one.node)
    return Function(
        path=path,
        qualname=one.qualname,
        def_line=one.node.start_point[0] + 1,
        parameters=tuple(filter(None, names)),
        rest=rest,
        first_line=first + 1,
        last_line=last + 1,
        indent=lines[statements[0].start_point[0]][: statements[0].start_point[1]],
        calls=frozenset(_called_names(body)),
        branches=sum(inner.type in _BRANCHES or _is_choice(inner) for inner in walk(body)),
    )


def _is_choice(node: Node) -> bool:
    return node.type == "binary_expression" and text_of(node.child_by_field_name("operator")) in ("&&", "||", "??")


def _called_names(body: Node) -> Iterator[str]:
    for node in walk(body):
        if node.type in ("call_expression", "new_expression"):
            called = node.child_by_field_name("function") or node.child_by_field_name("constructor")
            if called is not None and called.type == "identifier":
                yield text_of(called)
        elif node.type == "property_identifier":
            yield text_of(node)


def parameters_of(node: Node) -> tuple[list[str], str]:
    """Return the names of a function's parameters by position, empty for a pattern, and that of the rest."""
    single = node.child_by_field_name("parameter")
    if single is not None:
        return [text_of(single)], ""
    listed = node.child_by_field_name("parameters")
    names: list[str] = []
    rest = ""
    for parameter in [] if listed is None else listed.named_children:
        if parameter.type in ("comment", "decorator"):
            continue
        inner = parameter
        if parameter.type in ("required_parameter", "optional_parameter"):
            inner = parameter.child_by_field_name("pattern") or parameter
        if inner.type == "assignment_pattern":
            inner = inner.child_by_field_name("left") or inner
        if inner.type == "this" or text_of(inner) == "this":
            continue
        if inner.type == "rest_pattern":
            rest = text_of(inner.named_children[0]) if inner.named_children else ""
        else:
            names.append(text_of(inner) if inner.type == "identifier" else "")
    return names, rest


def outline(path_root: Node, qualname: str) -> tuple[str, str]:
    """Return a function's signature in one line, and the comment above it."""
    one = next(found for found in functions_of(path_root) if found.qualname == qualname)
    body = one.node.child_by_field_name("body")
    end = one.whole.end_byte if body is None else body.start_byte
    header = (one.whole.text or b"")[: end - one.whole.start_byte].decode(errors="replace")
    short = " ".join(header.rstrip().removesuffix("=>").split())
    name = qualname.rpartition(".")[2].rpartition(" ")[2]
    return short if name in short else f"{name}: {short}", _comment_above(one.whole)


def _comment_above(node: Node) -> str:
    lines: list[str] = []
    row, before = node.start_point[0], node.prev_named_sibling
    while before is not None and before.type == "comment" and before.end_point[0] == row - 1:
        text = text_of(before)
        if text.startswith("//"):
            lines.insert(0, text[2:].strip())
        else:
            inner = (re.sub(r"^\s*\*\s?", "", line) for line in text[2:-2].splitlines())
            lines.insert(0, "\n".join(inner).strip().lstrip("*").strip())
        row, before = before.start_point[0], before.prev_named_sibling
    return "\n".join(lines).strip()


def imports_of(root: Node) -> list[str]:
    """Return what a file imports or requires, as it is written."""
    found: list[str] = []
    for node in walk(root):
        source = None
        if node.type in ("import_statement", "export_statement"):
            source = node.child_by_field_name("source")
        elif node.type == "call_expression" and text_of(node.child_by_field_name("function")) in ("require", "import"):
            arguments = node.child_by_field_name("arguments")
            first = arguments.named_children[0] if arguments is not None and arguments.named_children else None
            source = first if first is not None and first.type == "string" else None
        if source is not None:
            found.append(text_of(source)[1:-1])
    return found


def is_module(root: Node) -> bool:
    """Return whether a file is an ECMAScript module by its syntax: it imports or exports at its top."""
    return any(node.type in ("import_statement", "export_statement") for node in root.children)


def classes_of(root: Node) -> list[tuple[str, bool]]:
    """Return the names of the classes and functions at the top of a module, and whether their objects have private fields."""
    found: list[tuple[str, bool]] = []
    for statement in root.named_children:
        inner = statement.child_by_field_name("declaration") or statement
        if inner.type in _CLASSES or inner.type in _DECLARED:
            found.append((text_of(inner.child_by_field_name("name")), _has_private(inner)))
        elif inner.type in ("lexical_declaration", "variable_declaration"):
            for declared in inner.named_children:
                value = declared.child_by_field_name("value")
                if value is not None and value.type in (*_CLASSES, *_VALUES):
                    found.append((text_of(declared.child_by_field_name("name")), _has_private(value)))
    return [(name, private) for name, private in found if _NAME.fullmatch(name)]


def _has_private(node: Node) -> bool:
    if node.type not in _CLASSES:
        return False
    body = node.child_by_field_name("body")
    members = [] if body is None else body.named_children
    return any(text_of(child).startswith("#") for member in members for child in member.children if "private" in child.type)
