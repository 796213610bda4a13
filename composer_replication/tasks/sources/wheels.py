"""Building wheels of packages that the index has as source archives only, in a sandbox without network."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from pathlib import Path, PurePosixPath

from packaging.requirements import Requirement
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename

from composer_replication.sandbox import Command, Ending, Limits, Sandbox, Tree
from composer_replication.sandbox.scratch import scratch_folder
from composer_replication.tasks.sources.fetch import download_sdist
from composer_replication.tasks.sources.source import archive_entries
from composer_replication.types.errors import SourceError

_LIMITS = Limits(wall_s=900, cpu_s=900, memory_mb=2048, processes=256, disk_mb=1024, changed_files=10_000, changed_mb=256)
_BUILD = """
import importlib, os, shutil, sys, tarfile, tomllib

os.mkdir("source"), os.mkdir("built")
safe = {"filter": "data"} if hasattr(tarfile, "data_filter") and not sys.argv[1].endswith(".zip") else {}
shutil.unpack_archive(sys.argv[1], "source", **safe)
[folder] = os.listdir("source")
os.chdir(os.path.join("source", folder))
try:
    with open("pyproject.toml", "rb") as file:
        system = tomllib.load(file).get("build-system", {})
except FileNotFoundError:
    system = {}
module, _, name = system.get("build-backend", "setuptools.build_meta:__legacy__").partition(":")
sys.path[:0] = map(os.path.abspath, system.get("backend-path", []))
backend = importlib.import_module(module)
for part in filter(None, name.split(".")):
    backend = getattr(backend, part)
backend.build_wheel(os.path.abspath("../../built"))
"""
"""Does what a build frontend does (PEP 517, https://peps.python.org/pep-0517/), because no sandbox shows pip."""
_USUAL = ("setuptools", "wheel")
"""Requirements of the build of an archive that declares none."""
_OWN = "install it yourself and name that interpreter with --python PATH"


def build_wheel(wanted: Requirement, out: Path, *, make_tools: Callable[[Path, list[str]], Path], sandbox: Sandbox) -> Path:
    """Build a wheel of the newest source archive that `wanted` allows, and put it in `out`.

    The archive is unpacked and its code runs in the sandbox only, which has no network; what it is built with is installed
    before.

    Args:
        make_tools: makes an environment in a folder with the requirements given, and pip; returns its interpreter.

    Raises:
        SourceError: the index has no such archive, or it cannot be built so.
        SandboxError: the sandbox broke.
    """
    problem = f"{wanted.name} has no wheel, and none can be built from its source archive in a sandbox"
    if sandbox.isolation.name == "unsafe-subprocess":
        raise SourceError(f"{problem}: the kind unsafe-subprocess confines nothing", fix=_OWN)
    with scratch_folder() as scratch:
        (scratch / "source").mkdir()
        try:
            archive = download_sdist(wanted.name, str(wanted.specifier), scratch / "source")
        except SourceError as error:
            raise SourceError(f"{wanted.name} has no wheel that fits, and {error.message}", fix=_OWN) from error
        (scratch / "source" / "answer.json").unlink()
        python = make_tools(scratch / "tools", _tools(archive))
        command = Command(
            argv=(str(python), "-I", "-c", _BUILD, archive.name),
            python=python,
            limits=_LIMITS,
            read_back=True,
        )
        result = sandbox.run(Tree(base=scratch / "source"), command)
    wheels = {
        path: content for path, content in (result.changes or {}).items() if path.startswith("built/") and content is not None
    }
    if result.ending is not Ending.EXITED or result.returncode != 0 or len(wheels) != 1:
        raise SourceError(f"{problem}: {_why(result.ending, result.stderr + result.stdout)}", fix=_OWN)
    [(path, content)] = wheels.items()
    return _written(wanted, PurePosixPath(path).name, content, out, problem)


def _tools(archive: Path) -> list[str]:
    """Return the requirements that an archive declares for its build. Raises SourceError for what is no source archive."""
    text = next((file.content for file in archive_entries(archive) if file.path == "pyproject.toml"), b"")
    try:
        requires = tomllib.loads(text.decode()).get("build-system", {}).get("requires", _USUAL)
        wanted = [Requirement(line) for line in requires]
    except (ValueError, TypeError, AttributeError) as error:
        raise SourceError(f"{archive.name}: pyproject.toml does not say what it is built with: {error}", fix=_OWN) from error
    for requirement in wanted:
        if requirement.url:
            raise SourceError(f"{archive.name} is built with what it names by an address: {requirement!s}", fix=_OWN)
    return list(map(str, wanted))


def _why(ending: Ending, said: bytes) -> str:
    lines = [line.strip() for line in said.decode(errors="replace").splitlines() if line.strip()]
    errors = [line for line in lines if "error" in line.lower()] or lines
    return errors[-1][:200] if ending is Ending.EXITED and errors else str(ending)


def _written(wanted: Requirement, name: str, content: bytes, out: Path, problem: str) -> Path:
    """Write what the sandbox gave back where it is a wheel of the project that was asked for. Raises SourceError."""
    try:
        project, version, _, _ = parse_wheel_filename(name)
    except InvalidWheelFilename as error:
        raise SourceError(f"{problem}: it made {name}", fix=_OWN) from error
    if project != canonicalize_name(wanted.name) or not wanted.specifier.contains(version, prereleases=True):
        raise SourceError(f"{problem}: it made {name}", fix=_OWN)
    out.mkdir(parents=True, exist_ok=True)
    (out / name).write_bytes(content)
    return out / name
