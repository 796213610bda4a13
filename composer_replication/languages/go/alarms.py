"""The tripwire for Go: imports and directives of a submission that the task's own code does without.

It judges nothing: a forger needs none of these, and honest code may use any of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from composer_replication.languages.go.syntax import imports_of, named_functions, root_of, text_of, walk
from composer_replication.sandbox.grading.submission import is_editable
from composer_replication.types import TaskSpec

_IMPORTS = {
    **dict.fromkeys(("os/exec", "plugin", "net", "net/http"), "starts programs or speaks to others"),
    **dict.fromkeys(("unsafe", "syscall", "C", "runtime", "runtime/debug", "reflect"), "looks behind the language"),
    **dict.fromkeys(("os", "io/ioutil", "testing", "flag"), "looks at its surroundings"),
}
_DIRECTIVES = ("//go:linkname", "//go:embed", "//go:generate", "//go:cgo")


def alarms_of(task: TaskSpec, pristine: Path, changes: Mapping[str, bytes | None]) -> tuple[str, ...]:
    """Return one sentence for each kind of thing that a submission does and the task's code does not."""
    new = {
        name for path, content in changes.items() if content is not None and path.endswith(".go") for name in _telling(content)
    }
    if not new:
        return ()
    known = {
        name
        for path in sorted(pristine.rglob("*.go"))
        if path.is_file() and not path.is_symlink() and is_editable(task, path.relative_to(pristine).as_posix())
        for name in _telling(path.read_bytes())
    }
    found: dict[str, list[str]] = {}
    for name in sorted(new - known):
        found.setdefault(_IMPORTS.get(name, "does something before any test begins"), []).append(name)
    return tuple(
        f"the code {kind} ({', '.join(names)}), which the rest of the task's code does not" for kind, names in found.items()
    )


def _telling(source: bytes) -> set[str]:
    root = root_of(source)
    imported = {one.path for one in imports_of(root)} & _IMPORTS.keys()
    ahead = {"func init" for name, _ in named_functions(root) if name == "init"}
    comments = (text_of(node) for node in walk(root) if node.type == "comment")
    return imported | ahead | {directive for text in comments for directive in _DIRECTIVES if text.startswith(directive)}
