"""Reading a folder that somebody else changes meanwhile: nothing outside of it is ever read, with `openat2` and without."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from composer_replication.sandbox.beneath import OpenFolder, TooManyEntriesError, open_beneath, open_by_component
from composer_replication.sandbox.grading.submission import read_submission
from composer_replication.types import TaskSpec

Open = Callable[[int, str, int], int]
READS = 3000
SWAP = """
import ctypes, sys
swap = ctypes.CDLL(None).renameat2
one, other = (argument.encode() for argument in sys.argv[1:])
print(flush=True)
while True:
    swap(-100, one, -100, other, 2)
"""
"""Exchanges two paths without pause."""
WITHOUT_OPENAT2 = """
import sys
from composer_replication.sandbox.backends import linux, seccomp
linux.no_new_privs()
linux.load_filter(seccomp.compiled({"openat2": int(sys.argv.pop(1))}))
sys.path.insert(0, sys.argv.pop(1))
import test_sandbox_beneath as tests
"""


@pytest.fixture
def root(tmp_path) -> Path:
    """A folder with everything that leads out of it."""
    outside = tmp_path / "outside"
    (outside / "deep").mkdir(parents=True)
    (outside / "secret").write_text("SECRET")
    (outside / "deep" / "secret").write_text("SECRET")
    folder = tmp_path / "root"
    (folder / "a" / "b").mkdir(parents=True)
    (folder / "a" / "b" / "file").write_text("content")
    (folder / "top").write_text("top")
    (folder / "link").symlink_to(outside / "secret")
    (folder / "inner").symlink_to("a/b/file")
    (folder / "away").symlink_to(outside)
    (folder / "a" / "up").symlink_to("../../outside/deep")
    os.mkfifo(folder / "pipe")
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(folder / "socket"))
    return folder


@pytest.fixture(params=[open_beneath, open_by_component], ids=["openat2", "by component"])
def opened(request, root) -> Iterator[Callable[[str], int]]:
    top = os.open(root, os.O_PATH | os.O_DIRECTORY)
    yield lambda path: request.param(top, path, os.O_RDONLY | os.O_NONBLOCK)
    os.close(top)


def test_files_and_folders_below_are_opened(opened):
    for path, content in {"top": b"top", "a/b/file": b"content"}.items():
        fd = opened(path)
        assert os.read(fd, 100) == content
        os.close(fd)
    fd = opened("a")
    assert sorted(os.listdir(fd)) == ["b", "up"]
    os.close(fd)


@pytest.mark.parametrize("path", ["link", "inner", "away", "away/secret", "away/deep/secret", "a/up/secret"])
def test_no_link_is_followed_wherever_it_stands(opened, path):
    with pytest.raises(OSError, match=r"link|symbolic") as refused:
        opened(path)
    assert refused.value.errno == errno.ELOOP


@pytest.mark.parametrize("path", ["../outside/secret", "a/../../outside/secret", "a/../top", "/etc/hostname", ".."])
def test_no_path_leads_out(root, path):
    with OpenFolder(root) as folder, pytest.raises(OSError, match="outside of the folder") as refused:
        folder.read(path, 100)
    assert refused.value.errno == errno.EXDEV


def test_another_file_system_is_refused(tmp_path):
    for way in (open_beneath, open_by_component):
        top = os.open("/", os.O_PATH | os.O_DIRECTORY)
        with pytest.raises(OSError, match="another file system") as refused:
            way(top, "proc/self/status", os.O_RDONLY)
        os.close(top)
        assert refused.value.errno == errno.EXDEV


NO_FILES = {
    "": "no file can have that name",
    "a\0b": "no file can have that name",
    "\ud800": "no file can have that name",
    "x" * 5000: "no file can have that name",
    "x" * 300: "too long",
    "missing": "No such file",
    "a/b/file/below": "Not a directory",
    "a": "not a regular file",
    "pipe": "not a regular file",
    "socket": "a socket or a device",
}


@pytest.mark.parametrize("name", NO_FILES, ids=range(len(NO_FILES)))
def test_whatever_is_no_readable_file_is_an_oserror(root, name):
    with OpenFolder(root) as folder, pytest.raises(OSError, match=NO_FILES[name]):
        folder.read(name, 100)


def test_the_size_is_limited_while_reading(root):
    with OpenFolder(root) as folder:
        assert folder.read("top", 3) == b"top"
        with pytest.raises(OSError, match="larger than 2 bytes"):
            folder.read("top", 2)
        os.truncate(root / "top", 1 << 40)
        with pytest.raises(OSError, match="larger than 1000 bytes"):
            folder.read("top", 1000)


def test_a_leased_file_does_not_hold_the_reader_up(root):
    """The kernel answers EAGAIN for as long as somebody keeps the lease."""
    held = os.open(root / "top", os.O_RDWR)
    fcntl.fcntl(held, fcntl.F_SETSIG, 0)
    try:
        fcntl.fcntl(held, fcntl.F_SETLEASE, fcntl.F_WRLCK)
    except OSError:
        pytest.skip("this file system has no leases")
    before = signal.signal(signal.SIGIO, signal.SIG_IGN)
    try:
        with OpenFolder(root) as folder, pytest.raises(OSError, match="temporarily") as refused:
            folder.read("top", 100)
        assert refused.value.errno == errno.EAGAIN
    finally:
        os.close(held)
        signal.signal(signal.SIGIO, before)


def test_a_listing_names_everything_and_follows_nothing(root):
    with OpenFolder(root) as folder:
        listing = folder.listing()
        assert sorted(listing.entries) == ["a", "a/b", "a/b/file", "a/up", "away", "inner", "link", "pipe", "socket", "top"]
        assert listing.entries["inner"].target == "a/b/file"
        assert listing.unreadable == {}
        assert "a/b/file" not in folder.listing(frozenset({"b"})).entries
        with pytest.raises(TooManyEntriesError, match="more than 3"):
            folder.listing(most=3)


def test_a_subfolder_is_read_like_a_folder(root):
    with OpenFolder(root) as folder:
        with folder.subfolder("a") as inner:
            assert sorted(inner.listing().entries) == ["b", "b/file", "up"]
            with pytest.raises(OSError, match="outside of the folder"):
                inner.read("../top", 100)
        with pytest.raises(OSError, match="a link"):
            folder.subfolder("away")
        assert folder.read("top", 3) == b"top"


def test_a_folder_that_is_a_link_is_not_opened(root, tmp_path):
    (tmp_path / "to").symlink_to(root)
    with pytest.raises(NotADirectoryError):
        OpenFolder(tmp_path / "to")


def test_no_descriptor_is_left(root):
    before = len(os.listdir("/proc/self/fd"))
    with OpenFolder(root) as folder:
        for path in (*folder.listing().entries, "missing", "../x"):
            try:
                folder.read(path, 100)
            except OSError:
                continue
    assert len(os.listdir("/proc/self/fd")) == before


# --- the race --------------------------------------------------------------------------------------------------------


@contextmanager
def swapping(one: Path, other: Path) -> Iterator[None]:
    """A process that exchanges two paths without pause."""
    process = subprocess.Popen([sys.executable, "-S", "-c", SWAP, str(one), str(other)], stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        process.stdout.readline()
        yield
    finally:
        process.kill()
        process.communicate()


def raced(place: Path) -> tuple[int, int]:
    """How many of many reads of a workspace took the solution, and how many the work, while a folder is swapped with a link."""
    for folder, text in (("pristine/pkg", "stub"), ("ws/pkg", "work"), ("solution/files", "GOLD")):
        (place / folder).mkdir(parents=True)
        (place / folder / "calc.py").write_text(text)
    (place / "ws" / "pkh").symlink_to(place / "solution" / "files")
    task = TaskSpec(
        task_id="t",
        source="s",
        source_digest="d",
        instruction="i",
        deleted=(),
        fail_to_pass=("tests/test_calc.py::test_add",),
        pass_to_pass=(),
        editable=("**/*.py",),
    )
    leaked = honest = 0
    with swapping(place / "ws" / "pkg", place / "ws" / "pkh"):
        for _ in range(READS):
            contents = read_submission(task, place / "pristine", place / "ws").changes.values()
            leaked += b"GOLD" in contents
            honest += b"work" in contents
    return leaked, honest


@pytest.mark.slow
def test_a_folder_swapped_with_a_link_to_the_solution_gives_nothing_away(tmp_path):
    leaked, honest = raced(tmp_path)
    assert leaked == 0
    assert honest > 0, "the race was never lost: nothing was tried"


@pytest.mark.slow
@pytest.mark.parametrize("number", [errno.ENOSYS, errno.EPERM])
def test_nor_does_it_where_the_kernel_refuses_openat2(tmp_path, number):
    code = WITHOUT_OPENAT2 + "from pathlib import Path\nprint(*tests.raced(Path(sys.argv[1])))"
    arguments = [sys.executable, "-c", code, str(number), str(Path(__file__).parent), str(tmp_path)]
    done = subprocess.run(arguments, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    leaked, honest = map(int, done.stdout.split())
    assert leaked == 0
    assert honest > 0
