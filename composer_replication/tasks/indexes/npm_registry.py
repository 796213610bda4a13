"""Source archives of the npm registry: fetched and checked, never unpacked or run here.

The registry and its token are those of the user's npm settings: `npm_config_registry`, or `registry` and `//HOST/:_authToken` in
`~/.npmrc`. See https://github.com/npm/registry/blob/main/docs/responses/package-metadata.md for what it answers.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
from pathlib import Path
from typing import Any
from urllib.parse import quote, urljoin, urlsplit

from composer_replication.sandbox.web import read_address
from composer_replication.types.errors import SourceError

_REGISTRY = "https://registry.npmjs.org/"
_MOST_BYTES, _MOST_METADATA = 256 << 20, 16 << 20
_STRONG = ("sha512", "sha384", "sha256")
_FIX = "check name, version and npm's settings (`npm config list`), or unpack the archive and name its folder"


def download_package(name: str, version: str, folder: Path) -> Path:
    """Download the archive of one version of a package into `folder`, of 256 MiB at most, and check its digest.

    Raises:
        SourceError: it cannot be found or fetched, or is not what the registry describes.
    """
    settings = _settings()
    registry = settings.get("registry", _REGISTRY).rstrip("/") + "/"
    said = _read(f"{registry}{quote(name, safe='@')}/{quote(version)}", settings, _MOST_METADATA, f"{name}@{version}")
    try:
        distribution = json.loads(said)["dist"]
        address, digest = urljoin(registry, str(distribution["tarball"])), _digest_in(distribution)
        scheme = urlsplit(address).scheme
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise SourceError(f"{name}@{version}: the registry's answer cannot be read", fix=_FIX) from error
    if scheme not in ("http", "https"):
        raise SourceError(f"{name}@{version}: the registry gives no address of an archive", fix=_FIX)
    content = _read(address, settings, _MOST_BYTES, f"{name}@{version}")
    algorithm, wanted = digest
    if hashlib.new(algorithm, content).digest() != wanted:
        raise SourceError(f"{name}@{version}: its archive does not have the {algorithm} digest that the registry gives", fix=_FIX)
    place = folder / "archive.tgz"
    place.write_bytes(content)
    return place


def _digest_in(distribution: dict[str, Any]) -> tuple[str, bytes]:
    """Return the strongest digest of an archive that the registry gives. Raises KeyError or ValueError where it gives none."""
    known = dict(part.partition("-")[::2] for part in str(distribution.get("integrity") or "").split())
    for algorithm in _STRONG:
        if algorithm in known:
            return algorithm, base64.b64decode(known[algorithm])
    return "sha1", bytes.fromhex(distribution["shasum"])


def _settings() -> dict[str, str]:
    """Return the user's npm settings by name, those of the environment before those of `~/.npmrc`."""
    named = {name.lower(): value for name, value in os.environ.items()}
    file = Path(named.get("npm_config_userconfig", Path.home() / ".npmrc"))
    found: dict[str, str] = {}
    for line in file.read_text("utf-8", errors="replace").splitlines() if file.is_file() else ():
        name, equals, value = line.partition("=")
        if equals and not line.lstrip().startswith(("#", ";")):
            found[name.strip()] = re.sub(r"\$\{(\w+)\}", lambda match: os.environ.get(match[1], ""), value.strip().strip('"'))
    own = named.get("npm_config_registry")
    return {**found, "registry": own} if own else found


def _read(address: str, settings: dict[str, str], most: int, what: str) -> bytes:
    """Return what the registry answers. Raises SourceError."""
    parts = urlsplit(address)
    here = f"//{parts.netloc}{parts.path}"
    tokens = [
        token
        for name, token in settings.items()
        if name.endswith(":_authToken") and here.startswith(name.removesuffix(":_authToken"))
    ]
    headers = {"Authorization": f"Bearer {tokens[-1]}"} if tokens else {}
    return read_address(address, what, most=most, index="the registry", fix=_FIX, headers=headers)
