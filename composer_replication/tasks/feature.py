"""The known facts about deleted functions, from which instructions are written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from composer_replication.languages.functions import Function
from composer_replication.languages.protocol import Language


@dataclass(frozen=True, slots=True, kw_only=True)
class Feature:
    """The known facts about the deleted functions."""

    functions: Sequence[Function]
    sources: Mapping[str, bytes]
    """The files they were in, as they were."""
    fail_to_pass: Sequence[str]
    docs: Mapping[str, str] = field(default_factory=dict)
    """The project's documentation by path."""
    removed: bool = False
    """The functions are gone, not only their bodies."""
    language: Language
