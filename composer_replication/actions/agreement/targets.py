"""Decide whether two calls may be about the same thing."""

from __future__ import annotations

import re

_FILE_NAME = re.compile(r"[^.].*\.[A-Za-z]\w*")


def overlap(one: str, other: str) -> bool:
    """Return whether one of two paths may be, or contain, the other; the empty text stands for any place. The position of a
    relative path below an absolute one is unknown, so they are distinct only as files of different names."""
    if "" in (one, other) or ".." in one.split("/") or ".." in other.split("/"):
        return True
    if one.startswith("/") != other.startswith("/"):
        names = [path.partition("::")[0].rpartition("/")[2] for path in (one, other)]
        return names[0] == names[1] or not all(_FILE_NAME.fullmatch(name) for name in names)
    short, long = sorted((one, other), key=len)
    return long == short or long.startswith((short + "/", short + "::", short + "["))
