"""Removing whole functions, every import of them, their entries in `__all__`, and imports that only they used.

Files are edited with libcst, so what stays keeps its bytes. Calls of a removed function stay: they are part of what the agent
must make work again. Tests are not edited.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import TypeVar

import libcst as cst
from libcst import matchers as m

from composer_replication.languages.functions import Function

_Import = TypeVar("_Import", cst.Import, cst.ImportFrom)
_Assignment = TypeVar("_Assignment", cst.Assign, cst.AugAssign, cst.AnnAssign)


def remove_functions(
    sources: Mapping[str, bytes], functions: Iterable[Function], import_roots: Sequence[str]
) -> dict[str, bytes]:
    """Return the files that change when `functions` are removed, with their new content.

    Second accessors of a removed property and overloads of a removed function go too: they have its qualified name.

    Args:
        sources: every source file of the project, by POSIX path.
        functions: found in them by `find_functions`.
        import_roots: folders that are put on `sys.path`.

    Raises:
        SyntaxError: libcst cannot read a file that has to change, or one that mentions a function by name.
    """
    gone: dict[str, set[str]] = {}
    for function in functions:
        gone.setdefault(function.path, set()).add(function.qualname)
    homes = {_module_of(path, import_roots): {n for n in names if "." not in n} for path, names in gone.items()}
    words = {name.encode() for names in homes.values() for name in names}
    changed: dict[str, bytes] = {}
    for path, content in sources.items():
        if path in gone or any(word in content for word in words):
            edited = _edit(path, content, gone.get(path, set()), homes, import_roots)
            if edited != content:
                changed[path] = edited
    return changed


def _edit(path: str, content: bytes, gone: set[str], homes: Mapping[str, set[str]], import_roots: Sequence[str]) -> bytes:
    try:
        module = _parsed(content)
    except (cst.ParserSyntaxError, UnicodeDecodeError) as error:
        raise SyntaxError(f"libcst cannot read {path}") from error
    is_package = path.endswith("__init__.py")
    package = _module_of(path, import_roots).split(".")
    remover = _Remover(gone, homes, package if is_package else package[:-1])
    edited = module.visit(remover)
    edited = edited.visit(_Exports(remover.lost))
    if gone and not is_package:  # a package offers what it imports
        edited = edited.visit(_UnusedImports(_used_names(module) - _used_names(edited)))
    return edited.bytes


@lru_cache(maxsize=256)
def _parsed(content: bytes) -> cst.Module:
    return cst.parse_module(content)


def _module_of(path: str, roots: Sequence[str]) -> str:
    """Return the dotted name a file is imported by; the longest root that contains it counts."""
    root = max((root for root in roots if path.startswith(root + "/")), key=len, default="")
    inside = path.removeprefix(root + "/") if root else path
    return inside.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


class _NoEmptyLines(cst.CSTTransformer):
    """A line whose only statement was removed goes with it; libcst would write `pass`."""

    def leave_SimpleStatementLine(
        self, original_node: cst.SimpleStatementLine, updated_node: cst.SimpleStatementLine
    ) -> cst.SimpleStatementLine | cst.RemovalSentinel:
        return updated_node if updated_node.body else cst.RemoveFromParent()


class _Remover(_NoEmptyLines):
    """Removes definitions by qualified name, and imports of functions that are removed anywhere.

    Args:
        gone: qualified names to remove from this module.
        homes: dotted module -> top-level functions that are removed from it.
        package: the package that relative imports start from.
    """

    def __init__(self, gone: set[str], homes: Mapping[str, set[str]], package: list[str]) -> None:
        super().__init__()
        self._gone, self._homes, self._package = gone, homes, package
        self._scope: list[str] = []
        self.lost = {name for name in gone if "." not in name}
        """Names that the module no longer offers."""

    def visit_ClassDef(self, node: cst.ClassDef) -> None:
        self._scope.append(node.name.value)

    def visit_FunctionDef(self, node: cst.FunctionDef) -> None:
        self._scope.append(node.name.value)

    def leave_ClassDef(self, original_node: cst.ClassDef, updated_node: cst.ClassDef) -> cst.ClassDef:
        self._scope.pop()
        return updated_node

    def leave_FunctionDef(
        self, original_node: cst.FunctionDef, updated_node: cst.FunctionDef
    ) -> cst.FunctionDef | cst.RemovalSentinel:
        qualname = ".".join(self._scope)
        self._scope.pop()
        return cst.RemoveFromParent() if qualname in self._gone else updated_node

    def leave_ImportFrom(
        self, original_node: cst.ImportFrom, updated_node: cst.ImportFrom
    ) -> cst.ImportFrom | cst.RemovalSentinel:
        source = self._absolute(updated_node)
        # a package above a function's module may pass it on
        offered = {name for home, names in self._homes.items() if f"{home}.".startswith(f"{source}.") for name in names}
        if isinstance(updated_node.names, cst.ImportStar):
            self.lost |= offered
            return updated_node
        kept = [alias for alias in updated_node.names if alias.evaluated_name not in offered]
        self.lost |= {_bound(alias) for alias in updated_node.names if alias not in kept}
        return _with_names(updated_node, kept)

    def _absolute(self, node: cst.ImportFrom) -> str:
        named = "" if node.module is None else cst.Module([]).code_for_node(node.module)
        if not node.relative:
            return named
        base = self._package[: len(self._package) - len(node.relative) + 1]
        return ".".join([*base, named] if named else base)


class _Exports(cst.CSTTransformer):
    """Removes names from literal lists and tuples in `__all__`."""

    def __init__(self, lost: set[str]) -> None:
        super().__init__()
        self._lost = lost

    def leave_Assign(self, original_node: cst.Assign, updated_node: cst.Assign) -> cst.Assign:
        return self._cleaned(updated_node, [target.target for target in updated_node.targets])

    def leave_AugAssign(self, original_node: cst.AugAssign, updated_node: cst.AugAssign) -> cst.AugAssign:
        return self._cleaned(updated_node, [updated_node.target])

    def leave_AnnAssign(self, original_node: cst.AnnAssign, updated_node: cst.AnnAssign) -> cst.AnnAssign:
        return self._cleaned(updated_node, [updated_node.target])

    def _cleaned(self, node: _Assignment, targets: Sequence[cst.BaseExpression]) -> _Assignment:
        value = node.value
        if not isinstance(value, cst.List | cst.Tuple) or not any(m.matches(target, m.Name("__all__")) for target in targets):
            return node
        kept = [
            e for e in value.elements if not (isinstance(e.value, cst.SimpleString) and e.value.evaluated_value in self._lost)
        ]
        if len(kept) == len(value.elements):
            return node
        return node.with_changes(value=value.with_changes(elements=kept))


class _UnusedImports(_NoEmptyLines):
    """Removes imports outside functions and classes that bind one of `names`, which nothing in the module uses any more."""

    def __init__(self, names: set[str]) -> None:
        super().__init__()
        self._names = names

    def visit_FunctionDef(self, node: cst.FunctionDef) -> bool:
        return False

    def visit_ClassDef(self, node: cst.ClassDef) -> bool:
        return False

    def leave_Import(self, original_node: cst.Import, updated_node: cst.Import) -> cst.Import | cst.RemovalSentinel:
        return _with_names(updated_node, [alias for alias in updated_node.names if _bound(alias) not in self._names])

    def leave_ImportFrom(
        self, original_node: cst.ImportFrom, updated_node: cst.ImportFrom
    ) -> cst.ImportFrom | cst.RemovalSentinel:
        if isinstance(updated_node.names, cst.ImportStar) or m.matches(updated_node, m.ImportFrom(module=m.Name("__future__"))):
            return updated_node
        return _with_names(updated_node, [alias for alias in updated_node.names if _bound(alias) not in self._names])


class _UsedNames(cst.CSTVisitor):
    """Every name a module mentions outside imports, those in strings included."""

    def __init__(self) -> None:
        super().__init__()
        self.found: set[str] = set()

    def visit_Import(self, node: cst.Import) -> bool:
        return False

    def visit_ImportFrom(self, node: cst.ImportFrom) -> bool:
        return False

    def visit_Name(self, node: cst.Name) -> None:
        self.found.add(node.value)

    def visit_SimpleString(self, node: cst.SimpleString) -> None:
        value = node.evaluated_value
        if isinstance(value, str) and len(value) < 1000:
            self.found.update(value.replace("[", " ").replace(".", " ").replace("]", " ").split())


def _used_names(module: cst.Module) -> set[str]:
    names = _UsedNames()
    module.visit(names)
    return names.found


def _bound(alias: cst.ImportAlias) -> str:
    """Return the name an import binds."""
    return alias.evaluated_alias or alias.evaluated_name.partition(".")[0]


def _with_names(node: _Import, kept: Sequence[cst.ImportAlias]) -> _Import | cst.RemovalSentinel:
    """Return the import of what is kept."""
    if isinstance(node.names, cst.ImportStar) or len(kept) == len(node.names):
        return node
    if not kept:
        return cst.RemoveFromParent()
    last = kept[-1].with_changes(comma=cst.MaybeSentinel.DEFAULT)
    return node.with_changes(names=[*kept[:-1], last])
