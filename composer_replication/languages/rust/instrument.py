"""A Rust project as it is run: the project's own tests in it, outcomes reported, and blocks that note that they run."""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

from composer_replication.languages.rust.crates import Crate, RustModule, crates_of, modules_of
from composer_replication.languages.rust.inline_tests import has_tests, reporting, with_tests_of
from composer_replication.languages.rust.layout import is_code
from composer_replication.languages.rust.shapes import shapes_of
from composer_replication.languages.rust.syntax import block_starts, functions_of, is_read_within, items_of, root_of
from composer_replication.languages.rust.targets import targets_of
from composer_replication.languages.tree_files import content_of, files_of
from composer_replication.languages.trees import walk
from composer_replication.sandbox.protocol import Tree

_TEMPLATES = Path(__file__).parent / "templates"
_FOLDER = "zz_composer"
_ONE_S = 5.0
"""CPU seconds that reading a changed file may take."""
_TOO_ODD = b'compile_error!("this file takes too long to read");\n'


@dataclass(frozen=True, slots=True, kw_only=True)
class Project:
    """The crates of a tree."""

    tree: Tree
    crates: tuple[tuple[Crate, Mapping[str, RustModule]], ...]

    def read(self, path: str) -> bytes:
        """Return a file. Raises SandboxError when it cannot be read."""
        return content_of(self.tree, path)

    @property
    def files(self) -> dict[str, bytes]:
        """The files of all crates, by path."""
        return {path: self.read(path) for _, modules in self.crates for path in modules}

    @property
    def sources(self) -> set[str]:
        """The paths of those that are not compiled for tests alone."""
        return {path for crate, modules in self.crates for path, module in modules.items() if is_code(crate, module)}


def project_of(tree: Tree) -> Project:
    """Return the crates of a tree. Raises SandboxError when it cannot be read."""
    paths = files_of(tree)

    def read(path: str) -> bytes:
        return content_of(tree, path)

    found = tuple((crate, modules_of(crate, paths, read)) for crate in crates_of(paths, read))
    return Project(tree=tree, crates=found)


def with_own_tests(tree: Tree) -> Tree:
    """Return a tree in which the tests of its base stand, whatever its changes make of them.

    A changed file that cannot be read in a few seconds does not compile.
    """
    changed = {path: content for path, content in tree.changes.items() if path.endswith(".rs")}
    if not changed:
        return tree
    base = Tree(base=tree.base)
    before = project_of(base)
    files, sources = before.files, before.sources
    kept: dict[str, bytes | None] = dict(tree.changes)
    for path, content in changed.items():
        if path in files and path not in sources:
            del kept[path]
        elif content is not None and not is_read_within(path, content, _ONE_S):
            kept[path] = _TOO_ODD
        elif content is not None:
            kept[path] = with_tests_of(files.get(path, b""), content)
    return replace(tree, changes=kept)


@dataclass(frozen=True, slots=True, kw_only=True)
class InstrumentedCrates:
    """A project that reports what it does."""

    project: Project
    files: Mapping[str, bytes]
    """Changed files by path."""
    lines: Mapping[int, tuple[str, tuple[int, ...]]] = field(default_factory=dict)
    """By number of a block, its file and its lines; 1-based."""

    @property
    def tree(self) -> Tree:
        """The tree with these changes."""
        return replace(self.project.tree, changes={**self.project.tree.changes, **self.files})


@cache
def template(name: str) -> str:
    """Return a Rust file of this package."""
    return (_TEMPLATES / f"{name}.rs").read_text("utf-8")


def reported(tree: Tree, mark: str) -> InstrumentedCrates:
    """Return a project whose tests report their outcomes."""
    project = project_of(tree)
    files = {path: reporting(path, source, support_name(mark)) for path, source in project.files.items() if has_tests(source)}
    return InstrumentedCrates(project=project, files={**files, **with_support(project, files, mark, 1)})


def noted(tree: Tree, mark: str) -> InstrumentedCrates:
    """Return a project whose blocks note that they run, and whose tests report their outcomes."""
    project = project_of(tree)
    files, lines = hits_in({path: project.read(path) for path in project.sources}, mark)
    whole = {**project.files, **files}
    files |= {path: reporting(path, source, support_name(mark)) for path, source in whole.items() if has_tests(source)}
    support = with_support(project, files, mark, len(lines) + 1)
    return InstrumentedCrates(project=project, files={**files, **support}, lines=lines)


