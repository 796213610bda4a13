"""Distributions written on the spot, in a folder that pip takes them from instead of an index."""

from __future__ import annotations

import hashlib
import io
import tarfile
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path

BACKEND = """
import hashlib, os, pathlib, socket, zipfile

def tried(what):
    try:
        return repr(what())
    except OSError as error:
        return type(error).__name__

def build_wheel(folder, config=None, metadata=None):
    name = {wheel!r}
    seen = {{
        "host": tried(lambda: pathlib.Path({marker!r}).write_text("here")),
        "network": tried(lambda: socket.create_connection(("127.0.0.1", {port}), 1)),
        "environment": dict(os.environ),
    }}
    files = {{
        "beta.py": "seen = " + repr(seen),
        "beta-9.0.dist-info/METADATA": "Metadata-Version: 2.1\\nName: beta\\nVersion: 9.0\\n" + {requires!r},
        "beta-9.0.dist-info/WHEEL": "Wheel-Version: 1.0\\nGenerator: x\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n",
    }}
    record = "".join(f"{{p}},sha256={{hashlib.sha256(t.encode()).hexdigest()}},{{len(t)}}\\n" for p, t in files.items())
    with zipfile.ZipFile(os.path.join(folder, name), "w") as wheel:
        for path, text in {{**files, "beta-9.0.dist-info/RECORD": record}}.items():
            wheel.writestr(path, text)
    return name
"""


def build_backend(marker: object = "/x", *, wheel: str = "beta-9.0-py3-none-any.whl", port: int = 1, requires: str = "") -> str:
    """A build backend that tries to leave its sandbox, and writes what it saw into the wheel that it makes."""
    return BACKEND.format(wheel=wheel, marker=str(marker), port=port, requires=requires)


def write_wheel(folder: Path, name: str, more: Mapping[str, str | bytes] | None = None, *, requires: Iterable[str] = ()) -> Path:
    """An empty distribution that pip takes for the real one."""
    info = f"{name}-9.0.dist-info"
    metadata = "".join(f"Requires-Dist: {requirement}\n" for requirement in requires)
    files = {
        f"{name}/__init__.py": "",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 9.0\n{metadata}",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        **(more or {}),
    }
    contents = {path: text.encode() if isinstance(text, str) else text for path, text in files.items()}
    record = "".join(f"{path},sha256={hashlib.sha256(data).hexdigest()},{len(data)}\n" for path, data in contents.items())
    written = folder / f"{name}-9.0-py3-none-any.whl"
    with zipfile.ZipFile(written, "w") as wheel:
        for path, data in {**contents, f"{info}/RECORD": f"{record}{info}/RECORD,,\n".encode()}.items():
            wheel.writestr(path, data)
    return written


def write_sdist(folder: Path, backend: str, requires: str = "", name: str = "beta") -> Path:
    """A source archive with a build backend of its own."""
    files = {
        "PKG-INFO": f"Metadata-Version: 2.1\nName: {name}\nVersion: 9.0\n",
        "pyproject.toml": f'[build-system]\nrequires = [{requires}]\nbuild-backend = "backend"\nbackend-path = ["."]\n'
        f'[project]\nname = "{name}"\nversion = "9.0"\n',
        "backend.py": backend,
    }
    written = folder / f"{name}-9.0.tar.gz"
    with tarfile.open(written, "w:gz") as archive:
        for path, text in files.items():
            member = tarfile.TarInfo(f"{name}-9.0/{path}")
            member.size = len(text.encode())
            archive.addfile(member, io.BytesIO(text.encode()))
    return written
