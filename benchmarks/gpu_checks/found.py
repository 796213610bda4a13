"""What a check finds."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

import torch


class SkippedError(Exception):
    """A check cannot run here; the message says what is missing."""


@dataclass(slots=True)
class Found:
    """Figures of a check, and which of them are wrong."""

    figures: dict[str, float | str] = field(default_factory=dict)
    limits: dict[str, float] = field(default_factory=dict)
    """The most that a figure may be, for those that have a limit."""
    wrong: list[str] = field(default_factory=list)

    def note(self, name: str, value: float | str) -> None:
        """Keep a figure that has no limit."""
        self.figures[name] = float(f"{value:.3g}") if isinstance(value, float) else value

    def at_most(self, name: str, value: float, most: float) -> None:
        """Keep a figure that must not be above `most`, nor NaN."""
        self.note(name, float(value))
        self.limits[name] = most
        if not value <= most:
            self.wrong.append(f"{name} is {value:.2g}, at most {most:.2g} is right")

    def holds(self, what: str, true: bool) -> None:
        """Keep whether something that must hold does."""
        self.note(what, "yes" if true else "no")
        if not true:
            self.wrong.append(f"does not hold: {what}")


CheckFunction: TypeAlias = Callable[[torch.device, Path], Found]
"""(device, an empty folder) -> what was found. Raises SkippedError where something is missing."""


def need(module: str, fix: str) -> None:
    """Raise SkippedError unless a module is installed."""
    if importlib.util.find_spec(module) is None:
        raise SkippedError(f"{module} is not installed: {fix}")


def nox(session: str) -> str:
    """Return how to get what an environment of nox has."""
    return f".venv/bin/nox --session {session} --install-only makes an environment with it, which this check then takes"
