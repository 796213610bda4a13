"""Whose an object is, and the name by which tests know it.

The text of this module runs inside a sandbox, in front of that of `steps.recorder`.
"""

from __future__ import annotations

import os
import re
import sys
import types
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from composer_replication.sandbox.grading.steps.harness import HARNESS


class Origins:
    """Tells the project's modules from those of its tests."""

    def __init__(self, sources: list[str]) -> None:
        self.root = os.getcwd() + os.sep
        self.sources = {os.path.join(self.root, path) for path in sources}
        self.places: dict[str, str] = {}
        self.names: dict[int, tuple[str, Any]] = {}
        """Names of the objects that tests import or take from a module, by `id`, with the objects."""

    def place_of(self, module: object) -> str:
        """Return `source`, `test` (another file of the tree), `harness` or nothing for a module's name."""
        if not isinstance(module, str):
            return ""
        place = self.places.get(module)
        if place is None:
            file = getattr(sys.modules.get(module), "__file__", None) or ""
            inside = file.startswith(self.root) and file.endswith(".py")
            place = ("source" if file in self.sources else "test") if inside else ""
            self.places[module] = place = "harness" if module.partition(".")[0] in HARNESS else place
        return place

    def place(self, value: Any) -> str:
        """Return the place of a module, function, class or, for any other object, of its class."""
        if isinstance(value, types.ModuleType):
            return self.place_of(value.__name__)
        if isinstance(value, types.FunctionType | type | types.MethodType):
            return self.place_of(getattr(value, "__module__", None))
        if isinstance(value, types.CoroutineType):
            return self.place_of(value.cr_frame.f_globals.get("__name__") if value.cr_frame else None)
        return self.place_of(type(value).__module__)

    def is_projects(self, value: Any) -> bool:
        """Return whether a value or its class is the project's, or derives from one that is."""
        if self.place(value) == "source":
            return True
        kind = value if isinstance(value, type) else type(value)
        return self.place_of(kind.__module__) == "test" and any(self.place_of(c.__module__) == "source" for c in kind.__mro__)

    def name(self, value: Any, module: str, name: str) -> None:
        """Note the name by which a test takes an object from a module of the project."""
        if self.place_of(module) == "source":
            self.names.setdefault(id(value), (f"{module}:{name}", value))

    def named(self, value: Any) -> list[Any] | None:
        """Encode an object by the name by which a test took it from a module; None for any other."""
        found = self.names.get(id(value))
        return None if found is None else ["named", found[0]]

    def standing(self, value: Any) -> list[Any] | None:
        """Encode an object that stands in modules of the project, such as a constant, by its name in the outermost; None where it
        has only private names, which other work may change."""
        modules = sorted((name.count("."), name) for name in list(sys.modules) if self.place_of(name) == "source")
        held = (f"{name}:{given}" for _, name in modules for given, held in vars(sys.modules[name]).items() if held is value)
        public = (name for name in held if not any(part.startswith("_") for part in re.split("[.:]", name)))
        return next((["named", name] for name in public), None)
