"""A SOURCE (a folder, a version on a package index, a git URL) as a clean tree of a project's own files. No code of it runs."""

from __future__ import annotations

import hashlib
import re
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from composer_replication.languages.registry import built_files
from composer_replication.sandbox.archive_members import DAMAGED, archive_members
from composer_replication.sandbox.beneath import OpenFolder
from composer_replication.sandbox.scratch import scratch_folder
from composer_replication.tasks.files import storage_errors, tree_files
from composer_replication.tasks.indexes.archives import FORMS, IndexedVersion, indexed_version
from composer_replication.tasks.sources.fetch import clone, is_git_url
from composer_replication.tasks.sources.repository import clone_of_archive
from composer_replication.types.errors import SourceError

_LITTER_FOLDERS = frozenset(
    {
        ".git", ".hg", ".svn", ".bzr", "CVS", "__pycache__", ".mypy_cache", ".pytest_cache", ".ruff_cache", ".pytype", ".pyre",
        ".hypothesis", ".tox", ".nox", ".eggs", ".venv", "venv", "node_modules", ".ipynb_checkpoints", "htmlcov", "_build",
        ".idea", ".vscode", ".cache",
    }
)  # fmt: skip
_LITTER_ENDINGS = (".pyc", ".pyo", ".so", ".pyd", ".dylib", ".dll", ".o", ".a", ".whl", ".egg", ".orig", ".rej", "~")
_FOLDER_ENDINGS = (".egg-info", ".dist-info", ".egg")
STATE, SOURCE_RECORD = ".build", "source.json"
"""The folder of a build's state inside its folder of tasks, and the file in it that identifies the source."""
_TASK = ("MANIFEST.sha256", "task.toml", "solution")
_MAX_TREE_BYTES = 256 << 20
_MOST_ENTRIES = 1_000_000
_MOST_UNPACKED = 2 << 30
"""Of a whole archive, what is left out of the tree included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PristineTree:
    """A pristine tree and where it came from."""

    name: str
    """Short name for task ids: the project's, the folder's or the repository's."""
    label: str
    """Value of `TaskSpec.source`: `folder:NAME`, a version on an index (`archives.FORMS`) or `URL@commit`."""
    digest: str
    """SHA-256 over sorted paths and contents of the tree."""
    tree: Path
    note: str = ""
    """Where a source archive has no tests: where those of the tree are from, or why there are none."""


def fetch_source(source: str, tree: Path, *, without: Path | None = None) -> PristineTree:
    """Copy the project's files into the new folder `tree`.

    Version control, caches, bytecode, compiled and built files, virtual environments, links and special files stay out, and so do
    tasks: below a folder that a build wrote, and single ones. A source archive without tests is completed with the files of the
    repository that its metadata names, at the tag of its version.

    Args:
        without: a folder that is none of the project's, wherever it is: what a build writes is not part of its source.

    Raises:
        SourceError: `source` is none of the three forms, cannot be fetched, or holds no file.
        StorageError: `tree` cannot be written.
    """
    note = ""
    entries: Iterable[SourceFile]
    with scratch_folder() as scratch:
        wanted = indexed_version(source)
        if Path(source).is_dir():
            folder = Path(source).resolve()
            name, label, entries = folder.name, f"folder:{folder.name}", _folder_entries(folder, without)
        elif wanted:
            name, label = wanted.name, wanted.label
            entries, note = _with_tests(wanted, wanted.download(scratch), scratch / "clone")
        elif is_git_url(source):
            url, commit = clone(source, scratch / "clone")
            name = re.split(r"[/:]", url.rstrip("/"))[-1].removesuffix(".git")
            label, entries = f"{url}@{commit}", _folder_entries(scratch / "clone")
        else:
            raise SourceError(
                f"{source!r} is neither a folder, a version on a package index ({FORMS}) nor a git URL",
                fix="check the path, or write for example pypi:inflection==0.5.1 or a URL that ends in .git",
            )
        _write_tree(entries, tree, source)
    return PristineTree(name=name, label=label, digest=digest_of(tree), tree=tree, note=note)


def _with_tests(version: IndexedVersion, archive: Path, folder: Path) -> tuple[list[SourceFile], str]:
    """Return the files of a source archive, with those of its repository where it has no tests, and a note that says so, or why
    there are none."""
    entries = list(archive_entries(archive))
    files = {entry.path: entry.content for entry in entries}
    if not version.lacks_tests(files):
        return entries, ""
    try:
        cloned = clone_of_archive(version, files, folder)
    except SourceError as error:
        return entries, error.message
    more = [entry for entry in _folder_entries(cloned.tree) if entry.path not in files]
    note = f"the source archive of {version.name} {version.version} has no tests: they are from {cloned.url}@{cloned.commit}"
    return entries + more, note


