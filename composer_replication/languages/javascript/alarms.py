"""Modules and names of JavaScript that are worth a look (`languages.tripwire`)."""

from __future__ import annotations

from collections.abc import Mapping

from composer_replication.languages import tripwire
from composer_replication.languages.javascript.syntax import imports_of, is_read_within, root_of
from composer_replication.languages.trees import text_of, walk

_IMPORTS = {
    **dict.fromkeys(("child_process", "cluster", "net", "http", "https", "dgram"), "starts programs or speaks to others"),
    **dict.fromkeys(("worker_threads", "vm", "module", "v8", "inspector", "async_hooks"), "looks behind the language"),
    **dict.fromkeys(("fs", "fs/promises", "os", "process"), "looks at its surroundings"),
    **dict.fromkeys(("node:test", "vitest", "jest", "@jest/globals", "mocha", "zz-composer"), "speaks to what runs the tests"),
}
_NAMES = {
    **dict.fromkeys(("eval", "Function", "Proxy", "Reflect", "prepareStackTrace"), "looks behind the language"),
    **dict.fromkeys(("process", "globalThis", "global", "require"), "looks at its surroundings"),
    **dict.fromkeys(("__composerExpose", "__vitest_worker__", "expect", "describe", "jest"), "speaks to what runs the tests"),
}
KINDS = {**_NAMES, **_IMPORTS}
"""Name of what is worth a look -> what the code does with it."""


def telling(sources: Mapping[str, bytes]) -> set[str]:
    """Return the modules and names that are worth a look, and whether a file cannot be read."""
    return tripwire.telling(sources, _telling, is_read_within)


def _telling(path: str, source: bytes) -> set[str]:
    root = root_of(path, source)
    imported = {name for one in imports_of(root) for name in (one, one.removeprefix("node:")) if name in _IMPORTS}
    words = {text_of(node) for node in walk(root) if node.type in ("identifier", "property_identifier")}
    return imported | (_NAMES.keys() & words)
