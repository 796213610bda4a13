"""A backend that fails to answer for a while: replicas run on meanwhile, and nothing of theirs is lost."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from composer_replication.types.errors import BackendError

OUTAGE_S = 300.0
"""Seconds that looks at one replica may fail in a row."""
_Answer = TypeVar("_Answer")


class Patience:
    """Retries of questions to a backend."""

    def __init__(self) -> None:
        self._since: dict[str, float] = {}
        self._said: dict[str, BackendError] = {}

    def ask(self, about: str, question: Callable[[], _Answer]) -> _Answer | None:
        """Return the answer; None while there is none for now.

        Args:
            about: the subject of the question; each subject has its own outage.

        Raises:
            BackendError: `question` has raised it for more than `OUTAGE_S` seconds.
        """
        try:
            answer = question()
        except BackendError as error:
            if time.monotonic() - self._since.setdefault(about, time.monotonic()) > OUTAGE_S:
                raise
            self._said[about] = error
            return None
        self._since.pop(about, None)
        self._said.pop(about, None)
        return answer

    @property
    def outage(self) -> BackendError | None:
        """The error of an outage in progress; None where there is none."""
        return next(iter(self._said.values()), None)
