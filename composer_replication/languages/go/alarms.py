"""Imports and directives of Go that are worth a look (`languages.tripwire`)."""

from __future__ import annotations

from collections.abc import Mapping

from composer_replication.languages import tripwire
from composer_replication.languages.go.syntax import imports_of, is_read_within, named_functions, root_of
from composer_replication.languages.trees import text_of, walk

_IMPORTS = {
    **dict.fromkeys(("os/exec", "plugin", "net", "net/http"), "starts programs or speaks to others"),
    **dict.fromkeys(("unsafe", "syscall", "C", "runtime", "runtime/debug", "reflect"), "looks behind the language"),
    **dict.fromkeys(("os", "io/ioutil", "testing", "flag"), "looks at its surroundings"),
}
_DIRECTIVES = ("//go:linkname", "//go:embed", "//go:generate", "//go:cgo")
KINDS = {**_IMPORTS, **dict.fromkeys((*_DIRECTIVES, "func init"), "does something before any test begins")}
"""Name of what is worth a look -> what the code does with it."""


def telling(sources: Mapping[str, bytes]) -> set[str]:
    """Return the imports and directives that are worth a look, `func init`, and whether a file cannot be read."""
    return tripwire.telling(sources, _telling, is_read_within)


def _telling(path: str, source: bytes) -> set[str]:
    del path
    root = root_of(source)
    imported = {one.path for one in imports_of(root)} & _IMPORTS.keys()
    ahead = {"func init" for name, _ in named_functions(root) if name == "init"}
    comments = (text_of(node) for node in walk(root) if node.type == "comment")
    return imported | ahead | {directive for text in comments for directive in _DIRECTIVES if text.startswith(directive)}
