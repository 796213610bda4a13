"""Which distributions a project's tests want: what they import and the plugins that they name, never tools for releases."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Container, Iterable
from pathlib import Path

from packaging.utils import canonicalize_name

from composer_replication.tasks.sources.declared import Declared, names_in
from composer_replication.types.syntax import parse_module

TOOLS = ("pytest", "coverage")
"""Installed in every environment."""
_DISTRIBUTIONS = {
    "attr": "attrs", "bs4": "beautifulsoup4", "Crypto": "pycryptodome", "cv2": "opencv-python-headless",
    "dateutil": "python-dateutil", "docx": "python-docx", "dns": "dnspython", "dotenv": "python-dotenv", "git": "gitpython",
    "google.api": "googleapis-common-protos", "google.oauth2": "google-auth", "google.protobuf": "protobuf",
    "google.rpc": "googleapis-common-protos", "google.type": "googleapis-common-protos",
    "jose": "python-jose", "jwt": "pyjwt", "ldap": "python-ldap", "magic": "python-magic",
    "markdown_it": "markdown-it-py", "OpenSSL": "pyopenssl", "PIL": "pillow", "pkg_resources": "setuptools",
    "serial": "pyserial", "skimage": "scikit-image", "sklearn": "scikit-learn",
    "slugify": "python-slugify", "socks": "pysocks", "tlz": "toolz", "usb": "pyusb", "websocket": "websocket-client",
    "xdist": "pytest-xdist", "yaml": "pyyaml", "zmq": "pyzmq",
}  # fmt: skip
"""By module: distributions of another name."""
_FIXTURES = {
    "aiohttp_client": "pytest-aiohttp", "anyio_backend": "anyio", "benchmark": "pytest-benchmark", "datadir": "pytest-datadir",
    "event_loop": "pytest-asyncio", "faker": "faker", "freezer": "pytest-freezer", "fs": "pyfakefs", "httpbin": "pytest-httpbin",
    "httpserver": "pytest-httpserver", "httpx_mock": "pytest-httpx", "mocker": "pytest-mock", "requests_mock": "requests-mock",
    "respx_mock": "respx", "shared_datadir": "pytest-datadir", "snapshot": "syrupy", "socket_enabled": "pytest-socket",
    "subtests": "pytest-subtests", "time_machine": "time-machine",
}  # fmt: skip
"""By fixture: distributions that bring it."""
_ASYNC = ("pytest-asyncio", "anyio", "pytest-trio", "pytest-tornado")
"""Plugins that run coroutines as tests: the first that a project declares is taken, or else the first."""
_NAMESPACES = frozenset({"azure", "backports", "google", "jaraco", "opentelemetry", "repoze", "ruamel", "sphinxcontrib", "zope"})
"""Packages without a distribution of their own, whose modules are in many."""
_MISSING_MODULE = re.compile(r"No module named '([A-Za-z][A-Za-z0-9_]*(?:\.[A-Za-z0-9_]+)*)'", re.ASCII)
_MISSING_FIXTURE = re.compile(r"fixture '(\w+)' not found")
"""Forms of a name in what pytest prints. Nothing else that code under test says becomes a requirement."""
_ASYNC_UNSUPPORTED = "async def functions are not natively supported"


def imported_modules(tree: Path, paths: Iterable[str]) -> frozenset[str]:
    """Return the top-level modules that Python files import anywhere, without those of the standard library; of namespaces that
    many distributions share what they import from them (`jaraco.functools`).

    Files that are no Python, such as data for tests of a parser, import nothing.
    """
    found: set[str] = set()
    for path in paths:
        try:
            module = parse_module((tree / path).read_bytes())
        except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
            continue
        for node in ast.walk(module):
            if isinstance(node, ast.Import):
                found |= {_top(alias.name) for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                inside = (f"{node.module}.{alias.name}" for alias in node.names) if node.module in _NAMESPACES else (node.module,)
                found |= {_top(name) for name in inside}
    return frozenset(found - sys.stdlib_module_names)


def _top(module: str) -> str:
    """Return the part of a module's name that a distribution is called by: two levels of a namespace that many share."""
    parts = module.split(".")
    return ".".join(parts[: 2 if parts[0] in _NAMESPACES else 1])


def first_wanted(declared: Declared, modules: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Return by name the requirements of a first environment: what the project runs with, and of the rest what provides a
    module that the tests import, pytest itself, and pytest's plugins among what is declared for tests."""
    known = names_in(declared.every)
    found = {name: known.get(name, (name,)) for name in TOOLS}
    found |= names_in(declared.runtime)
    found |= {name: lines for name, lines in names_in(declared.tests).items() if name.startswith("pytest-")}
    for module in modules:
        name = _declared_provider(module, known)
        if name is not None:
            found.setdefault(name, known[name])
    return found


def asked_for(lines: Iterable[str], declared: Declared, own: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Return by name the requirements that failures ask for: modules and fixtures that are missing, and coroutines that nothing
    runs. What the project declares under a name is taken as it declares it.

    Args:
        lines: what pytest says of files and tests that fail.
        own: top-level modules of the project and of its tests, which no requirement provides.
    """
    texts, known, mine = list(lines), names_in(declared.every), {*own, *sys.stdlib_module_names}
    modules = {_top(name) for text in texts for name in _MISSING_MODULE.findall(text)} - mine - _NAMESPACES
    found = [
        _declared_provider(module, known) or _DISTRIBUTIONS.get(module, canonicalize_name(module)) for module in sorted(modules)
    ]
    fixtures = {name for text in texts for name in _MISSING_FIXTURE.findall(text)}
    found += [_FIXTURES[name] for name in sorted(fixtures & _FIXTURES.keys())]
    if any(_ASYNC_UNSUPPORTED in text for text in texts):
        found.append(next((name for name in _ASYNC if name in known), _ASYNC[0]))
    return {name: known.get(name, (name,)) for name in found}


def _declared_provider(module: str, known: Container[str]) -> str | None:
    plain = canonicalize_name(module)
    likely = (_DISTRIBUTIONS.get(module, plain), plain, f"python-{plain}", f"py{plain}")
    return next((name for name in likely if name in known), None)
