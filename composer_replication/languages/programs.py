"""Programs that run inside a sandbox, written from the texts of a language's own modules."""

from __future__ import annotations

from functools import cache
from pathlib import Path

_FUTURE = "from __future__ import annotations\n"


@cache
def program_of(folder: Path, *names: str) -> str:
    """Return a program of the texts of modules, one behind the other in one namespace, behind that of `tell`.

    Args:
        folder: where the modules are.
        names: their names without `.py`, in order.
    """
    paths = [Path(__file__).parent / "tell.py", *(folder / f"{name}.py" for name in names)]
    return "\n".join(path.read_text("utf-8").replace(_FUTURE, "") for path in paths)
