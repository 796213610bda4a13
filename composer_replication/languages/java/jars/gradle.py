"""Dependencies in files of Gradle: those that are written as text, with variables that are set to a text.

Files of Gradle are programs. What they compute is not seen here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from composer_replication.languages.java.jars.coordinates import Dependency

_SCOPES = r"(?P<scope>\w*(?:[iI]mplementation|[aA]pi|[cC]ompile(?:Only)?(?:Api)?|[rR]untime(?:Only)?))"
_WRITTEN = re.compile(
    rf"\b{_SCOPES}\s*\(?\s*(?P<bom>(?:enforcedP|p)latform\s*\(\s*)?(['\"])"
    r"(?P<group>[\w.-]+):(?P<name>[\w.-]+)(?::(?P<version>[^:'\"@]+))?(?::(?P<classifier>[\w.-]+))?(?:@\w+)?\3"
)
_NAMED = re.compile(
    rf"\b{_SCOPES}\s*\(?\s*group\s*[:=]\s*['\"](?P<group>[\w.-]+)['\"]\s*,\s*name\s*[:=]\s*['\"](?P<name>[\w.-]+)['\"]"
    r"(?:\s*,\s*version\s*[:=]\s*['\"]?(?P<version>[\w.${}+-]+)['\"]?)?"
)
_SET = re.compile(r"(?:\b(?:def|val|var|ext\.|extra\.)\s*)?\b([\w.]+)\s*=\s*['\"]?([\w.+-]+)['\"]?\s*$", re.MULTILINE)


def dependencies_of(files: Mapping[str, bytes]) -> Iterator[Dependency]:
    """Yield what files of Gradle require; lists of versions (`platform`) have the scope `import`."""
    texts = {path: content.decode(errors="replace") for path, content in files.items()}
    known = {name: value for text in texts.values() for name, value in _SET.findall(text)}
    known |= {name.rpartition(".")[2]: value for name, value in known.items()}
    for path, text in texts.items():
        if not path.endswith((".gradle", ".gradle.kts")):
            continue
        for found in (*_WRITTEN.finditer(text), *_NAMED.finditer(text)):
            parts = found.groupdict()
            version = re.sub(r"\$\{?([\w.]+)\}?", lambda match: known.get(match[1], match[0]), parts["version"] or "")
            scope = "import" if parts.get("bom") else "test" if parts["scope"].lower().startswith("test") else "compile"
            yield Dependency(
                group=parts["group"],
                name=parts["name"],
                version=known.get(version, version),
                scope=scope,
                classifier=parts.get("classifier") or "",
            )
