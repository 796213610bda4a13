"""What the agent is asked: one or two short sentences, because a small model reads them."""

from __future__ import annotations

from collections.abc import Sequence

from composer_replication.tasks.functions import Function

__all__ = ["describe"]


def describe(functions: Sequence[Function]) -> str:
    """The instruction for bringing `functions` back, by path and qualified name, in order of file and line."""
    ordered = sorted(functions, key=lambda f: (f.path, f.first_line))
    if len(ordered) == 1:
        return f"Implement `{ordered[0].qualname}` in {ordered[0].path}: its body was removed. Make its tests pass."
    places: dict[str, list[str]] = {}
    for function in ordered:
        places.setdefault(function.path, []).append(f"`{function.qualname}`")
    named = "; ".join(f"{', '.join(names)} in {path}" for path, names in places.items())
    return f"Implement {named}: their bodies were removed. Make their tests pass."
