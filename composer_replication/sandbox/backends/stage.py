"""Layout of a `Tree` as a folder a sandbox may write to: an overlay whose upper layer is a size-limited tmpfs, or a private
copy."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from composer_replication.sandbox.backends import linux
from composer_replication.sandbox.changes import Changed, read_changes
from composer_replication.sandbox.request import BoxRequest

REHEARSED: dict[str, bytes | None] = {"rehearsal/file": b""}
"""Changes of the request that a waiting sandbox goes through."""
_WHITEOUT = os.makedev(0, 0)
_FULL_BLOCKS = 16
_FLAGS = linux.MS_NOSUID | linux.MS_NODEV


@dataclass(frozen=True, slots=True)
class Stage:
    """A tmpfs holding `root/` (for the new root) and, once it is laid out, the tree inside it at `root/repo`."""

    root: str
    fd: int
    """The tmpfs's top folder, for `disk_full`; it stays valid when the root changes."""

    @property
    def repo(self) -> str:
        """Folder of the tree."""
        return f"{self.root}/repo"

    def disk_full(self) -> bool:
        """Return True when not even a few pages are left of the sandbox's disk."""
        return os.fstatvfs(self.fd).f_bfree < _FULL_BLOCKS

    def rehearse(self) -> None:
        """Lay out a change and a mount, and remove both again: for what that saves see `rehearsal`. Raises OSError."""
        upper = f"{os.path.dirname(self.root)}/upper"
        _space_of(REHEARSED)
        apply_changes(upper, REHEARSED, lower="/")
        for path in REHEARSED:
            shutil.rmtree(f"{upper}/{path.split('/')[0]}")
        linux.bind(upper, self.repo)
        linux.umount(self.repo)

    def lay_out(self, request: BoxRequest) -> Callable[[int, int], Changed]:
        """Put the tree at `repo`, within the sandbox's disk limit; return a function that reads its changes. Raises OSError.

        Changed files are written into the overlay's upper layer before it is mounted, where no symbolic link of the tree can lead
        them astray; deleted ones become whiteouts.
        """
        top, overlay = os.path.dirname(self.root), request.overlay
        held_kib, held_files = _space_of(request.changes)  # an agent that fills one sandbox must not break the next
        options = f"size={request.disk_mb * 1024 + held_kib}k,nr_inodes={max(1024, request.disk_mb * 64) + held_files}"
        linux.mount("", top, "", _FLAGS | linux.MS_REMOUNT, options)
        base = os.open(request.base, os.O_RDONLY | os.O_DIRECTORY)
        lower, upper, work = f"/proc/self/fd/{base}", f"{top}/upper", f"{top}/work"
        if overlay:
            apply_changes(upper, request.changes, lower=lower)
            layers = f"lowerdir={lower},upperdir={upper},workdir={work},userxattr"
            linux.mount("overlay", self.repo, "overlay", linux.MS_NOSUID, layers)
        else:
            copy_tree(lower + "/.", self.repo)
            apply_changes(self.repo, request.changes)
            linux.mount(self.repo, self.repo, "", linux.MS_BIND)
        written = os.open(upper if overlay else self.repo, os.O_RDONLY | os.O_DIRECTORY)

        def changes(most_files: int, most_bytes: int) -> Changed:
            return read_changes(written, base, overlay=overlay, most_files=most_files, most_bytes=most_bytes)

        return changes


def _space_of(changes: Mapping[str, bytes | None]) -> tuple[int, int]:
    """Return KiB of the pages, and files with their folders, that changes take."""
    pages = sum((len(content or b"") + 4095) // 4096 for content in changes.values())
    folders = {path[:end] for path in changes for end, character in enumerate(path) if character == "/"}
    return 4 * pages, len(changes) + len(folders)


def mount_stage(scratch: str) -> Stage:
    """Mount a fresh tmpfs on `scratch`, in a new mount namespace. Raises OSError."""
    linux.mount("none", "/", "", linux.MS_REC | linux.MS_PRIVATE)
    linux.mount("tmpfs", scratch, "tmpfs", _FLAGS, "size=16m,nr_inodes=1024,mode=755")
    for name in ("root", "root/repo", "upper", "work"):
        os.mkdir(f"{scratch}/{name}")
    return Stage(f"{scratch}/root", os.open(scratch, os.O_PATH | os.O_DIRECTORY))


def write_id_maps(inside: int, outside_uid: int, outside_gid: int, proc_fd: int) -> None:
    """Map the one user and group of a user namespace just entered; `proc_fd` is an open, writable /proc."""
    maps = (("setgroups", "deny"), ("uid_map", f"{inside} {outside_uid} 1"), ("gid_map", f"{inside} {outside_gid} 1"))
    for name, line in maps:
        fd = os.open(f"self/{name}", os.O_WRONLY | os.O_CLOEXEC, dir_fd=proc_fd)
        os.write(fd, line.encode())
        os.close(fd)


def copy_tree(source: str, target: str) -> None:
    """Copy regular files, folders and symbolic links (as links) of `source` into the existing folder `target`."""
    with os.scandir(source) as entries:
        for entry in entries:
            to = f"{target}/{entry.name}"
            if entry.is_symlink():
                os.symlink(os.readlink(entry.path), to)
            elif entry.is_dir():
                os.mkdir(to)
                copy_tree(entry.path, to)
            elif entry.is_file():
                shutil.copyfile(entry.path, to)
                os.chmod(to, stat.S_IMODE(entry.stat().st_mode) | stat.S_IRUSR | stat.S_IWUSR)


def apply_changes(root: str, changes: Mapping[str, bytes | None], *, lower: str | None = None) -> None:
    """Remove deleted files below `root`, then write changed ones, never through a symbolic link.

    With `lower`, `root` is the upper layer of an overlay over it, and what is deleted from `lower` gets a whiteout.
    """
    for path, content in sorted(changes.items(), key=lambda item: item[1] is not None):
        if content is None and not _exists(lower or root, path):
            continue
        folder = root
        for part in path.split("/")[:-1]:
            folder = f"{folder}/{part}"
            _make_folder(folder)
        target = f"{root}/{path}"
        mode = _mode(target if lower is None else f"{lower}/{path}")
        _remove(target)
        if content is None:
            if lower is not None:
                os.mknod(target, stat.S_IFCHR | 0o600, _WHITEOUT)
            continue
        fd = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        with open(fd, "wb", closefd=True) as file:
            file.write(content)


def _mode(replaced: str) -> int:
    """Return the mode of a file that replaces another: executable where that one was."""
    try:
        mode = os.lstat(replaced).st_mode
    except OSError:
        return 0o644
    return 0o755 if stat.S_ISREG(mode) and mode & 0o111 else 0o644


def _exists(root: str, path: str) -> bool:
    """Return whether `path` exists, reached through real folders only."""
    *folders, _ = path.split("/")
    for depth in range(1, len(folders) + 1):
        if os.path.islink("/".join((root, *folders[:depth]))):
            return False
    return os.path.lexists(f"{root}/{path}")


def _make_folder(path: str) -> None:
    try:
        os.mkdir(path)
    except FileExistsError:
        if not stat.S_ISDIR(os.lstat(path).st_mode):
            os.unlink(path)
            os.mkdir(path)


def _remove(path: str) -> None:
    try:
        os.unlink(path)
    except FileNotFoundError:
        return
    except IsADirectoryError:
        shutil.rmtree(path)
