"""The program that looks for copies of functions in all files a sandbox can read. It runs in the sandbox, so it sees what code
under test sees, and a file that breaks it breaks nothing else. Standard library only.

A function's fingerprint is its body as a tree, without docstrings, annotations, decorators and layout, with its local names
numbered. Files are read once: which functions each defines is kept by path, size and time. Only a file that defines a function of
the same name, and holds all the words of its body, is parsed.
"""

from __future__ import annotations

import ast
import contextlib
import hashlib
import importlib.util
import io
import json
import lzma
import marshal
import os
import re
import stat
import sys
import types
import warnings
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from typing import Any, TypeAlias

Index: TypeAlias = dict[str, list[Any]]
"""Path -> size, time in nanoseconds, names of the functions defined in it, joined by spaces."""
_Def: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef

SMALLEST = 12
"""Nodes of a body below which it is nobody's in particular."""
_MOST_BYTES, _MOST_UNPACKED = 4 << 20, 64 << 20
"""Largest file that is looked into, and bytes that one archive is unpacked to."""
_ARCHIVES = (".zip", ".whl", ".egg", ".pyz")
_MOST_WORDS = 8
_NOT_FILES = ("/proc", "/sys", "/dev", "/tmp", "/repo")
_DEFINITION = re.compile(rb"^[ \t]*(?:async[ \t]+)?def[ \t]+(\w+)", re.MULTILINE)
_BLOCK = re.compile(rb"([ \t]*)(?:async[ \t]+)?def[ \t].*(?:\n(?:\1[ \t]+.*|\1[)\]}].*|[ \t]*(?:#.*)?\r?(?=\n|\Z)))*")
"""A definition up to the next line that is not indented further."""
_MEMBER = "!"
_BROKEN = (
    SyntaxError,
    ValueError,
    TypeError,
    RecursionError,
    MemoryError,
    EOFError,
    KeyError,
    OSError,
    RuntimeError,
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
)
_NOT_COMPARED = frozenset({"annotation", "returns", "type_comment", "ctx", "decorator_list", "type_params", "kind"})


class Wanted:
    """The functions to look for."""

    def __init__(self, sources: dict[str, str], keys: Iterable[str]) -> None:
        self.fingerprints: dict[str, set[str]] = {}
        self.compiled: dict[tuple[Any, ...], set[str]] = {}
        self.words: dict[str, list[list[bytes]]] = {}
        self.sizes: dict[str, int] = {}
        wanted = set(keys)
        for path, source in sources.items():
            try:
                with_code = dict(_code_objects(compile(source, path, "exec", dont_inherit=True), ""))
                definitions = list(_definitions(ast.parse(source), ""))
            except _BROKEN:  # written for another Python: no function of it is deleted
                continue
            for qualname, node in definitions:
                digest, size, words = fingerprint(node)
                key = f"{path}::{qualname}"
                if key in wanted and size >= SMALLEST:
                    self.fingerprints.setdefault(digest, set()).add(key)
                    self.words.setdefault(node.name, []).append(words)
                    self.sizes[key] = size
                    if qualname in with_code:
                        self.compiled.setdefault(_shape(with_code[qualname]), set()).add(key)

    def found_in(self, data: bytes, names: Iterable[str]) -> set[str]:
        """Return the keys of functions whose body is in a source that defines these names."""
        likely = {name for name in names if self._may_hold(data, name)}
        found: set[str] = set()
        for name, text in _definitions_of(data, likely) if likely else ():
            for node in ast.walk(ast.parse(text)) if self._may_hold(text, name) else ():
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name in likely:
                    found |= self.fingerprints.get(fingerprint(node)[0], set())
        return found

    def _may_hold(self, text: bytes, name: str) -> bool:
        return any(all(word in text for word in words) for words in self.words.get(name, ()))

    def compiled_in(self, data: bytes) -> set[str]:
        """Return the keys of functions whose bytecode is in a file of bytecode of this interpreter."""
        if not data.startswith(importlib.util.MAGIC_NUMBER):
            return set()
        codes = [code for _, code in _code_objects(marshal.loads(data[16:]), "")]
        return {key for code in codes for key in self.compiled.get(_shape(code), ())}


