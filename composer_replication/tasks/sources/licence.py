"""The declared licence of a project, as an SPDX expression where possible."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

from packaging.licenses import InvalidLicenseExpression, canonicalize_license_expression

from composer_replication.tasks.sources.declared import pkg_info, project_table
from composer_replication.types.errors import SourceError

UNKNOWN = "unknown"
_FILES = ("license", "licence", "copying")
"""How names of files begin, in any case."""
_IN_POM = re.compile(r"<license>\s*<name>([^<]+)</name>")
_CLASSIFIERS = {
    "MIT License": "MIT",
    "MIT No Attribution License (MIT-0)": "MIT-0",
    "Apache Software License": "Apache-2.0",
    "ISC License (ISCL)": "ISC",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
    "Python Software Foundation License": "PSF-2.0",
    "The Unlicense (Unlicense)": "Unlicense",
    "GNU General Public License v2 (GPLv2)": "GPL-2.0-only",
    "GNU General Public License v3 (GPLv3)": "GPL-3.0-only",
    "GNU Lesser General Public License v3 (LGPLv3)": "LGPL-3.0-only",
    "GNU Affero General Public License v3": "AGPL-3.0-only",
}
_SENTENCES = (
    (r"Apache (?:Software )?License,?\s+Version 2\.0", "Apache-2.0"),
    (r"Mozilla Public License,? (?:Version|v\.?) ?2\.0", "MPL-2.0"),
    (r"GNU AFFERO GENERAL PUBLIC LICENSE\s+Version 3", "AGPL-3.0-only"),
    (r"GNU LESSER GENERAL PUBLIC LICENSE\s+Version 3", "LGPL-3.0-only"),
    (r"GNU GENERAL PUBLIC LICENSE\s+Version 3", "GPL-3.0-only"),
    (r"GNU GENERAL PUBLIC LICENSE\s+Version 2", "GPL-2.0-only"),
    (r"Permission is hereby granted, free of charge, to any person obtaining\s+a\s+copy", "MIT"),
    (r"Permission to use, copy, modify, and(?:/or)? distribute this software for any\s+purpose", "ISC"),
    (r"Redistribution and use in source and binary forms[\s\S]*(?:Neither the name|names? of)", "BSD-3-Clause"),
    (r"Redistribution and use in source and binary forms", "BSD-2-Clause"),
)


def licence_of(tree: Path) -> str:
    """Return the licence that the project's metadata declare, else the one its licence file contains, else `unknown`.

    Read are `pyproject.toml`, `PKG-INFO` and its classifiers, `Cargo.toml`, `package.json` and `pom.xml`, then files named
    LICENSE, LICENCE or COPYING. A declaration that is no SPDX expression (`BSD`) gives way to the file.
    """
    declared = project_table(tree).get("license")
    info = pkg_info(tree)
    for text in (declared, info.get("License-Expression"), info.get("License"), *_elsewhere(tree)):
        found = _expression(text.get("text") if isinstance(text, dict) else text)
        if found:
            return found
    texts = [path for path in sorted(tree.iterdir()) if path.name.lower().startswith(_FILES)]
    for path in (*texts, *sorted((tree / "LICENSES").glob("*"))):
        if found := _named_in(_text(path)):
            return found
    names = (line.rpartition(" :: ")[2] for line in info.get_all("Classifier", []) if line.startswith("License ::"))
    return next((_CLASSIFIERS[name] for name in names if name in _CLASSIFIERS), UNKNOWN)


def _elsewhere(tree: Path) -> Iterator[object]:
    """Yield what the manifests of other languages declare."""
    try:
        package = tomllib.loads(_text(tree / "Cargo.toml")).get("package", {})
        written = package.get("license") if isinstance(package, dict) else None
        yield re.sub(r"\s*/\s*", " OR ", written) if isinstance(written, str) else None  # the form of old crates
    except tomllib.TOMLDecodeError:
        pass
    try:
        manifest = json.loads(_text(tree / "package.json") or "{}")
        declared = manifest.get("license") if isinstance(manifest, dict) else None
        yield declared.get("type") if isinstance(declared, dict) else declared
    except (ValueError, RecursionError):
        pass
    for name in _IN_POM.findall(_text(tree / "pom.xml")):
        yield _expression(name) or _named_in(name)


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""


def _named_in(text: str) -> str:
    """Return the licence whose words are in a text, or nothing."""
    return next((name for sentence, name in _SENTENCES if re.search(sentence, text)), "")


def check_licence(found: str, allowed: tuple[str, ...], source: str) -> None:
    """Raise SourceError when there is an allow list and the licence is not on it; case does not count, as in SPDX."""
    names = {(_expression(name) or name).casefold() for name in allowed}
    if allowed and found.casefold() not in names:
        raise SourceError(
            f"the licence of {source} is {found}, which is not among {', '.join(allowed)}",
            fix=f"read it, and allow it with --licence {found!r}, or choose another project",
        )


def _expression(text: object) -> str:
    """Return the SPDX expression in `text`, or nothing."""
    if not isinstance(text, str):
        return ""
    try:
        return canonicalize_license_expression(text.strip())
    except InvalidLicenseExpression:
        return ""
