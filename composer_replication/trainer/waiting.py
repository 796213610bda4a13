"""Wait for a coroutine from ordinary code, also where an event loop is running already, as in a notebook."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

ResultT = TypeVar("ResultT")


def wait_for(work: Coroutine[Any, Any, ResultT]) -> ResultT:
    """Run `work` to its end and return what it returns. In a thread that has a running loop, another thread runs it."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)
    with ThreadPoolExecutor(1, "composer") as thread:
        return thread.submit(asyncio.run, work).result()
