"""Source archives of Debian: what its developers took from upstream, tests included, without Debian's changes.

A version's `.dsc` file lists its archives with their digests (https://www.debian.org/doc/debian-policy/ch-controlfields.html,
"Debian source package control files"). The mirror is https://deb.debian.org/debian unless `DEBIAN_MIRROR` names another.
"""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path
from urllib.parse import quote, urlsplit

from composer_replication.sandbox.web import read_address
from composer_replication.types.errors import SourceError

_MIRROR = "https://deb.debian.org/debian"
_MOST_BYTES, _MOST_DESCRIPTION = 256 << 20, 1 << 20
_FIX = "see which versions there are (https://tracker.debian.org/pkg/NAME), or name the project's repository instead"
_ORIGINAL = re.compile(r"[\w.+~-]+\.orig\.tar\.(gz|xz|bz2)")


def download_original(name: str, version: str, folder: Path) -> Path:
    """Download the upstream archive of one version of a Debian source package into `folder`, and check its SHA-256.

    Args:
        version: Debian's own, such as `1.2-3`.

    Raises:
        SourceError: it cannot be found or fetched, has no single upstream archive, or is not what its description says.
    """
    mirror = os.environ.get("DEBIAN_MIRROR", _MIRROR).rstrip("/")
    if urlsplit(mirror).scheme not in ("http", "https"):
        raise SourceError(f"DEBIAN_MIRROR={mirror} is no address of HTTP", fix=f"write one such as {_MIRROR}, or unset it")
    prefix = name[:4] if name.startswith("lib") else name[:1]
    place = f"{mirror}/pool/main/{prefix}/{quote(name)}"
    plain = version.partition(":")[2] or version  # file names lack the epoch
    what = f"{name}=={version}"
    said = read_address(
        f"{place}/{quote(f'{name}_{plain}.dsc')}", what, most=_MOST_DESCRIPTION, index="the mirror of Debian", fix=_FIX
    )
    archives = _originals(said.decode(errors="replace"))
    if len(archives) != 1:
        found = f"{len(archives)} upstream archives" if archives else "no upstream archive"
        raise SourceError(f"{what} has {found} of its own", fix="name the project's repository instead")
    ((file, digest),) = archives.items()
    content = read_address(f"{place}/{quote(file)}", file, most=_MOST_BYTES, index="the mirror of Debian", fix=_FIX)
    if hashlib.sha256(content).hexdigest() != digest:
        raise SourceError(
            f"{what}: {file} does not have the SHA-256 that its description gives", fix="try again, or another mirror"
        )
    path = folder / file
    path.write_bytes(content)
    return path


def _originals(description: str) -> dict[str, str]:
    """Return the SHA-256 of the upstream archives by name, those of components left out."""
    table = re.search(r"^Checksums-Sha256:\s*\n((?:[ \t]+.*\n?)*)", description, re.MULTILINE)
    rows = (line.split() for line in table[1].splitlines()) if table else ()
    return {row[2]: row[0] for row in rows if len(row) == 3 and _ORIGINAL.fullmatch(row[2])}
