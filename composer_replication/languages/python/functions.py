"""Deletable bodies: functions and methods of a module that can be deleted line by line, found with `ast`."""

from __future__ import annotations

import ast
import codecs
import io
import tokenize
import warnings
from collections import Counter
from collections.abc import Iterator
from typing import Any, TypeAlias

from composer_replication.languages.functions import Function, Skipped, split_lines
from composer_replication.types.syntax import parse_module

Definition: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef
_UTF8 = frozenset({"utf-8", "utf-8-sig", "ascii", "us-ascii"})
_BRANCHES = (
    ast.If, ast.IfExp, ast.For, ast.AsyncFor, ast.While, ast.ExceptHandler, ast.match_case, ast.BoolOp, ast.comprehension,
)  # fmt: skip


def find_functions(path: str, source: bytes, *, keep_docstring: bool = True) -> tuple[list[Function], list[Skipped]]:
    """Find the deletable functions of one file in order, and what was skipped and why.

    Functions inside functions belong to the body of the outer one and are not looked at. `keep_docstring=False` counts the
    docstring to the body.
    """
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(source).readline)
        if encoding not in _UTF8:
            return [], [Skipped(path, f"encoded as {encoding}")]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            module = parse_module(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        return [], [Skipped(path, f"cannot be parsed ({type(error).__name__})")]
    lines = split_lines(source.removeprefix(codecs.BOM_UTF8))
    functions: list[Function] = []
    skipped: list[Skipped] = []
    for qualname, node in definitions(module):
        found = _examine(path, qualname, node, lines, keep_docstring)
        if isinstance(found, Function):
            functions.append(found)
        else:
            skipped.append(Skipped(f"{path}::{qualname}", found))
    times = Counter(function.key for function in functions)
    skipped += [Skipped(key, "defined more than once") for key, count in times.items() if count > 1]
    return [function for function in functions if times[function.key] == 1], skipped


def definitions(node: ast.AST, prefix: str = "") -> Iterator[tuple[str, Definition]]:
    """Yield functions of modules and classes, also under `if`, `try` and `with`, but not those inside functions."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield prefix + child.name, child
        elif isinstance(child, ast.ClassDef):
            yield from definitions(child, f"{prefix}{child.name}.")
        elif isinstance(child, ast.stmt | ast.ExceptHandler):
            yield from definitions(child, prefix)


def _examine(path: str, qualname: str, node: Definition, lines: list[bytes], keep_docstring: bool) -> Function | str:
    """Return the function, or the reason why it is skipped."""
    reason = _unsuitable(node)
    if reason is not None:
        return reason
    header_end = _header_end(node, lines)
    has_docstring = ast.get_docstring(node, clean=False) is not None
    after = node.body[0].end_lineno or 0 if has_docstring and keep_docstring else header_end
    first = node.body[1] if has_docstring and keep_docstring else node.body[0]
    if node.body[0].lineno <= header_end or first.lineno <= after or lines[after - 1].rstrip(b"\r\n").endswith(b"\\"):
        return "body on the line of its signature or docstring"
    indent = lines[first.lineno - 1][: first.col_offset]
    last = _with_trailing_comments(lines, node.end_lineno or first.lineno, indent)
    return Function(
        path=path,
        qualname=qualname,
        def_line=node.lineno,
        parameters=_parameters(node.args),
        rest=node.args.vararg.arg if node.args.vararg else "",
        first_line=after + 1,
        last_line=last,
        indent=indent,
        calls=frozenset(_called_names(node)),
        branches=sum(isinstance(inner, _BRANCHES) for inner in ast.walk(node)),
    )


def _unsuitable(node: Definition) -> str | None:
    for decorator in node.decorator_list:
        name = ast.unparse(decorator)
        last = name.partition("(")[0].rpartition(".")[2]
        if last == "overload" or "abstract" in last:
            return "overload or abstract"
        if last in ("setter", "deleter", "getter") and "." in name:
            return "second accessor of a property"
    statements = node.body[1:] if ast.get_docstring(node, clean=False) is not None else node.body
    if all(_is_empty(statement) for statement in statements):
        return "empty body"
    if node.name == "__init__" and all(_stores_argument(statement) for statement in statements):
        return "__init__ that only stores its arguments"
    return None


def _parameters(arguments: ast.arguments) -> tuple[str, ...]:
    by_position = (*arguments.posonlyargs, *arguments.args, *filter(None, [arguments.vararg]))
    return tuple(argument.arg for argument in (*by_position, *arguments.kwonlyargs))


def _is_empty(statement: ast.stmt) -> bool:
    match statement:
        case ast.Pass() | ast.Expr(value=ast.Constant()) | ast.Return(value=None | ast.Constant(value=None)):
            return True
        case ast.Raise(exc=ast.Name(id="NotImplementedError") | ast.Call(func=ast.Name(id="NotImplementedError"))):
            return True
    return False


def _stores_argument(statement: ast.stmt) -> bool:
    match statement:
        case ast.Assign(targets=[ast.Attribute(value=ast.Name())], value=ast.Name() | ast.Constant()):
            return True
        case ast.AnnAssign(target=ast.Attribute(value=ast.Name()), value=ast.Name() | ast.Constant() | None):
            return True
    return _is_empty(statement)


def _header_end(node: Definition, lines: list[bytes]) -> int:
    """Return the line of the colon that ends the signature.

    After the signature's last syntax node only brackets, commas, white space, continuations and comments can precede the colon.
    """
    args = node.args
    parts: list[Any] = [*args.posonlyargs, *args.args, args.vararg, *args.kwonlyargs, args.kwarg, *args.defaults]
    parts += [*args.kw_defaults, node.returns, *getattr(node, "type_params", [])]
    ends = ((part.end_lineno, part.end_col_offset) for part in parts if part is not None)
    line, column = max(ends, default=(node.lineno, node.col_offset))
    while b":" not in lines[line - 1][column:].partition(b"#")[0]:
        line, column = line + 1, 0
    return line


def _with_trailing_comments(lines: list[bytes], last: int, indent: bytes) -> int:
    """Return `last`, or the line of the last comment after it that stands at the body's indentation."""
    for number in range(last + 1, len(lines) + 1):
        line = lines[number - 1]
        if line.startswith(indent) and line.lstrip().startswith(b"#"):
            last = number
        elif line.strip():
            break
    return last


def _called_names(node: Definition) -> Iterator[str]:
    for inner in ast.walk(node):
        match inner:
            case ast.Call(func=ast.Name(id=name)) | ast.Attribute(attr=name):
                yield name