def recording(tree: Tree, mark: str) -> InstrumentedCrates:
    """Return a project whose functions write down what they are called with."""
    project = project_of(tree)
    files = {path: with_records(path, project.read(path), mark) for path in project.sources}
    whole = {**project.files, **files}
    files |= {path: reporting(path, source, support_name(mark)) for path, source in whole.items() if has_tests(source)}
    more = {"json": "", "values": "", "standard": "", "collections": "", "whole": "", "recorder": ""}
    return InstrumentedCrates(project=project, files={**files, **with_support(project, files, mark, 1, more)})


def with_records(path: str, source: bytes, mark: str) -> bytes:
    """Return a file whose functions write down their calls and whose types can be written down, lines where they were."""
    support = support_name(mark)
    return _with_generated(
        source, shapes_of(source, support) + [(one.body_start, one.record(support)) for one in targets_of(path, source)]
    )


def with_shapes(source: bytes, support: str) -> bytes:
    """Return a file whose types can be written down and read, lines where they were."""
    return _with_generated(source, shapes_of(source, support))


def _with_generated(source: bytes, insertions: Iterable[tuple[int, str]]) -> bytes:
    for at, text in sorted(insertions, reverse=True):
        source = source[:at] + generated(text) + source[at:]
    return source


def support_name(mark: str) -> str:
    """Return the name of the module that a run adds to every crate."""
    return f"composer_{mark}"


def generated(text: str) -> bytes:
    """Return text for a source file; what the compiler refuses of it is taken out again by the marks around it."""
    return f"/*composer*/{text}/*composer*/".encode()


def hits_in(files: Mapping[str, bytes], mark: str) -> tuple[dict[str, bytes], dict[int, tuple[str, tuple[int, ...]]]]:
    """Return sources whose blocks note that they run, and the lines of each block. Lines stay where they are."""
    found: dict[str, bytes] = {}
    lines: dict[int, tuple[str, tuple[int, ...]]] = {}
    for path, source in sorted(files.items()):
        starts = sorted({at for item in functions_of(root_of(source)) if not item.is_test for at in block_starts(item.node)})
        owners = _owners(source, starts)
        whole = source
        for at in reversed(starts):
            number = len(lines)
            lines[number] = (path, tuple(owners.get(at, ())))
            source = source[:at] + generated(f" crate::{support_name(mark)}::hit({number});") + source[at:]
        if source != whole:
            found[path] = source
    return found, lines


def _owners(source: bytes, starts: Iterable[int]) -> dict[int, list[int]]:
    """Return the lines that belong to each block and to no block in it."""
    ends = {}
    for node in walk(root_of(source)):
        if node.type == "block":
            at = node.start_byte + 1
            for child in node.named_children:
                if child.type != "inner_attribute_item":
                    break
                at = child.end_byte
            ends[at] = (node.start_point[0] + 1, node.end_point[0] + 1)
    owner: dict[int, int] = {}
    for at in sorted(starts):
        first, last = ends.get(at, (0, -1))
        owner.update(dict.fromkeys(range(first, last + 1), at))
    found: dict[int, list[int]] = {}
    for line, at in sorted(owner.items()):
        found.setdefault(at, []).append(line)
    return found


def with_support(
    project: Project, files: Mapping[str, bytes], mark: str, blocks: int, more: Mapping[str, str] | None = None
) -> dict[str, bytes]:
    """Return the root files of all crates with the module that reports, and this module's file.

    Args:
        files: what has changed of the project already.
        blocks: how many have a number.
        more: further modules, which only code that is not a file of tests has: their templates, and texts that replace them.
    """
    found: dict[str, bytes] = {}
    name = support_name(mark)
    text = template("support").replace("MARK", mark).replace("COUNT", str(max(1, blocks)))
    inner = "".join(f"pub mod {one} {{\n{own or template(one)}\n}}\n" for one, own in (more or {}).items())
    for crate, _ in project.crates:
        place = posixpath.join(posixpath.dirname(crate.root), _FOLDER, f"{name}.rs")
        source = files.get(crate.root, project.read(crate.root))
        declared = f'\n#[doc(hidden)] #[path = "{_FOLDER}/{name}.rs"] pub mod {name};\n'.encode()
        code = crate.kind != "test"
        found[crate.root] = (_specializing(source) if code and more else source) + declared
        if place not in found or code:
            found[place] = (text + (inner if code else "")).encode()
    return found


def _specializing(source: bytes) -> bytes:
    """Return a root file that may use what values are written with."""
    first = source.find(b"\n") + 1 if source.startswith(b"#!") and not source.startswith(b"#![") else 0
    first = 3 if source.startswith(b"\xef\xbb\xbf") else first
    return source[:first] + b"#![feature(specialization)] " + source[first:]


def modules_inside(source: bytes) -> list[list[str]]:
    """Return the modules that stand in a file, each as its names from that file on."""
    return [[*item.modules, item.name] for item in items_of(root_of(source)) if item.node.type == "mod_item"]
