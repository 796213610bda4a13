"""Versions of packages on an index (`FORMS`): their archives, and which repository is theirs."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from email.parser import Parser
from pathlib import Path

from composer_replication.languages.javascript.layout import is_source as is_javascript
from composer_replication.languages.javascript.layout import is_test as is_javascript_test
from composer_replication.sandbox.grading.test_files import is_test_file
from composer_replication.tasks.indexes.debian_pool import download_original
from composer_replication.tasks.indexes.npm_registry import download_package
from composer_replication.tasks.sources.fetch import download_sdist

FORMS = "pypi:NAME==VERSION, npm:NAME@VERSION, debian:NAME==VERSION"
"""How a version is named."""
_FORGE = re.compile(r"https://(?:www\.)?(?:github\.com|gitlab\.com|codeberg\.org|bitbucket\.org)/[\w.-]+/[\w.-]+")
"""Repositories of public forges: metadata that strangers write may name no other host."""


def is_python(path: str) -> bool:
    """Return whether a file of this path is a Python module."""
    return path.endswith(".py")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Index:
    """An index of packages."""

    pattern: re.Pattern[str]
    download: Callable[[str, str, Path], Path]
    named: Callable[[Mapping[str, bytes]], tuple[list[str], str]] | None = None
    """Returns addresses in the metadata among an archive's files, likely ones first, and the project's folder in the repository.
    None where archives are upstream's own, and have the tests that upstream gives out."""
    is_code: Callable[[str], bool] = is_python
    is_test: Callable[[str], bool] = is_test_file
    language: str = ""
    """Of all its packages; empty where they are of several."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexedVersion:
    """A version of a package on an index."""

    index: _Index
    label: str
    name: str
    version: str

    @property
    def language(self) -> str:
        """The language of its index; empty where packages of several are there."""
        return self.index.language

    def download(self, folder: Path) -> Path:
        """Download its source archive into a folder. Raises SourceError."""
        return self.index.download(self.name, self.version, folder)

    def lacks_tests(self, paths: Mapping[str, bytes]) -> bool:
        """Return whether an archive has code, and no test."""
        complete = self.index.named is None or any(map(self.index.is_test, paths))
        return not complete and any(map(self.index.is_code, paths))


def indexed_version(source: str) -> IndexedVersion | None:
    """Return the version that a source names; None where it has another form."""
    for index in (_PYPI, _NPM, _DEBIAN):
        if found := index.pattern.fullmatch(source):
            return IndexedVersion(index=index, label=source, name=found["name"], version=found["version"])
    return None


def _in_python(files: Mapping[str, bytes]) -> tuple[list[str], str]:
    metadata = Parser().parsestr(files.get("PKG-INFO", b"").decode(errors="replace"), headersonly=True)
    labelled = [str(line).partition(",")[::2] for line in metadata.get_all("Project-URL", [])]
    labelled += [("", str(line)) for line in metadata.get_all("Home-page", [])]
    likely = re.compile(r"source|repository|code|git", re.IGNORECASE)
    return [address for _, address in sorted(labelled, key=lambda entry: likely.search(entry[0]) is None)], ""


def _in_package(files: Mapping[str, bytes]) -> tuple[list[str], str]:
    try:
        manifest = json.loads(files.get("package.json", b"{}"))
        found = manifest.get("repository") or {}
    except (ValueError, AttributeError, RecursionError):
        return [], ""
    found = {"url": found} if isinstance(found, str) else found if isinstance(found, dict) else {}
    address, folder = str(found.get("url", "")).removeprefix("git+"), str(found.get("directory", ""))
    short = re.fullmatch(r"(?:(github|gitlab|bitbucket):)?([\w.-]+/[\w.-]+)", address)
    if short:
        address = f"https://{short[1] or 'github'}.{'org' if short[1] == 'bitbucket' else 'com'}/{short[2]}"
    secure = re.sub(r"^(ssh://git@|git@|git://|http://)", "https://", address).replace("com:", "com/")
    inside = not folder.startswith("/") and ".." not in folder.split("/")
    return [secure, str(manifest.get("homepage") or "")], folder.strip("./") if inside else ""


def _sdist(name: str, version: str, folder: Path) -> Path:
    return download_sdist(name, f"=={version}", folder)


_PYPI = _Index(
    pattern=re.compile(r"pypi:(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)==(?P<version>[A-Za-z0-9][A-Za-z0-9.!+_-]*)"),
    download=_sdist,
    named=_in_python,
    language="python",
)
_NPM = _Index(
    pattern=re.compile(r"npm:(?P<name>(?:@[a-z0-9~-][a-z0-9._~-]*/)?[a-zA-Z0-9~-][\w.~-]*)@(?P<version>\d[\w.+-]*)"),
    download=download_package,
    named=_in_package,
    is_code=is_javascript,
    is_test=is_javascript_test,
    language="javascript",
)
_DEBIAN = _Index(
    pattern=re.compile(r"debian:(?P<name>[a-z0-9][a-z0-9.+-]+)==(?P<version>[A-Za-z0-9][A-Za-z0-9.:+~-]*)"),
    download=download_original,
)


def repositories_of(version: IndexedVersion, files: Mapping[str, bytes]) -> tuple[Iterator[str], str]:
    """Return the repositories of public forges that a version's archive names, likely ones first, and the project's folder in
    them."""
    addresses, folder = version.index.named(files) if version.index.named is not None else ([], "")
    matches = (_FORGE.match(address.strip()) for address in addresses)
    return (match[0].removesuffix(".git") for match in matches if match), folder
