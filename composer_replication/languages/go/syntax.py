"""Go source, read with tree-sitter: functions whose bodies can be deleted, imports, types and blocks.

Nodes are those of https://github.com/tree-sitter/tree-sitter-go (grammar 0.25).
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
        *("if_statement", "for_statement", "expression_case", "type_case", "communication_case", "default_case"),
        *("&&", "||"),
    }
)
_FUNCTIONS = ("function_declaration", "method_declaration")
_PATH = re.compile(r"^(?:gopkg\.in/(?P<pkg>[^/]+/)?(?P<in>[^/]+?)\.v\d+|.*?(?P<last>[^/]+?)(?:/v\d+)?)$")


_GRAMMAR = Grammar("tree_sitter_go", "language", "Go", "go")
root_of, is_read_within = _GRAMMAR.root_of, _GRAMMAR.is_read_within


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter, receiver or result."""

    name: str
    """Empty where it has none."""
    type: str
    """As it is written, without the dots of a variadic one."""
    variadic: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Signature:
    """What a function takes and gives."""

    receiver: Parameter | None
    parameters: tuple[Parameter, ...]
    results: tuple[Parameter, ...]
    generic: bool
    body_start: int
    """Byte behind the opening brace."""
    header: str
    """The signature as it is written, without the body."""
    comment: str
    """The comment right above, without slashes."""


def find_functions(path: str, source: bytes, *, keep_docstring: bool = True) -> tuple[list[Function], list[Skipped]]:
    """Find the deletable functions and methods of one file in order, and what was skipped and why.

    A comment above a function stays, so `keep_docstring` changes nothing. The name of a method is `Type.Method`.
    """
    del keep_docstring
    root = root_of(source)
    if root.has_error:
        return [], [Skipped(path, "cannot be parsed")]
    lines = split_lines(source)
    return sorted_out(path, ((name, _examine(path, name, node, lines)) for name, node in named_functions(root)))


def named_functions(root: Node) -> Iterator[tuple[str, Node]]:
    """Yield the functions and methods of a file with their names."""
    for node in root.children:
        if node.type in _FUNCTIONS and (name := node.child_by_field_name("name")) is not None:
            receiver = node.child_by_field_name("receiver")
            yield (f"{_receiver_type(receiver)}." if receiver is not None else "") + text_of(name), node


def _receiver_type(receiver: Node) -> str:
    return next((text_of(node) for node in walk(receiver) if node.type == "type_identifier"), "")


def _examine(path: str, name: str, node: Node, lines: list[bytes]) -> Function | str:
    """Return the function, or the reason why it is skipped."""
    body = node.child_by_field_name("body")
    if body is None:
        return "it has no body"
    if name in ("init", "main"):
        return "nothing calls it by name"
    statements = [child for child in _statements(body) if child.type != "comment"]
    if not statements:
        return "empty body"
    first, last = body.start_point[0] + 1, body.end_point[0] - 1  # 0-based lines between the braces
    if first > last or statements[0].start_point[0] < first or statements[-1].end_point[0] > last:
        return "body on the line of its signature"
    signature = signature_of(node)
    indent = lines[statements[0].start_point[0]][: statements[0].start_point[1]]
    parameters = (*filter(None, [signature.receiver]), *signature.parameters)
    return Function(
        path=path,
        qualname=name,
        def_line=node.start_point[0] + 1,
        parameters=tuple(parameter.name for parameter in parameters if parameter.name not in ("", "_")),
        rest=next((p.name for p in signature.parameters if p.variadic), ""),
        first_line=first + 1,
        last_line=last + 1,
        indent=indent,
        calls=frozenset(_called_names(body)),
        branches=sum(inner.type in _BRANCHES for inner in walk(body)),
    )


def _statements(block: Node) -> list[Node]:
    found = ([*node.named_children] if node.type == "statement_list" else [node] for node in block.named_children)
    return [statement for statements in found for statement in statements]


def _called_names(body: Node) -> Iterator[str]:
    for node in walk(body):
        if node.type == "call_expression" and (function := node.child_by_field_name("function")) is not None:
            if function.type == "identifier":
                yield text_of(function)
        elif node.type == "field_identifier":
            yield text_of(node)


