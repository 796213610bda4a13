"""Rewriting of test files so that a recorder sees each operation that could touch an object of the project.

Every call, attribute, item, operator, comparison and loop of the file becomes a call of `__composer__` (`steps.recorder`), which
carries it out and may write it down. What the project does within is not rewritten.
"""

from __future__ import annotations

import ast
from typing import Final, TypeVar

from composer_replication.types.syntax import parse_module

HOOK: Final = "__composer__"
"""The name under which rewritten code finds the recorder."""

_LEFT_ALONE = frozenset({"super", "locals", "globals", "vars", "dir", "eval", "exec", "__import__"})
"""Functions that look at the frame or the class that calls them."""
_OPERATORS: dict[type[ast.AST], str] = {
    ast.Eq: "eq", ast.NotEq: "ne", ast.Lt: "lt", ast.LtE: "le", ast.Gt: "gt", ast.GtE: "ge", ast.In: "in", ast.NotIn: "not in",
    ast.Is: "is_", ast.IsNot: "is_not",
    ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.Div: "truediv", ast.FloorDiv: "floordiv", ast.Mod: "mod", ast.Pow: "pow",
    ast.MatMult: "matmul", ast.BitOr: "or_", ast.BitAnd: "and_", ast.BitXor: "xor", ast.LShift: "lshift", ast.RShift: "rshift",
    ast.Not: "not_", ast.USub: "neg", ast.UAdd: "pos", ast.Invert: "invert",
}  # fmt: skip
"""Syntax -> name in the module `operator`, but for `in` and `not in`, whose operands stand the other way round there."""

_Node = TypeVar("_Node", bound=ast.AST)
_FunctionT = TypeVar("_FunctionT", ast.FunctionDef, ast.AsyncFunctionDef)


def instrument(source: str) -> str:
    """Return the rewritten text of a test file. Raises SyntaxError, ValueError or RecursionError."""
    return ast.unparse(ast.fix_missing_locations(_Instrument().visit(parse_module(source)))) + "\n"


def _hook(name: str, *arguments: ast.expr, keywords: list[ast.keyword] | None = None) -> ast.Call:
    return ast.Call(ast.Attribute(ast.Name(HOOK, ast.Load()), name, ast.Load()), list(arguments), keywords or [])


def _operator(name: str, *operands: ast.expr) -> ast.Call:
    return _hook("operator", ast.Constant(name), *operands)


