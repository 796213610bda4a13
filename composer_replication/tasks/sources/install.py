"""Installation of strangers' wheels in a virtual environment, so that none of their code runs outside a sandbox.

A wheel is data until an interpreter imports something from it. What an interpreter imports on this machine are pytest and its
parts (`sandbox/backends/preload.py`), and whatever an environment tells it to run when it starts. So no other distribution may
bring a part of pytest, the environment's interpreter stays as it was made, and code that would run at the start is put aside.
"""

from __future__ import annotations

import itertools
import posixpath
import re
import shutil
import subprocess
import zipfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path, PurePosixPath

from packaging.requirements import Requirement
from packaging.utils import InvalidWheelFilename, parse_wheel_filename

from composer_replication.sandbox import Sandbox
from composer_replication.sandbox.backends.preload import PRELOADED
from composer_replication.sandbox.interpreter import clean_environment
from composer_replication.sandbox.scratch import scratch_folder
from composer_replication.tasks.sources.wheels import build_wheel
from composer_replication.types.errors import SourceError

OWN = "install them yourself and name that interpreter with --python PATH"
_INSTALL_S = 1800
_NO_WHEEL = re.compile(r"No matching distribution found for (.+?)(?: \(from .*)?$", re.MULTILINE)
_PACKAGES = "lib*/python*/site-packages"
_AT_START = frozenset({"sitecustomize", "usercustomize"})
"""Modules that an interpreter imports when it starts, also from folders that a `.pth` file names. All of these files are put
aside, as any may do so, or hold a line that is executed (https://docs.python.org/3/library/site.html)."""


def make_empty(folder: Path, base: Path) -> None:
    """Make a virtual environment of the interpreter `base`, with pip and nothing else. Raises SourceError."""
    _call([str(base), "-m", "venv", "--clear", str(folder)], "the environment for the tests cannot be made")
    remove(folder, "setuptools", "pkg_resources", "_distutils_hack")


def install(folder: Path, wanted: Sequence[str], *, base: Path, sandbox: Sandbox) -> None:
    """Install requirements and what they require in an empty environment; what has no wheel is built in the sandbox.

    Raises:
        SourceError: pip cannot, or a wheel would change what runs on this machine.
        SandboxError: the sandbox broke.
    """

    def make_tools(place: Path, tools: Sequence[str]) -> Path:
        make_empty(place, base)
        with scratch_folder() as fetched:
            if tools:
                _download(place, tools, fetched)
                _install_fetched(place, fetched)
        return place / "bin" / "python"

    with scratch_folder() as fetched, scratch_folder() as built:
        _download_or_build(folder, wanted, fetched, built, make_tools, sandbox)
        _install_fetched(folder, fetched)


def remove(folder: Path, *names: str) -> None:
    """Remove packages that `venv` installs: pip and setuptools vendor projects that others want tasks of, such as rich."""
    for name in names:
        packages = (folder.glob(f"{_PACKAGES}/{pattern}") for pattern in (name, f"{name}-*.dist-info"))
        for path in set(itertools.chain.from_iterable(packages)):
            shutil.rmtree(path, ignore_errors=True)
        for path in folder.glob(f"bin/{name}*"):
            path.unlink()
    if "setuptools" in names:
        for path in folder.glob(f"{_PACKAGES}/distutils-precedence.pth"):
            path.unlink(missing_ok=True)


def _download_or_build(
    folder: Path,
    wanted: Sequence[str],
    fetched: Path,
    built: Path,
    make_tools: Callable[[Path, list[str]], Path],
    sandbox: Sandbox,
) -> None:
    tried: set[str] = set()
    while True:
        try:
            return _download(folder, wanted, fetched, *(["--find-links", str(built)] if tried else []))
        except SourceError as error:
            missing = _NO_WHEEL.search(str(error))
            if missing is None or missing[1] in tried:
                raise
            tried.add(missing[1])
            build_wheel(Requirement(missing[1]), built, make_tools=make_tools, sandbox=sandbox)


