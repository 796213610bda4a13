"""The material that hints about one task may use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from composer_replication.types import ToolSchema
from composer_replication.types.transcript import Transcript


@dataclass(frozen=True, slots=True, kw_only=True)
class HintContext:
    """The material that hints about one task may use."""

    tools: tuple[ToolSchema, ...] = ()
    documentation: Mapping[str, str] = field(default_factory=dict)
    """Text of the project's prose files by POSIX path; code files are not read."""
    instruction: str = ""
    siblings: tuple[Transcript, ...] = ()
    """Attempts at the same task that passed its tests; `find_hints` adds those of its batch."""
    consensus: Mapping[str, str] = field(default_factory=dict)
    """By state id (`TRAJECTORY#TURN`): the action, as text, that the replay channel's teachers chose in that state."""
    demo: bool = False
    """A hint may show the better action itself. The deleted code stays out of it all the same."""