def digest_of(tree: Path) -> str:
    """Return the SHA-256 over the sorted paths and contents below `tree`."""
    digest = hashlib.sha256()
    for path in tree_files(tree):
        content = (tree / path).read_bytes()
        digest.update(f"{len(path.encode())} {path} {len(content)} ".encode() + content)
    return digest.hexdigest()


def is_litter(path: str) -> bool:
    """Return whether tools, builds or version control left `path` behind (POSIX, relative to the root), judged by its name."""
    *folders, name = path.split("/")
    if any(part in _LITTER_FOLDERS or part.endswith(_FOLDER_ENDINGS) for part in folders):
        return True
    coverage = name == ".coverage" or name.startswith(".coverage.")
    return name in _LITTER_FOLDERS or name.endswith(_LITTER_ENDINGS) or coverage


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A regular file of a source."""

    path: str
    """POSIX, relative to the root."""
    content: bytes
    executable: bool


def _write_tree(entries: Iterable[SourceFile], tree: Path, source: str) -> None:
    found = {entry.path: entry for entry in entries if entry.path.isprintable() and not is_litter(entry.path)}
    environments = tuple(path.removesuffix("pyvenv.cfg") for path in found if path.endswith("/pyvenv.cfg"))
    built = built_files({path: entry.content for path, entry in found.items()})
    kept = [entry for path, entry in sorted(found.items()) if not path.startswith(environments) and path not in built]
    if not kept:
        raise SourceError(f"{source} holds no file", fix="name the folder or archive that holds the project")
    with storage_errors(tree):
        for entry in kept:
            target = tree / entry.path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(entry.content)
            target.chmod(0o755 if entry.executable else 0o644)


def _folder_entries(folder: Path, without: Path | None = None) -> Iterator[SourceFile]:
    """Yield regular files below `folder`; litter folders, tasks, links and `without` are not entered."""
    total = 0
    left_out = None if without is None else without.resolve()

    def leave_out(path: str) -> bool:
        return is_litter(path) or folder / path == left_out or _holds_tasks(folder / path)

    try:
        with OpenFolder(folder.resolve()) as top:
            listing = top.listing(leave_out=leave_out, most=_MOST_ENTRIES)
            for error in listing.unreadable.values():
                raise error
            for path, entry in listing.entries.items():
                if stat.S_ISREG(entry.info.st_mode):
                    total = _counted(total, entry.info.st_size, folder)
                    content = top.read(path, _MAX_TREE_BYTES)
                    yield SourceFile(path, content, bool(entry.info.st_mode & stat.S_IXUSR))
    except OSError as error:
        raise SourceError(f"{error.filename} cannot be read ({error.strerror})", fix="make it readable") from error


def _holds_tasks(folder: Path) -> bool:
    """Return whether a build wrote `folder`, or it is one task: the solutions in it would count as copies of the deleted code."""
    return (folder / STATE / SOURCE_RECORD).exists() or all((folder / name).exists() for name in _TASK)


def archive_entries(archive: Path) -> Iterator[SourceFile]:
    """Yield regular files of a source archive, without its top folder.

    Raises:
        SourceError: it cannot be read, or is too large.
    """
    total = 0
    try:
        with archive.open("rb") as file:
            for member in archive_members(file, most=_MOST_UNPACKED):
                path = _inside(member.name)
                if path and not member.is_link:
                    total = _counted(total, member.size, archive)
                    yield SourceFile(path, member.read(), member.runs)
    except DAMAGED as error:
        raise SourceError(f"{archive.name} is not a readable source archive ({error})", fix="fetch it again") from error


def _inside(name: str) -> str:
    """Return a member's path below the archive's top folder; empty for the top itself and for paths that lead outside."""
    pure = PurePosixPath(name)
    if pure.is_absolute() or ".." in pure.parts:
        return ""
    return "/".join(pure.parts[1:])


def _counted(total: int, size: int, where: Path) -> int:
    total += size
    if total > _MAX_TREE_BYTES:
        raise SourceError(
            f"{where} is larger than {_MAX_TREE_BYTES >> 20} MiB", fix="name the folder of one project, without data and builds"
        )
    return total