def _download(folder: Path, wanted: Sequence[str], fetched: Path, *more: str) -> None:
    _pip(folder, "download", "--no-input", "--only-binary=:all:", "--dest", str(fetched), *more, *wanted)


def _install_fetched(folder: Path, fetched: Path) -> None:
    """Install the wheels of a folder, and keep their code from running at the start. Raises SourceError."""
    wheels = sorted(fetched.glob("*.whl"))
    for wheel in wheels:
        _refuse_foreign_parts(wheel)
    before = dict(_own_files(folder))
    _pip(folder, "install", "--no-input", "--no-index", "--no-deps", *map(str, wheels))
    after = dict(_own_files(folder))
    changed = [path for path, content in before.items() if after.get(path) != content]
    if changed:
        raise SourceError(f"a dependency replaces {changed[0]} of the environment for the tests", fix=OWN)
    for packages in folder.glob(_PACKAGES):
        _put_start_aside(packages)


def _refuse_foreign_parts(wheel: Path) -> None:
    """Raise SourceError for a wheel that brings a module of `PRELOADED` and is not of a distribution that may."""
    try:
        name = parse_wheel_filename(wheel.name)[0]
        with zipfile.ZipFile(wheel) as archive:
            paths = archive.namelist()
    except (InvalidWheelFilename, zipfile.BadZipFile, OSError) as error:
        raise SourceError(f"{wheel.name} is no wheel: {error}", fix=OWN) from error
    for path in paths:
        owners = PRELOADED.get(_module_of(path), (name,))
        if name not in owners:
            raise SourceError(f"{wheel.name} brings {path}, which is a part of {owners[0]}", fix=OWN)


def _module_of(name: str) -> str:
    """Return the top-level module that a file of a wheel belongs to once it is installed; empty for none.

    Files below `NAME.data` go where a scheme says (https://packaging.python.org/specifications/binary-distribution-format/).
    """
    parts = PurePosixPath(posixpath.normpath(name)).parts
    if parts[0].endswith(".data"):
        scheme, parts = "".join(parts[1:2]), parts[2:]
        if scheme not in ("purelib", "platlib"):
            parts = parts[parts.index("site-packages") + 1 :] if "site-packages" in parts else ()
    return parts[0].partition(".")[0] if parts else ""


def _own_files(folder: Path) -> Iterator[tuple[str, str | bytes]]:
    """Yield what decides which interpreter an environment starts, and how: links with their targets, files with their content."""
    for path in (folder / "pyvenv.cfg", *folder.glob("bin/python*")):
        yield path.relative_to(folder).as_posix(), str(path.readlink()) if path.is_symlink() else path.read_bytes()


def _put_start_aside(packages: Path) -> None:
    """Give another name to what an interpreter runs, or where it finds that, when it starts."""
    for path in packages.iterdir():
        if path.name.endswith((".pth", ".start")) or path.name.partition(".")[0] in _AT_START:
            path.rename(path.with_name(f"not-run-{path.name}.txt"))


def _pip(folder: Path, *arguments: str) -> None:
    command = [str(folder / "bin" / "python"), "-m", "pip", "-q", "--disable-pip-version-check", *arguments]
    _call(command, "the project's dependencies cannot be installed")


def _call(command: list[str], problem: str) -> None:
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_INSTALL_S,
            stdin=subprocess.DEVNULL,
            env=clean_environment("PIP_") | {"PIP_NO_INPUT": "1"},
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SourceError(f"{problem}: {error}", fix=OWN) from error
    if done.returncode != 0:
        said = [line for line in (done.stderr or done.stdout).strip().splitlines() if line.strip()]
        errors = [line for line in said if line.startswith("ERROR: ")] or said[-1:]
        raise SourceError(f"{problem}: {'; '.join(errors[:2])}", fix=OWN)