def _definitions_of(data: bytes, names: set[str]) -> Iterator[tuple[str, bytes]]:
    """Yield each definition of these names, with its text, or the whole source where its end is not clear without parsing."""
    for match in _DEFINITION.finditer(data):
        name = match[1].decode(errors="replace")
        if name in names:
            block = _BLOCK.match(data, match.start())
            text = block[0] if block else b""
            pairs = [(b"(", b")"), (b"[", b"]"), (b"{", b"}")]
            cut = any(text.count(left) != text.count(right) for left, right in pairs)
            if cut or text.count(b'"""') % 2 or text.count(b"'''") % 2:
                yield name, data
                return
            yield name, b"if 1:\n" + text if text[:1] in (b" ", b"\t") else text


def fingerprint(function: _Def) -> tuple[str, int, list[bytes]]:
    """Return a function's fingerprint, the number of nodes of its body, and words that any copy of it holds, longest first."""
    numbers = _local_names(function)
    parts: list[str] = []
    words: set[str] = set()
    nodes = 0

    def visit(node: ast.AST) -> None:
        nonlocal nodes
        nodes += 1
        parts.append(type(node).__name__)
        renamed = numbers if isinstance(node, ast.Name | ast.arg | ast.ExceptHandler) else {}
        for field, value in ast.iter_fields(node):
            for part in value if isinstance(value, list) else [value]:
                if isinstance(part, ast.AST) and field not in _NOT_COMPARED:
                    visit(part)
                elif isinstance(part, str) and part in renamed:
                    parts.append(renamed[part])
                elif part is not None and field not in _NOT_COMPARED:
                    parts.append(repr(part))
                    if isinstance(part, str) and part.isidentifier() and part.isascii() and not isinstance(node, ast.Constant):
                        words.add(part)

    for statement in _without_docstring(function.body):
        visit(statement)
    digest = hashlib.sha256("\0".join(parts).encode(errors="surrogatepass")).hexdigest()[:20]
    return digest, nodes, [word.encode() for word in sorted(words, key=len, reverse=True)[:_MOST_WORDS]]


def _local_names(function: _Def) -> dict[str, str]:
    names: dict[str, str] = {}
    for node in ast.walk(function):
        match node:
            case ast.arg(arg=name) | ast.Name(id=name, ctx=ast.Store() | ast.Del()) | ast.ExceptHandler(name=str(name)):
                names.setdefault(name, f"v{len(names)}")
    return names


def _without_docstring(body: list[ast.stmt]) -> list[ast.stmt]:
    first = body[0]
    told = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str)
    return body[1:] if told else body


