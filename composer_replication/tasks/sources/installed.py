"""Checks of a virtual environment in which strangers' wheels were installed: no interpreter runs any of it on this machine.

A wheel is data until an interpreter imports something from it. What an interpreter imports outside a sandbox are pytest and its
parts (`sandbox/backends/preload.py`), and whatever an environment tells it to run when it starts. It is the result that is looked
at, and not what wheels say: a path may be written in many ways.
"""

from __future__ import annotations

import email.parser
import hashlib
import re
import shutil
import stat
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path, PurePosixPath

from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename

from composer_replication.sandbox.archive_members import DAMAGED, archive_members
from composer_replication.sandbox.backends.preload import PRELOADED
from composer_replication.sandbox.beneath import OpenFolder
from composer_replication.sandbox.confined import Reach, interpreter_reach
from composer_replication.tasks.sources.run_pip import OWN, call
from composer_replication.types.errors import SourceError

_AT_START = frozenset({"sitecustomize", "usercustomize"})
"""Modules that an interpreter imports when it starts, also from folders that a `.pth` file names. All of these files are put
aside, as any may do so, or hold a line that is executed (https://docs.python.org/3/library/site.html)."""
_WITH_MODULES = re.compile(r"(local|Lib|lib\w*/(python|pypy)[\d.][^/]*)(/|$)")
"""Folders of an environment, besides that of its packages, where some interpreter looks for modules: Debian's in `local/lib` and
`dist-packages`."""
_OF_THE_START = frozenset({"pyvenv.cfg", "pybuilddir.txt", "Setup.local"})
"""Files beside an interpreter that decide where it finds its modules; so do those that end in `._pth`."""
_MODULE = (".py", ".pyc", ".so")
"""How the name of a module that is one file ends."""
_DEEPEST = 100


def check_wheel(wheel: Path) -> None:
    """Refuse a wheel whose folders are too deep for the tools that list and remove them. Raises SourceError."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            deep = next((name for name in archive.namelist() if name.count("/") > _DEEPEST), None)
    except DAMAGED as error:
        raise SourceError(f"{wheel.name} is no wheel: {error}", fix=OWN) from error
    if deep is not None:
        raise SourceError(f"{wheel.name} has folders below {deep[:40]!a}... that are {deep.count('/')} deep", fix=OWN)


def contents(folder: Path, packages: Path) -> dict[str, str]:
    """Return what an environment holds besides its packages, by path: digests of files, and targets of links."""
    left_out = packages.relative_to(folder).as_posix()
    return _listed(folder, lambda path: path == left_out)


def packages_of(folder: Path) -> Path:
    """Return the folder of an environment's packages. Raises SourceError where it is not one."""
    found = sorted(folder.glob("lib/python3*/site-packages"))
    if len(found) != 1:
        raise SourceError(f"the environment {folder} has {len(found)} folders of packages", fix=OWN)
    return found[0]


def check_installed(folder: Path, packages: Path, before: Mapping[str, str], wheels: Sequence[Path], base: Path) -> None:
    """Refuse what would run on this machine, and put aside what would run at every start of an interpreter.

    Args:
        packages: the folder of its packages.
        before: `contents` of the environment before the wheels were installed.
        base: the interpreter that the environment was made with; it compiles the parts of pytest anew.

    Raises:
        SourceError: names the file.
    """
    try:
        _put_start_aside(packages)
        _check_places(before, contents(folder, packages))
        _check_parts(packages, wheels, base)
    except (*DAMAGED, InvalidWheelFilename) as error:
        raise SourceError(f"the project's dependencies cannot be looked at: {error}", fix=OWN) from error


def _check_places(before: Mapping[str, str], after: Mapping[str, str]) -> None:
    for path, content in before.items():
        if after.get(path) != content and not path.startswith("bin/pip"):  # a newer pip, where that is wanted
            raise SourceError(f"a dependency replaces {path} of the environment for the tests", fix=OWN)
    for path in sorted(after.keys() - before.keys(), key=lambda path: ("__pycache__" in path, path)):
        if not _is_data(PurePosixPath(path)) or after[path].startswith("->"):
            raise SourceError(f"a dependency brings {path!a}, where an interpreter may look for its own files", fix=OWN)


