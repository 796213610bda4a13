"""Taking credentials out of traces, everywhere alike, before anybody trains on them or sends them to a teacher.

A credential that is found anywhere in a trace is replaced by `[REDACTED:kind]` wherever it stands in that trace: in contexts,
answers, calls, results, details, tools, names, ids and keys. Nothing else changes; a trace without one is returned as it is.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, replace
from typing import Any

from composer_replication.types import ToolCall, ToolResult
from composer_replication.types.secrets import Secret, named_secret, secrets_in_log
from composer_replication.types.transcript import Trace, TraceTurn

_SHORT = 12
"""Characters below which a credential is taken out only where it stands alone, and not inside other words and numbers."""
_IDS = frozenset({"token_ids", "logprobs", "observation_ids", "prompt_ids"})
"""Details that spell a text in another way, and are of no use without it."""


class Redactor:
    """Redacts trace after trace, and counts."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        """Different credentials by kind, counted per trace."""

    def redact(self, trace: Trace) -> Trace:
        """Return the trace without credentials. Token ids of a trace that held one are left out: they would spell it."""
        found: dict[str, str] = {}
        for secret in _search(trace, set(), {}):
            found.setdefault(secret.text, secret.kind.lower().replace(" ", "-"))
        if not found:
            return trace
        self.counts.update(found.values())
        ordered = sorted(found, key=len, reverse=True)

        alone = {s: re.compile(rf"(?<![A-Za-z0-9]){re.escape(s)}(?![A-Za-z0-9])") for s in ordered if len(s) < _SHORT}

        def clean(text: str) -> str:
            for secret in ordered:
                shown = f"[REDACTED:{found[secret]}]"
                text = alone[secret].sub(shown, text) if secret in alone else text.replace(secret, shown)
            return text

        cleaned: Trace = _Copy(clean).of(trace)
        return cleaned


def _fields(value: Trace | TraceTurn | ToolCall | ToolResult) -> dict[str, Any]:
    """Return the fields of a part of a trace, without details that spell a text in another way."""
    found = {field.name: getattr(value, field.name) for field in fields(value)}
    if isinstance(value, Trace | TraceTurn):
        found["details"] = {name: detail for name, detail in value.details.items() if name not in _IDS}
    return found


def _search(value: Any, seen: set[str], known: dict[int, Any]) -> Iterator[Secret]:
    """Yield the credentials in all texts of a value; `seen` are texts, and `known` objects by id, that were searched before."""
    if isinstance(value, str):
        if value not in seen:
            seen.add(value)
            yield from secrets_in_log(value)
    elif isinstance(value, Mapping):
        if id(value) in known:
            return
        known[id(value)] = value  # held, so that no other object gets its id
        for name, item in value.items():
            yield from _search(name, seen, known)
            if isinstance(item, str) and (secret := named_secret(str(name), item)):
                yield secret
            yield from _search(item, seen, known)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _search(item, seen, known)
    elif isinstance(value, Trace | TraceTurn | ToolCall | ToolResult):
        for part in _fields(value).values():
            yield from _search(part, seen, known)


class _Copy:
    """A copy whose every text went through `clean`; messages that were shared stay shared."""

    def __init__(self, clean: Callable[[str], str]) -> None:
        self._clean = clean
        self._copies: dict[int, tuple[Any, dict[str, Any]]] = {}
        """By the id of an object, which is held so that no other one gets its id: the object and its copy."""

    def of(self, value: Any) -> Any:
        """Return the copy of a trace or of a part of one."""
        if isinstance(value, str):
            return self._clean(value)
        if isinstance(value, Mapping):
            if id(value) not in self._copies:
                self._copies[id(value)] = value, {self.of(name): self.of(item) for name, item in value.items()}
            return self._copies[id(value)][1]
        if isinstance(value, list | tuple):
            return type(value)(map(self.of, value))
        if isinstance(value, Trace | TraceTurn | ToolCall | ToolResult):
            return replace(value, **{name: self.of(part) for name, part in _fields(value).items()})
        return value
