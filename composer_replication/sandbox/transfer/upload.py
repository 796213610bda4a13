"""Uploads to where a sandbox is made elsewhere: a tree as an archive, and modules of this package as another."""

from __future__ import annotations

import contextlib
import io
import os
import stat
import tarfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from composer_replication.sandbox.protocol import Limits, Tree
from composer_replication.sandbox.transfer.import_closure import PACKAGE, import_closure
from composer_replication.types.errors import SandboxError

PAGE = 4096


@dataclass(frozen=True, slots=True)
class Disk:
    """The tmpfs space a tree needs."""

    mb: int
    entries: int


def archive_of(tree: Tree) -> tuple[bytes, Disk]:
    """Pack the regular files, folders and symbolic links of the tree's base, and return them with the space that they and the
    changes need. Raises SandboxError."""
    top = Path(os.path.abspath(tree.base))
    stream, pages, entries = io.BytesIO(), 0, 0
    try:
        with tarfile.open(fileobj=stream, mode="w") as archive:
            for path in _walk(top):
                info = _entry(path, str(path.relative_to(top)))
                with open(path, "rb") if info.isreg() else contextlib.nullcontext() as file:
                    archive.addfile(info, file)
                pages += 1 + -(-info.size // PAGE)
                entries += 1
    except OSError as error:
        raise SandboxError(f"the tree's base folder cannot be read: {error}") from error
    pages += sum(2 + -(-len(content or b"") // PAGE) for content in tree.changes.values())
    return stream.getvalue(), Disk((pages * PAGE >> 20) + 1, entries + 2 * len(tree.changes))


def _entry(path: Path, name: str) -> tarfile.TarInfo:
    """Return the entry without the link that `TarFile.gettarinfo` makes of a second name of the same file."""
    info, status = tarfile.TarInfo(name), path.lstat()
    info.mode = stat.S_IMODE(status.st_mode) | stat.S_IRUSR | stat.S_IWUSR
    if stat.S_ISLNK(status.st_mode):
        info.type, info.linkname = tarfile.SYMTYPE, os.readlink(path)
    elif stat.S_ISDIR(status.st_mode):
        info.type = tarfile.DIRTYPE
        info.mode |= stat.S_IXUSR
    else:
        info.size = status.st_size
    return info


def _walk(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.iterdir()):
        mode = path.lstat().st_mode
        if stat.S_ISDIR(mode):
            yield path
            yield from _walk(path)
        elif stat.S_ISREG(mode) or stat.S_ISLNK(mode):
            yield path


def modules_archive(program: str) -> bytes:
    """Return a zip file to import from: the module `program` of this package, such as `sandbox/remote/agent.py`, and all that it
    imports of the package. The `__init__.py` files in it are empty."""
    stream, files = io.BytesIO(), import_closure([program], packages=False)
    folders = {str(folder) for file in files for folder in PurePosixPath(file).parents}
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for folder in sorted(folders):
            archive.writestr(str(PurePosixPath(PACKAGE.name, folder, "__init__.py")), "")
        for file in files:
            archive.write(PACKAGE / file, f"{PACKAGE.name}/{file}")
    return stream.getvalue()


def most_bytes(limits: Limits) -> int:
    """Return the largest size of an answer: three streams, the changed files, and their names twice, each character in at most
    six."""
    return 3 * limits.output_bytes + (limits.changed_mb << 20) + 2 * limits.changed_files * 6 * PAGE + (1 << 20)


def one_line(text: str) -> str:
    """Return another program's message as one line, for an error's message."""
    return " ".join(text.split())[:1000]
