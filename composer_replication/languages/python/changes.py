"""Compare two versions of a module: find functions that differ, and those that use constants which differ."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Set

from composer_replication.languages.python.functions import Definition, Function, definitions, find_functions
from composer_replication.types.syntax import parse_module


def changed_functions(path: str, before: bytes, after: bytes) -> tuple[list[Function], list[Function]]:
    """Return the functions of a file that are new or differ in signature, decorators or body, docstrings aside; and of the others
    those that mention a name which a statement outside of functions binds that is new or differs.

    There are none in a file that cannot be parsed.
    """
    functions = find_functions(path, after)[0]
    if not functions:
        return [], []
    old, new = _module(before), parse_module(after)
    known = {name: _dumped(node) for name, node in definitions(old)}
    nodes = dict(definitions(new))
    changed = [function for function in functions if known.get(function.qualname) != _dumped(nodes[function.qualname])]
    there = {text for text, _ in _bindings(old)}
    bound = {name for text, names in _bindings(new) if text not in there for name in names}
    others = [function for function in functions if function not in changed and bound & _mentioned(nodes[function.qualname])]
    return changed, others


def _module(source: bytes) -> ast.Module:
    try:
        return parse_module(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ast.Module(body=[], type_ignores=[])


def _dumped(node: Definition) -> str:
    """Return a function as text, without its docstring."""
    body = node.body[1:] if ast.get_docstring(node, clean=False) is not None else node.body
    return "\n".join(ast.dump(part) for part in (node.args, *node.decorator_list, *body))


def _bindings(node: ast.AST) -> Iterator[tuple[str, Set[str]]]:
    """Yield the statements of a module and its classes that bind names, each as text with the names."""
    for child in ast.iter_child_nodes(node):
        match child:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                continue
            case ast.Assign() | ast.AnnAssign() | ast.AugAssign():
                targets = child.targets if isinstance(child, ast.Assign) else [child.target]
                yield ast.dump(child), {name for target in targets for name in _mentioned(target)}
            case ast.ClassDef(bases=bases, decorator_list=decorators, name=name):
                yield " ".join([name, *map(ast.dump, [*bases, *decorators])]), {name}
                yield from _bindings(child)
            case ast.stmt() | ast.ExceptHandler():
                yield from _bindings(child)


def _mentioned(node: ast.AST) -> set[str]:
    """Return the names and attributes in some code."""
    found = set()
    for inner in ast.walk(node):
        match inner:
            case ast.Name(id=name) | ast.Attribute(attr=name):
                found.add(name)
    return found
