"""Which modules an interpreter may import outside a sandbox: those of the standard library, and of pytest.

Packages of an environment may be strangers'. The standard library itself tries imports that mostly fail (`msvcrt` in
`subprocess`, `org.python.core` in `copy`), and a package of that name would then run on this machine.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Iterator, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

ONLY_STANDARD_LIBRARY = """
import os, sys
everything, home = sys.path[:], os.path.dirname(os.__file__)
standard = {home, home + "/lib-dynload", "%s/python%d%d.zip" % (os.path.dirname(home), *sys.version_info[:2])}
sys.path[:] = [entry for entry in everything if entry in standard]
"""
"""Begins a program that is to import from the standard library only: packages stay in `everything`. Both modules it imports are
there already."""

OUR_BACKENDS = """
for name in ("composer_replication", "composer_replication.sandbox", "composer_replication.sandbox.backends"):
    sys.modules[name] = type(sys)(name)
    sys.modules[name].__path__ = [{root!r} + "/" + name.replace(".", "/")]
"""
"""Lets such a program import from this folder alone; `root` is where our package is."""

PRELOADED = {
    "pytest": ("pytest",),
    "_pytest": ("pytest",),
    "py": ("pytest", "py"),
    "pluggy": ("pluggy",),
    "iniconfig": ("iniconfig",),
    "packaging": ("packaging",),
    "pygments": ("pygments",),
    "attr": ("attrs",),
    "attrs": ("attrs",),
}
"""Modules that pytest imports, each with the distributions that may bring it."""


class _OnlyPreloaded:
    """Leaves `PRELOADED` to the other finders, and finds everything else in the standard library or not at all."""

    def __init__(self, standard: Sequence[str]) -> None:
        self._standard = standard

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if path is not None or name in PRELOADED or name in sys.builtin_module_names:
            return None
        found = PathFinder.find_spec(name, self._standard, target)
        if found is None:
            raise ModuleNotFoundError(f"No module named {name!r} in the standard library", name=name)
        return found


def preload(everything: Sequence[str]) -> None:
    """Import pytest with its own plugins, unless it needs more than `PRELOADED`: the first import of nearly every program in a
    sandbox takes ten times as long as starting the interpreter.

    Args:
        everything: module search path; `sys.path` holds the standard library only, before and after.
    """
    try:
        with _only_preloaded(everything):
            importlib.import_module("pytest")
            for name in importlib.import_module("_pytest.config").default_plugins:
                importlib.import_module(f"_pytest.{name}")
    except (Exception, SystemExit) as error:  # noqa: BLE001  # whatever a pytest that does not work here raises
        for name in [name for name in sys.modules if name.partition(".")[0] in PRELOADED]:
            del sys.modules[name]
        if getattr(error, "name", None) != "pytest":
            why = f"{type(error).__name__}: {str(error)[:200]!a}"
            sys.stderr.write(f"{sys.executable}: its pytest is not imported ahead, which costs time ({why})\n")


@contextlib.contextmanager
def _only_preloaded(everything: Sequence[str]) -> Iterator[None]:
    standard = sys.path[:]
    finder = _OnlyPreloaded(standard)
    sys.meta_path.insert(0, finder)
    sys.path[:] = everything
    try:
        yield
    finally:
        sys.path[:] = standard
        sys.meta_path.remove(finder)