def _is_super(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "super"


def _is_mangled(name: str) -> bool:
    return name.startswith("__") and not name.endswith("__")


class _Instrument(ast.NodeTransformer):
    """Annotations, base classes, patterns and f-strings stay as they are."""

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.JoinedStr:
        return node

    def visit_match_case(self, node: ast.match_case) -> ast.match_case:
        node.guard = node.guard and self.visit(node.guard)
        node.body = self._statements(node.body)
        return node

    def visit_Expr(self, node: ast.Expr) -> ast.Expr:
        """Mark a call whose result is not used: only its effects and exceptions are looked at."""
        if not isinstance(node.value, ast.Call):
            return self._visited(node)
        node.value = self._call(node.value, used=False)
        return node

    def visit_Call(self, node: ast.Call) -> ast.expr:
        return self._call(node, used=True)

    def _call(self, node: ast.Call, *, used: bool) -> ast.expr:
        node.args = [self._argument(argument) for argument in node.args]
        node.keywords = [self.visit(keyword) for keyword in node.keywords]
        suffix = "" if used else "_unused"
        function = node.func
        if isinstance(function, ast.Name) and function.id in _LEFT_ALONE:
            return node
        if isinstance(function, ast.Attribute) and not _is_mangled(function.attr):
            if _is_super(function.value):
                return node
            owner = self.visit(function.value)
            return _hook(f"method{suffix}", owner, ast.Constant(function.attr), *node.args, keywords=node.keywords)
        return _hook(f"call{suffix}", self.visit(function), *node.args, keywords=node.keywords)

    def _argument(self, node: ast.expr) -> ast.expr:
        visited: ast.expr = self.visit(node)
        return _hook("generated", visited) if isinstance(node, ast.GeneratorExp) else visited

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        if _is_super(node.value):
            return node
        node.value = self.visit(node.value)
        if not isinstance(node.ctx, ast.Load) or _is_mangled(node.attr):
            return node
        return _hook("attribute", node.value, ast.Constant(node.attr))

    def visit_Slice(self, node: ast.Slice) -> ast.expr:
        parts = [ast.Constant(None) if part is None else self.visit(part) for part in (node.lower, node.upper, node.step)]
        return ast.Call(ast.Name("slice", ast.Load()), parts, [])

    def visit_Subscript(self, node: ast.Subscript) -> ast.expr:
        node.value = self.visit(node.value)
        if not isinstance(node.ctx, ast.Load):
            return node
        return _operator("getitem", node.value, self.visit(node.slice))

    def visit_Compare(self, node: ast.Compare) -> ast.expr:
        visited = self._visited(node)
        names = [_OPERATORS[type(operator)] for operator in visited.ops]
        if len(names) > 1:
            return _hook(
                "chained", ast.Tuple([ast.Constant(name) for name in names], ast.Load()), visited.left, *visited.comparators
            )
        return _operator(names[0], visited.left, visited.comparators[0])

    def visit_BinOp(self, node: ast.BinOp) -> ast.expr:
        visited = self._visited(node)
        return _operator(_OPERATORS[type(visited.op)], visited.left, visited.right)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.expr:
        visited = self._visited(node)
        return visited if isinstance(visited.operand, ast.Constant) else _operator(_OPERATORS[type(visited.op)], visited.operand)

    def visit_Assert(self, node: ast.Assert) -> ast.Assert:
        node.test = _hook("truth", self.visit(node.test))
        return node

    def visit_ImportFrom(self, node: ast.ImportFrom) -> list[ast.stmt]:
        """Say by which names things are imported."""
        names = [alias for alias in node.names if alias.name != "*"]
        if node.level or node.module is None or node.module == "__future__":
            return [node]
        parts = [(ast.Name(alias.asname or alias.name, ast.Load()), ast.Constant(alias.name)) for alias in names]
        return [node, *(ast.Expr(_hook("imported", value, ast.Constant(node.module), name)) for value, name in parts)]

    def visit_Assign(self, node: ast.Assign) -> ast.stmt:
        node.value = self.visit(node.value)
        if len(node.targets) == 1:
            target = node.targets[0]
            if isinstance(target, ast.Subscript):
                return ast.Expr(_operator("setitem", self.visit(target.value), self.visit(target.slice), node.value))
            if isinstance(target, ast.Attribute) and not _is_mangled(target.attr) and not _is_super(target.value):
                return ast.Expr(_operator("setattr", self.visit(target.value), ast.Constant(target.attr), node.value))
            if isinstance(target, ast.Tuple | ast.List):
                node.value = _hook("items", node.value)
        node.targets = [self.visit(target) for target in node.targets]
        return node

    def visit_AugAssign(self, node: ast.AugAssign) -> ast.stmt:
        node.value = self.visit(node.value)
        name = "i" + _OPERATORS[type(node.op)].rstrip("_")
        if isinstance(node.target, ast.Name):
            return ast.Assign([node.target], _operator(name, ast.Name(node.target.id, ast.Load()), node.value))
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AnnAssign:
        node.value = node.value and self.visit(node.value)
        return node

    def visit_Delete(self, node: ast.Delete) -> ast.stmt:
        if len(node.targets) == 1:
            target = node.targets[0]
            if isinstance(target, ast.Subscript):
                return ast.Expr(_operator("delitem", self.visit(target.value), self.visit(target.slice)))
            if isinstance(target, ast.Attribute) and not _is_mangled(target.attr):
                return ast.Expr(_operator("delattr", self.visit(target.value), ast.Constant(target.attr)))
        return node

    def visit_For(self, node: ast.For) -> ast.For:
        visited = self._visited(node)
        visited.iter = _hook("items", visited.iter)
        return visited

    def visit_comprehension(self, node: ast.comprehension) -> ast.comprehension:
        visited = self._visited(node)
        if not visited.is_async:
            visited.iter = _hook("items", visited.iter)
        return visited

    def visit_With(self, node: ast.With) -> ast.With:
        visited = self._visited(node)
        for item in visited.items:
            item.context_expr = _hook("context", item.context_expr)
        return visited

    def visit_Await(self, node: ast.Await) -> ast.Await:
        node.value = _hook("awaited", self.visit(node.value))
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        return self._function(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AsyncFunctionDef:
        return self._function(node)

    def _function(self, node: _FunctionT) -> _FunctionT:
        node.args.defaults = [self.visit(default) for default in node.args.defaults]
        node.args.kw_defaults = [default and self.visit(default) for default in node.args.kw_defaults]
        node.body = self._statements(node.body)
        node.decorator_list = [_hook("decorator", self.visit(decorator)) for decorator in node.decorator_list]
        return node

    def visit_Lambda(self, node: ast.Lambda) -> ast.Lambda:
        node.args.defaults = [self.visit(default) for default in node.args.defaults]
        node.args.kw_defaults = [default and self.visit(default) for default in node.args.kw_defaults]
        node.body = self.visit(node.body)
        return node

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.ClassDef:
        node.body = self._statements(node.body)
        node.decorator_list = [_hook("decorator", self.visit(decorator)) for decorator in node.decorator_list]
        return node

    def _statements(self, body: list[ast.stmt]) -> list[ast.stmt]:
        visited = (self.visit(statement) for statement in body)
        return [one for found in visited for one in (found if isinstance(found, list) else [found])]

    def _visited(self, node: _Node) -> _Node:
        """Rewrite what is inside a node, and return the node."""
        self.generic_visit(node)
        return node
