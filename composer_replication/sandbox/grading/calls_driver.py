"""The program that calls the code under test inside a sandbox and reports what it did; the host decides whether that is right.

Its text follows that of `literals`. The request comes on stdin; the answer goes over the private channel: the request's nonce and
zlib-compressed JSON, a record per call. Everything in this process may be the agent's: all it could forge is the answer to a
question it has to know the answer to.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import zlib
from types import BuiltinFunctionType, CodeType, FrameType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from composer_replication.sandbox.grading.literals import Unwritable, decode, encode_result, find

_CALL_S = 1.0
"""Limit of one call while it is examined."""
_UNSTEADY = frozenset(
    {"now", "today", "utcnow", "time", "time_ns", "monotonic", "perf_counter", "localtime", "gmtime", "ctime", "urandom"}
    | {"getrandbits", "random", "getpid", "getcwd", "listdir", "scandir", "stat", "open", "system", "fork", "id"}
)
"""Built-in functions whose answers belong to the moment or the machine."""


class Witness:
    """Sees which lines and functions of the tree a call runs, and whether it asks the clock or the machine."""

    def __init__(self) -> None:
        self.root = os.getcwd() + os.sep
        self.inside: dict[CodeType, str] = {}
        self.clear()

    def clear(self) -> None:
        self.lines: set[tuple[str, int]] = set()
        self.entered: set[tuple[str, str]] = set()
        self.unsteady = False

    def trace(self, frame: FrameType, event: str, _argument: object) -> Any:
        code = frame.f_code
        path = self.inside.get(code)
        if path is None:
            name = code.co_filename
            path = self.inside[code] = name[len(self.root) :] if name.startswith(self.root) else ""
        if not path:
            return None
        if event == "line":
            self.lines.add((path, frame.f_lineno))
        elif event == "call":
            self.entered.add((path, code.co_qualname))
        return self.trace

    def profile(self, _frame: FrameType, event: str, argument: Any) -> None:
        if event == "c_call" and isinstance(argument, BuiltinFunctionType) and argument.__name__ in _UNSTEADY:
            self.unsteady = True

    def __enter__(self) -> None:
        self.clear()
        sys.settrace(self.trace)
        sys.setprofile(self.profile)

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)
        sys.settrace(None)


def written_after(arguments: list[Any]) -> dict[str, Any]:
    """Return the positional arguments that a call can have changed, in their current state."""
    found = {}
    for position, value in enumerate(arguments):
        if isinstance(value, list | dict | set | bytearray):
            try:
                found[str(position)] = encode_result(value)
            except Unwritable:
                continue
    return found


def call(target: str, arguments: str) -> dict[str, Any]:
    """Make one call. The answer has one of `returns`, `raises` (class names of the exception and its bases) and `unwritable`."""
    positional_written, keyword_written = json.loads(arguments)
    try:
        positional = [decode(value) for value in positional_written]
        keyword = {name: decode(value) for name, value in keyword_written.items()}
        before = written_after(positional)
        answer: dict[str, Any] = {"returns": encode_result(find(target)(*positional, **keyword))}
        after = written_after(positional)
        answer["after"] = {position: value for position, value in after.items() if value != before.get(position)}
    except Unwritable as error:
        return {"unwritable": str(error)}
    except BaseException as error:  # noqa: BLE001 - whatever the code under test raises is its answer
        return {"raises": [kind.__name__ for kind in type(error).__mro__]}
    return answer


def examine(target: str, arguments: str, witness: Witness) -> dict[str, Any]:
    """Do `call` and return also what it ran: `lines`, `entered`, `unsteady`, `seconds`."""

    def stop(_signal: int, _frame: FrameType | None) -> None:
        raise TimeoutError

    find(target, None)  # code run by importing the module is not part of the call
    signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, _CALL_S, _CALL_S)  # again and again: the first may be caught by the code
    started = time.perf_counter()
    try:
        with witness:
            answer = call(target, arguments)
    except TimeoutError:
        answer = {"unwritable": "too slow"}
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    seconds = time.perf_counter() - started
    return {
        **answer,
        "lines": sorted(witness.lines),
        "entered": sorted(witness.entered),
        "unsteady": witness.unsteady,
        "seconds": seconds,
    }


def main() -> None:
    """Read a request from stdin, make the calls in order, answer, and end without running exit handlers."""
    channel = int(os.environ.pop("COMPOSER_RESULT_FD"))
    with open(0, "rb", closefd=False) as stdin:
        request = json.loads(stdin.read())
    root = os.getcwd()
    sys.path[:] = [entry for entry in sys.path if entry not in ("", root)]
    sys.path[:0] = [os.path.normpath(os.path.join(root, path)) for path in request["python_path"]]
    exit_now, write, dumps, compress = os._exit, os.write, json.dumps, zlib.compress
    if request["examine"]:
        witness = Witness()
        answers = [examine(target, arguments, witness) for target, arguments in request["calls"]]
    else:
        answers = [call(target, arguments) for target, arguments in request["calls"]]
    answer = request["nonce"].encode() + compress(dumps(answers).encode())
    while answer:
        answer = answer[write(channel, answer) :]
    exit_now(0)


if __name__ == "__main__":
    main()