def _definitions(node: ast.AST, prefix: str) -> Iterator[tuple[str, _Def]]:
    """Yield functions of modules and classes, but not those inside functions."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield prefix + child.name, child
        elif isinstance(child, ast.ClassDef):
            yield from _definitions(child, f"{prefix}{child.name}.")
        elif isinstance(child, ast.stmt | ast.ExceptHandler):
            yield from _definitions(child, prefix)


def _code_objects(code: types.CodeType, prefix: str) -> Iterator[tuple[str, types.CodeType]]:
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            yield prefix + inner.co_name, inner
            yield from _code_objects(inner, f"{prefix}{inner.co_name}.")


def _shape(code: types.CodeType) -> tuple[Any, ...]:
    """Return what compiled copies of a function have in common; the first constant may be its docstring."""
    constants = tuple(repr(value) for value in code.co_consts[1:] if not isinstance(value, types.CodeType))
    return code.co_code, code.co_names, code.co_argcount, len(code.co_varnames), constants


def readable_files(roots: Iterable[str]) -> Iterator[tuple[str, os.stat_result]]:
    """Yield regular files below the roots that may hold Python code, each once."""
    seen: set[tuple[int, int]] = set()
    for root in roots:
        for folder, folders, files in os.walk(root):
            identity = _identity(folder)
            if identity in seen:
                folders[:] = []
                continue
            seen.add(identity)
            folders[:] = [name for name in folders if os.path.join(folder, name) not in _NOT_FILES]
            for name in files:
                if name.endswith((".py", ".pyw", *_ARCHIVES)) or "." not in name or _is_lone_bytecode(folder, name):
                    path = os.path.join(folder, name)
                    with contextlib.suppress(OSError):
                        facts = os.stat(path)
                        if stat.S_ISREG(facts.st_mode):
                            yield path, facts


def _identity(folder: str) -> tuple[int, int]:
    try:
        facts = os.stat(folder)
    except OSError:
        return 0, 0
    return facts.st_dev, facts.st_ino


def _is_lone_bytecode(folder: str, name: str) -> bool:
    """Return whether a file is bytecode without its source: next to it, or in the folder above a cache."""
    if not name.endswith(".pyc"):
        return False
    top = os.path.dirname(folder) if os.path.basename(folder) == "__pycache__" else folder
    return not os.path.exists(os.path.join(top, name.partition(".")[0] + ".py"))


def sources_in(path: str, size: int) -> Iterator[tuple[str, bytes]]:
    """Yield the sources in a file: itself, or the members of an archive. Raises one of `_BROKEN`."""
    if path.endswith(_ARCHIVES):
        room = _MOST_UNPACKED
        with zipfile.ZipFile(path) as archive:
            for member in archive.infolist():
                room -= member.file_size
                if room >= 0 and member.file_size <= _MOST_BYTES and member.filename.endswith(".py"):
                    with contextlib.suppress(*_BROKEN):
                        yield f"{path}{_MEMBER}{member.filename}", archive.read(member)
    elif size <= _MOST_BYTES:
        with open(path, "rb") as file:
            if path.endswith((".py", ".pyw", ".pyc")) or _is_python_script(file):
                yield path, file.read()


def _is_python_script(file: io.BufferedReader) -> bool:
    start = file.peek(80)[:80].split(b"\n", 1)[0]
    return start.startswith(b"#!") and b"python" in start


def search(roots: Iterable[str], wanted: Wanted, known: Index) -> tuple[dict[str, tuple[list[str], list[str]]], Index]:
    """Return file -> keys of the functions found in it and the names it defines, and the index of all files."""
    hits: dict[str, tuple[list[str], list[str]]] = {}
    index: Index = {}
    for path, facts in readable_files(roots):
        entry = known.get(path, [])
        names = set(entry[2].split(" ")) if entry[:2] == [facts.st_size, facts.st_mtime_ns] else None
        if names is None or not names.isdisjoint(wanted.words) or path.endswith(".pyc"):
            try:
                names = _look_into(path, facts.st_size, names, wanted, hits)
            except _BROKEN:  # not readable now, or not the archive its name says
                continue
        if not path.startswith("/etc/"):  # some of its files are made for each sandbox
            index[path] = [facts.st_size, facts.st_mtime_ns, " ".join(sorted(names))]
    return hits, index


def _look_into(
    path: str, size: int, names: set[str] | None, wanted: Wanted, hits: dict[str, tuple[list[str], list[str]]]
) -> set[str]:
    """Add what is found in a file to `hits`, and return the names that it defines, which are known if it was read before."""
    all_names: set[str] = set()
    for place, data in sources_in(path, size):
        compiled = path.endswith(".pyc")
        if names is None or path.endswith(_ARCHIVES):
            defined = {name.decode(errors="replace") for name in _DEFINITION.findall(data)} if not compiled else set()
        else:
            defined = names
        all_names |= defined
        with contextlib.suppress(*_BROKEN):  # what cannot be parsed here cannot be imported here either
            if keys := wanted.compiled_in(data) if compiled else wanted.found_in(data, defined):
                hits[place] = sorted(keys), sorted(defined)
    return all_names


def main() -> None:
    """Answer the request on standard input."""
    warnings.simplefilter("ignore")
    request = json.load(sys.stdin)
    wanted = Wanted(request["sources"], request["keys"])
    hits, index = search(request["roots"], wanted, request["known"])
    changed = {path: entry for path, entry in index.items() if request["known"].get(path) != entry}
    gone = [path for path in request["known"] if path not in index]
    answer = {"hits": hits, "sizes": wanted.sizes, "changed": changed, "gone": gone}
    channel = json.dumps(answer).encode()
    while channel:
        channel = channel[os.write(int(os.environ["COMPOSER_RESULT_FD"]), channel) :]


if __name__ == "__main__":
    main()