def signature_of(node: Node) -> Signature:
    """Return the signature of a function's node."""
    body = node.child_by_field_name("body")
    receiver = node.child_by_field_name("receiver")
    end = node.end_byte if body is None else body.start_byte
    whole = node.text or b""
    return Signature(
        receiver=next(iter(_parameters(receiver)), None) if receiver is not None else None,
        parameters=tuple(_parameters(node.child_by_field_name("parameters"))),
        results=tuple(_results(node.child_by_field_name("result"))),
        generic=node.child_by_field_name("type_parameters") is not None
        or (receiver is not None and any(inner.type in ("generic_type", "type_arguments") for inner in walk(receiver))),
        body_start=0 if body is None else body.start_byte + 1,
        header=" ".join(whole[: end - node.start_byte].decode(errors="replace").split()),
        comment=_comment_above(node),
    )


def _parameters(listed: Node | None) -> Iterator[Parameter]:
    for declaration in [] if listed is None else listed.named_children:
        if declaration.type not in ("parameter_declaration", "variadic_parameter_declaration"):
            continue
        kind = declaration.child_by_field_name("type")
        names = declaration.children_by_field_name("name")
        variadic = declaration.type == "variadic_parameter_declaration"
        for name in [text_of(name) for name in names] or [""]:
            yield Parameter(name, "" if kind is None else text_of(kind), variadic)


def _results(result: Node | None) -> Iterator[Parameter]:
    if result is None:
        return
    if result.type == "parameter_list":
        yield from _parameters(result)
    else:
        yield Parameter("", text_of(result))


def _comment_above(node: Node) -> str:
    lines: list[str] = []
    row, before = node.start_point[0], node.prev_named_sibling
    while before is not None and before.type == "comment" and before.end_point[0] == row - 1:
        lines.insert(0, re.sub(r"^//\s?|^/\*\s?|\s*\*/$", "", text_of(before)))
        row, before = before.start_point[0], before.prev_named_sibling
    return "\n".join(lines).strip()


@dataclass(frozen=True, slots=True)
class GoImport:
    """One import of a file."""

    path: str
    names: tuple[str, ...]
    """What the file may call it: its alias, or what its path suggests. Empty for one without a name."""
    first_byte: int
    last_byte: int


def imports_of(root: Node) -> list[GoImport]:
    """Return the imports of a file."""
    found = []
    for node in root.children:
        if node.type != "import_declaration":
            continue
        specs = [inner for inner in walk(node) if inner.type == "import_spec"]
        for spec in specs:
            alias, quoted = spec.child_by_field_name("name"), spec.child_by_field_name("path")
            path = text_of(quoted).strip('"`') if quoted is not None else ""
            names = (text_of(alias),) if alias is not None else _suggested(path)
            whole = node if len(specs) == 1 else spec
            found.append(GoImport(path, () if names in (("_",), (".",)) else names, whole.start_byte, whole.end_byte))
    return found


def _suggested(path: str) -> tuple[str, ...]:
    match = _PATH.match(path)
    last = (match["in"] or match["last"]) if match else path
    bare = re.sub(r"^go[-_.]|[-_.]go$", "", last)
    return tuple(dict.fromkeys([last, bare, last.replace("-", ""), bare.replace("-", ""), re.split(r"[-.]", last)[-1]]))


def used_packages(root: Node) -> set[str]:
    """Return the names in front of a dot, in values and types: every package that a file uses is among them."""
    found = set()
    for node in walk(root):
        if node.type == "selector_expression":
            operand = node.child_by_field_name("operand")
        elif node.type == "qualified_type":
            operand = node.child_by_field_name("package")
        else:
            continue
        if operand is not None and operand.type in ("identifier", "package_identifier"):
            found.add(text_of(operand))
    return found


def package_name(root: Node) -> str:
    """Return the name in a file's package clause."""
    clause = next((node for node in root.children if node.type == "package_clause"), None)
    return "" if clause is None else text_of(clause.named_children[0])


def defined_types(root: Node) -> set[str]:
    """Return the names of the types that a file defines at its top."""
    specs = (spec for node in root.children if node.type == "type_declaration" for spec in node.named_children)
    return {text_of(name) for spec in specs if (name := spec.child_by_field_name("name")) is not None}


def block_starts(node: Node) -> list[int]:
    """Return the bytes at which the blocks of a function begin, its body and the cases of its switches among them."""
    found = []
    for inner in walk(node):
        if inner.type == "block":
            found.append(inner.start_byte + 1)
        elif inner.type in ("expression_case", "type_case", "default_case", "communication_case"):
            colon = next((child for child in inner.children if child.type == ":"), None)
            found += [] if colon is None else [colon.end_byte]
    return found
