"""Rust, as the grader and the builder of tasks know it: cargo builds the tests, and each runs in a process of its own."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence, Set
from pathlib import Path
from typing import cast

from composer_replication.languages.calls.book import CallBook
from composer_replication.languages.calls.language import PARSING, LanguageWithCalls
from composer_replication.languages.copies import find_copies
from composer_replication.languages.functions import Function, Skipped
from composer_replication.languages.layout import RepositoryLayout, below
from composer_replication.languages.programs import program_of
from composer_replication.languages.rust.alarms import KINDS, telling
from composer_replication.languages.rust.environment import make_ready
from composer_replication.languages.rust.held_out import is_call, make_call_book, wrong_calls
from composer_replication.languages.rust.layout import rust_layout
from composer_replication.languages.rust.runner import FOLDER, RustRunner
from composer_replication.languages.rust.settings import REGISTRY, SETTINGS, TOOLCHAIN
from composer_replication.languages.rust.syntax import find_functions, outline, root_of
from composer_replication.sandbox.grading.pytest_run import CodeRunner
from composer_replication.sandbox.protocol import Ending, Sandbox, Tree
from composer_replication.types.held_out_checks import HeldOutProgram

_SHELL = """export {settings}
export PATH={toolchain}/bin:"$PATH" CARGO_HOME=/tmp/.cargo CARGO_TARGET_DIR=/tmp/.cargo-target
mkdir -p /tmp/.cargo
{python} -s -B -c {sources} > /tmp/.cargo/config.toml
[ -e Cargo.lock ] || trap 'rm -f Cargo.lock' EXIT
"""
_SOURCES = program_of(FOLDER, "settings") + "\nimport sys\nprint(sources_for(crates_for('.', sys.prefix)))\n"
"""Prints cargo's configuration for the project at hand."""


class Rust(LanguageWithCalls):
    """See `languages.protocol.Language`."""

    name = "rust"
    kinds = KINDS
    is_call = staticmethod(is_call)
    runner_type = RustRunner
    stub = "unimplemented!()"
    requirements = ()
    system_requirements = ("cargo", "rustc", "gcc", "libc6-dev")
    libraries = (*PARSING, "tree-sitter-rust")
    tests_in_sources = True

    def wrong_programs(self, runner: CodeRunner, tree: Tree, programs: Sequence[HeldOutProgram]) -> tuple[list[int], Ending]:
        """Make the held-out calls."""
        return wrong_calls(cast(RustRunner, runner), tree, programs)

    def shell_setup(self, python_path: Sequence[str], python: Path) -> str:
        """Put cargo on the path, with the required crates."""
        del python_path
        prefix = python.parent.parent
        toolchain = shlex.quote(str(prefix / TOOLCHAIN))
        settings = " ".join(f"{name}={shlex.quote(value)}" for name, value in SETTINGS.items())
        return _SHELL.format(
            settings=settings, toolchain=toolchain, python=shlex.quote(str(python)), sources=shlex.quote(_SOURCES)
        )

    def holds(self, paths: Sequence[str]) -> bool:
        """Return whether there is a manifest at the root."""
        return "Cargo.toml" in paths

    def built_files(self, files: Mapping[str, bytes]) -> Set[str]:
        """Return what lies in the folder that cargo writes."""
        return below(files, ["target"])

    def layout(self, tree: Path, packages: Sequence[str], tests: Sequence[str]) -> RepositoryLayout:
        """Take the files of all libraries and programs."""
        return rust_layout(tree, packages, tests)

    def prepare(self, python: Path, tree: Path, *, fetch: bool) -> tuple[str, ...]:
        """Bring a compiler and the required crates into the environment."""
        return make_ready(python, tree, fetch=fetch)

    def find_functions(self, path: str, source: bytes, keep_docstring: bool) -> tuple[list[Function], list[Skipped]]:
        """Find functions with tree-sitter."""
        return find_functions(path, source, keep_docstring=keep_docstring)

    def is_source(self, path: str) -> bool:
        """Return whether a file is Rust and not only tests."""
        return path.endswith(".rs") and not {"tests", "benches", "examples"} & set(path.split("/")) and path != "build.rs"

    def outline(self, source: bytes, qualname: str) -> tuple[str, str]:
        """Return the signature, and the comment above it."""
        return outline(root_of(source), qualname)

    def find_copies(self, sandbox: Sandbox, python: Path, sources: Mapping[str, bytes], keys: Sequence[str]) -> Mapping[str, str]:
        """Search the crates that a sandbox can read."""
        crates = [str(Path(bind) / REGISTRY) for bind in sandbox.installation(python).binds]
        roots = (*crates, "/usr/share/cargo", "/usr/lib/rustlib", "/usr/local")
        return find_copies(sandbox, sources, keys, find_functions, roots=roots, endings=(".rs",), same_name=True)

    def make_book(self, runner: CodeRunner, tree: Path, layout: RepositoryLayout, passing: Set[str], seed: int) -> CallBook:
        """Record the calls that the tests make, and vary them."""
        del passing
        return make_call_book(cast(RustRunner, runner), Tree(base=tree), layout.sources, layout.tests, seed=seed)

    def telling(self, sources: Mapping[str, bytes]) -> set[str]:
        """Return what of sources is worth a look."""
        return telling(sources)


RUST = Rust()
