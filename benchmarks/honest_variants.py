"""The gold code of a task written in other ways, each of which does the same: what an honest solution may look like."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

from composer_replication.languages.python.functions import find_functions
from composer_replication.tasks.store import Task

FunctionNode: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef


def honest_variants(task: Task) -> Iterator[tuple[str, dict[str, bytes]]]:
    """Yield the name of a way of writing and the files of the solution written so, where it changes anything."""
    gold = task.gold_files()
    for name, rewrite in WAYS.items():
        files = {path: _rewritten(task, path, source, rewrite) for path, source in gold.items()}
        if any(text is not None for text in files.values()):
            yield name, {path: gold[path] if text is None else text for path, text in files.items()}


def _rewritten(task: Task, path: str, source: bytes, rewrite: Callable[[FunctionNode], bool]) -> bytes | None:
    lines = {f.first_line for f in find_functions(path, source)[0] if (path, f.qualname) in _deleted(task)}
    tree = ast.parse(source)
    changed = False
    for node in ast.walk(tree):
        if isinstance(node, FunctionNode) and any(node.lineno < line <= (node.end_lineno or 0) for line in lines):
            changed = rewrite(node) or changed
    return ast.unparse(ast.fix_missing_locations(tree)).encode() + b"\n" if changed else None


def _deleted(task: Task) -> set[tuple[str, str]]:
    return {(deletion.path, deletion.qualname) for deletion in task.spec.deleted}


def _rename_locals(function: FunctionNode) -> bool:
    if any(isinstance(n, ast.Global | ast.Nonlocal | FunctionNode | ast.ClassDef) for s in function.body for n in ast.walk(s)):
        return False
    stored = {n.id for n in ast.walk(function) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    names = stored - {argument.arg for argument in ast.walk(function) if isinstance(argument, ast.arg)}
    for node in ast.walk(function):
        if isinstance(node, ast.Name) and node.id in names:
            node.id = f"{node.id}_value"
    return bool(names)


class _Returns(ast.NodeTransformer):
    def visit_Return(self, node: ast.Return) -> Any:
        if node.value is None:
            return node
        return [ast.Assign([ast.Name("answer_", ast.Store())], node.value), ast.Return(ast.Name("answer_", ast.Load()))]

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        return node


def _name_results(function: FunctionNode) -> bool:
    before = ast.dump(function)
    function.body = [new for old in function.body for new in _as_list(_Returns().visit(old))]
    return ast.dump(function) != before


def _as_list(made: Any) -> list[ast.stmt]:
    return made if isinstance(made, list) else [made]


def _turn_conditions(function: FunctionNode) -> bool:
    found = [n for n in ast.walk(function) if isinstance(n, ast.If) and n.orelse]
    for node in found:
        node.test = ast.UnaryOp(ast.Not(), node.test)
        node.body, node.orelse = node.orelse, node.body
    return bool(found)


def _work_in_a_helper(function: FunctionNode) -> bool:
    """Move the body into a function of its own, where that changes nothing."""
    inner = [node for statement in function.body for node in ast.walk(statement)]
    stored = {n.id for n in inner if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store | ast.Del)}
    arguments = {argument.arg for argument in ast.walk(function.args) if isinstance(argument, ast.arg)}
    special = ast.Yield | ast.YieldFrom | ast.Await | ast.Nonlocal | ast.Global
    if stored & arguments or any(isinstance(n, special) for n in inner) or not isinstance(function, ast.FunctionDef):
        return False
    if any(isinstance(n, ast.Name) and n.id in ("super", "locals", "__class__") for n in inner):
        return False
    nothing = ast.arguments(posonlyargs=[], args=[], kwonlyargs=[], kw_defaults=[], defaults=[])
    helper = ast.FunctionDef(name="work_", args=nothing, body=function.body, decorator_list=[])
    function.body = [helper, ast.Return(ast.Call(ast.Name("work_", ast.Load()), [], []))]
    return True


def _say_more(function: FunctionNode) -> bool:
    function.body = [*ast.parse("steps_ = ['begun']\nsteps_.append('named')").body, *function.body]
    return True


WAYS: dict[str, Callable[[FunctionNode], bool]] = {
    "other names": _rename_locals,
    "named results": _name_results,
    "turned conditions": _turn_conditions,
    "a helper": _work_in_a_helper,
    "more statements": _say_more,
}
