"""The process that calls a replica's function: `python -m composer_replication.diloco.serverless.trainer_process FOLDER`.

Reads `FOLDER/call.json` and writes `FOLDER/end.json`: what the function returned, or the exception that ended it. A process
that is killed writes nothing, and its parent (`replica_entrypoint`) says so.
"""

from __future__ import annotations

import ctypes
import json
import signal
import sys
import traceback
from pathlib import Path
from types import TracebackType
from typing import Any

from composer_replication.diloco.serverless.launch import resolve
from composer_replication.types.errors import ComposerError, ConfigError
from composer_replication.types.guarded_streams import guard_streams

CALL, END = "call.json", "end.json"
_PR_SET_PDEATHSIG = 1


def main(folder: Path) -> None:
    """Call the function that the folder names."""
    guard_streams()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)

    def tell(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        while trace is not None and trace.tb_next is not None and trace.tb_frame.f_code.co_filename != __file__:
            trace = trace.tb_next
        lines = traceback.format_exception(kind, error, trace.tb_next if trace is not None else None)
        _write(folder, {"error": f"{kind.__name__}: {error}", "traceback": "".join(lines)})
        sys.stderr.write("".join(lines))

    sys.excepthook = tell
    call = json.loads((folder / CALL).read_text("utf-8"))
    try:
        _write(folder, {"value": _plain(resolve(call["module"], call["name"])(**call["kwargs"]), call)})
    except ComposerError as error:
        _write(folder, {"error": f"{type(error).__name__}: {error}"})
        print(f"{type(error).__name__}: {error}", file=sys.stderr)  # noqa: T201
        sys.exit(error.exit_code)


def _plain(value: Any, call: dict[str, Any]) -> Any:
    """Convert `value` to plain JSON data. Raises ConfigError."""
    try:
        return json.loads(json.dumps(value))
    except (TypeError, ValueError) as error:
        fix = "return numbers, text, lists and mappings, and put what is more into the object store"
        raise ConfigError(f"{call['module']}:{call['name']} returned what is not JSON: {error}", fix=fix) from error


def _write(folder: Path, end: dict[str, Any]) -> None:
    draft = folder / f"{END}.draft"
    draft.write_text(json.dumps(end), "utf-8")
    draft.rename(folder / END)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