def _is_data(path: PurePosixPath) -> bool:
    own = path.name in _OF_THE_START or path.name.endswith("._pth")
    return not own and _WITH_MODULES.match(path.as_posix()) is None


def _check_parts(packages: Path, wheels: Sequence[Path], base: Path) -> None:
    """Refuse a file of a module of `PRELOADED` that no wheel of a distribution that may bring it has, and compile them anew."""
    shutil.rmtree(packages / "__pycache__", ignore_errors=True)  # of modules that are one file
    known = {
        module: _digests([wheel for wheel in wheels if parse_wheel_filename(wheel.name)[0] in owners])
        for module, owners in PRELOADED.items()
    }
    found = _listed(packages, lambda path: _preloaded(path) is None)
    for path, content in found.items():
        module = _preloaded(path) or ""
        if PurePosixPath(path).parent.name == "__pycache__":
            (packages / path).unlink()
        elif known[module].get(path) != content:
            raise SourceError(f"a dependency brings {path!a}, which is a part of {PRELOADED[module][0]}", fix=OWN)
    parts = sorted({path.partition("/")[0] for path in found})
    if parts:  # without any, compileall takes the standard library
        places = [str(packages / part) for part in parts]
        reach = Reach(writable=frozenset({str(packages)}), readable=interpreter_reach(base))
        call([str(base), "-I", "-S", "-m", "compileall", "-q", *places], "pytest cannot be compiled", reach=reach)


def _preloaded(path: str) -> str | None:
    """Return the module of `PRELOADED` that a path among the packages belongs to, where it can be imported."""
    top = path.partition("/")[0]
    module, dot, _ = top.partition(".")
    return module if module in PRELOADED and (not dot or top.endswith(_MODULE)) else None


def _digests(wheels: Sequence[Path]) -> dict[str, str]:
    """Return the digests of the wheels' files, by the paths that they are installed at."""
    found = {}
    for wheel in wheels:
        with wheel.open("rb") as file:
            for member in archive_members(file, most=0):
                top, _, below = member.name.partition("/")
                scheme, _, rest = below.partition("/")
                installed = rest if top.endswith(".data") and scheme in ("purelib", "platlib") else member.name
                found[installed] = hashlib.sha256(member.read()).hexdigest()
    return found


def _put_start_aside(packages: Path) -> None:
    """Give another name to what an interpreter runs, or where it finds that, when it starts."""
    for path in list(packages.iterdir()):
        if path.name.endswith((".pth", ".start")) or path.name.partition(".")[0] in _AT_START:
            aside = path.with_name(f"not-run-{path.name}.txt")
            _remove(aside)
            path.rename(aside)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _listed(top: Path, leave_out: Callable[[str], bool]) -> dict[str, str]:
    """Return the files and links below `top` by path, with `_content`. Raises OSError."""
    with OpenFolder(top) as folder:
        listing = folder.listing(leave_out=leave_out)
    for error in listing.unreadable.values():
        raise error
    return {path: _content(top / path) for path, entry in listing.entries.items() if not stat.S_ISDIR(entry.info.st_mode)}


def _content(path: Path) -> str:
    return f"-> {path.readlink()}" if path.is_symlink() else hashlib.sha256(path.read_bytes()).hexdigest()


def bringing(folder: Path, project: str) -> frozenset[str]:
    """Return the canonical names of the installed distributions that require `project`, directly or not, by their metadata;
    extras count as required. Raises SourceError where `folder` is no environment."""
    requires: dict[str, set[str]] = {}
    for metadata in packages_of(folder).glob("*.dist-info/METADATA"):
        message = email.parser.Parser().parsestr(metadata.read_text("utf-8", errors="replace"), headersonly=True)
        lines = message.get_all("Requires-Dist", [])
        names = (re.match(r"[A-Za-z0-9][A-Za-z0-9._-]*", str(line)) for line in lines)
        requires[canonicalize_name(str(message["Name"]))] = {canonicalize_name(match[0]) for match in names if match}
    found: set[str] = {canonicalize_name(project)}
    while more := {name for name, needed in requires.items() if name not in found and needed & found}:
        found |= more
    return frozenset(found)
