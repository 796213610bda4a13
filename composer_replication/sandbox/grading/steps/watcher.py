"""Notes every call of a project's functions while its tests run.

Its text runs in a sandbox as an observer of `pytest_driver`, behind that of `steps.calls`.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from composer_replication.sandbox.grading.steps.calls import Calls

_MOST, _MOST_OF_ALL = 20_000, 200_000
"""Calls of one function, and of all, that are described."""


def start(options: dict[str, Any]) -> Callable[[], dict[str, Any]]:
    """Watch until the returned function is called, which returns the `calls` of each function, by `path::name`, and whether it
    saw the `whole` run: a test may set another profiler, and there may be too many calls.

    Args:
        options: `sources`, paths relative to the working directory.
    """
    calls, left = Calls(_MOST), _MOST_OF_ALL
    paths = {os.path.join(os.getcwd(), source): source for source in options["sources"]}

    def profile(frame: FrameType, event: str, _argument: Any) -> None:
        nonlocal left
        if event == "call" and left > 0:
            path = paths.get(frame.f_code.co_filename)
            if path is not None:
                left -= 1
                calls.begin(path, frame)

    threading.setprofile(profile)
    sys.setprofile(profile)

    def stop() -> dict[str, Any]:
        whole = left > 0 and max(calls.described.values(), default=0) < _MOST and sys.getprofile() is profile
        sys.setprofile(None)
        threading.setprofile(None)
        return {"calls": {function: list(found) for function, found in calls.of.items()}, "whole": whole}

    return stop
