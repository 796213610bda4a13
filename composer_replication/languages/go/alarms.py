"""The tripwire for Go: imports and directives of a submission that neither the gold code nor the rest of the task needs.

It judges nothing: a forger needs none of these, and honest code may use any of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
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
_TOO_LARGE, _LARGEST = "a file above 512 KB", 512 << 10
"""The host reads these files: larger ones are named, not read."""


def telling(sources: Iterable[bytes]) -> set[str]:
    """Return the imports and directives that are worth a look, `func init`, and whether a file is too large to read."""
    found: set[str] = set()
    for source in sources:
        found |= {_TOO_LARGE} if len(source) > _LARGEST else _telling(source)
    return found


def _telling(source: bytes) -> set[str]:
    root = root_of(source)
    imported = {one.path for one in imports_of(root)} & _IMPORTS.keys()
    ahead = {"func init" for name, _ in named_functions(root) if name == "init"}
    comments = (text_of(node) for node in walk(root) if node.type == "comment")
    return imported | ahead | {directive for text in comments for directive in _DIRECTIVES if text.startswith(directive)}


def alarms_of(task: TaskSpec, pristine: Path, changes: Mapping[str, bytes | None]) -> tuple[str, ...]:
    """Return one sentence for each kind of thing that a submission does and neither the gold code nor the task's code does."""
    changed = [content for path, content in changes.items() if content is not None and path.endswith(".go")]
    profile = task.hidden.profile
    new = telling(changed) - set(profile.names if profile is not None else ())
    if new:
        new -= telling(_sources(task, pristine))
    found: dict[str, list[str]] = {}
    for name in sorted(new):
        kind = "is too large to look at" if name == _TOO_LARGE else _IMPORTS.get(name, "does something before any test begins")
        found.setdefault(kind, []).append(name)
    return tuple(
        f"the code {kind} ({', '.join(names)}), which the rest of the task's code does not" for kind, names in found.items()
    )


def _sources(task: TaskSpec, pristine: Path) -> Iterable[bytes]:
    for path in sorted(pristine.rglob("*.go")):
        if path.is_file() and not path.is_symlink() and is_editable(task, path.relative_to(pristine).as_posix()):
            yield path.read_bytes()
