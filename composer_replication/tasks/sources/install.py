"""Installation of strangers' wheels in a virtual environment, so that none of their code runs outside a sandbox."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement

from composer_replication.sandbox import Sandbox
from composer_replication.sandbox.confined import Reach, interpreter_reach
from composer_replication.sandbox.scratch import scratch_folder
from composer_replication.tasks.sources.installed import check_installed, check_wheel, contents, packages_of
from composer_replication.tasks.sources.run_pip import call, download, install_wheels
from composer_replication.tasks.sources.wheels import build_wheel
from composer_replication.types.errors import SourceError

_NO_WHEEL = re.compile(r"No matching distribution found for (.+?)(?: \(from .*)?$", re.MULTILINE)


def make_empty(folder: Path, base: Path) -> None:
    """Make a virtual environment of the interpreter `base`, with pip and nothing else. Raises SourceError."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
    reach = Reach(writable=frozenset({str(folder)}), readable=interpreter_reach(base))
    call([str(base), "-I", "-m", "venv", str(folder)], "the environment for the tests cannot be made", reach=reach)
    remove(folder, "setuptools", "pkg_resources", "_distutils_hack")


def install(folder: Path, wanted: Sequence[str], *, base: Path, sandbox: Sandbox) -> None:
    """Install requirements and what they require in an empty environment, without the pip it was made with unless it is one of
    them; what has no wheel is built in the sandbox.

    Raises:
        SourceError: pip cannot, or a wheel would change what runs on this machine.
        SandboxError: the sandbox broke.
    """

    def make_tools(place: Path, tools: Sequence[str]) -> Path:
        make_empty(place, base)
        with scratch_folder() as fetched:
            if tools:
                download(place / "bin" / "python", list(tools), fetched)
                _install_fetched(place, fetched, base)
        return place / "bin" / "python"

    with scratch_folder() as fetched, scratch_folder() as built:
        _download_or_build(folder / "bin" / "python", list(wanted), fetched, built, make_tools, sandbox)
        _install_fetched(folder, fetched, base)
        if not list(fetched.glob("pip-*.whl")):
            remove(folder, "pip")


def remove(folder: Path, *names: str) -> None:
    """Remove packages that `venv` installs: pip and setuptools vendor projects that others want tasks of, such as rich."""
    packages = packages_of(folder)
    for name in names:
        for path in (packages / name, *packages.glob(f"{name}-*.dist-info")):
            shutil.rmtree(path, ignore_errors=True)
        for path in (*folder.glob(f"bin/{name}"), *folder.glob(f"bin/{name}[0-9]*")):
            if not path.is_dir():
                path.unlink()
    if "setuptools" in names:
        (packages / "distutils-precedence.pth").unlink(missing_ok=True)


def _download_or_build(
    python: Path,
    wanted: list[str],
    fetched: Path,
    built: Path,
    make_tools: Callable[[Path, list[str]], Path],
    sandbox: Sandbox,
) -> None:
    tried: set[str] = set()
    while True:
        try:
            return download(python, wanted, fetched, found_in=built if tried else None)
        except SourceError as error:
            missing = _missing(str(error))
            if missing is None or str(missing) in tried:
                raise
            tried.add(str(missing))
            build_wheel(missing, built, make_tools=make_tools, sandbox=sandbox)


def _missing(said: str) -> Requirement | None:
    """Return the requirement for which pip has found no wheel, when that is what it said."""
    found = _NO_WHEEL.search(said)
    try:
        return Requirement(found[1]) if found else None
    except InvalidRequirement:
        return None


def _install_fetched(folder: Path, fetched: Path, base: Path) -> None:
    """Install the wheels of a folder, and see to it that nothing of them runs on this machine. Raises SourceError."""
    wheels, packages = sorted(fetched.glob("*.whl")), packages_of(folder)
    for wheel in wheels:
        check_wheel(wheel)
    before = contents(folder, packages)
    install_wheels(folder / "bin" / "python", wheels)
    check_installed(folder, packages, before, wheels, base)
