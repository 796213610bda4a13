"""Doing the steps of a program over the code under test inside a sandbox, each program in a fork under limits of the kernel.

The text of this module runs behind those of `literals`, `operators`, `shipping`, `calls` and `references`, in front of `mutants`
and `driver`.
"""

from __future__ import annotations

import importlib
import itertools
import json
import os
import select
import signal
import sys
import time
import types
from collections.abc import Callable, Sequence
from functools import partial
from types import BuiltinFunctionType, CodeType, FrameType
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

    from composer_replication.sandbox.grading.literals import MOST_ITEMS, OPAQUE, decode, encode_items, encode_result
    from composer_replication.sandbox.grading.steps.calls import Calls, KnownCalls
    from composer_replication.sandbox.grading.steps.operators import operate
    from composer_replication.sandbox.grading.steps.references import modules_of
    from composer_replication.sandbox.grading.steps.shipping import rebuild

Program: TypeAlias = "Sequence[tuple[int, dict[str, Any]]]"

_LONGEST = 4 << 20
"""Bytes of the answer of one program."""
_TOGETHER, _TOGETHER_CPU_S, _TOGETHER_WALL_S = 64, 2.0, 10.0
"""Programs that run in one fork, one after the other, and its limits."""
_UNSTEADY = frozenset(
    {"now", "today", "utcnow", "time", "time_ns", "monotonic", "perf_counter", "localtime", "gmtime", "ctime", "urandom"}
    | {"getrandbits", "random", "getpid", "getcwd", "listdir", "scandir", "stat", "open", "system", "fork"}
)
"""Built-in functions whose answers belong to the moment or the machine."""
_CALLING_ANYWAY = frozenset({"importlib", "_frozen_importlib", "_frozen_importlib_external", "asyncio", "selectors"})
"""Packages that call them whatever a program does."""


class Lost(BaseException):
    """A step needs what an earlier one did not give."""


class Replay:
    """One run of a program."""

    def __init__(self) -> None:
        self.made: dict[int, Any] = {}
        self.loop: AbstractEventLoop | None = None

    def resolve(self, written: list[Any]) -> Any:
        match written:
            case ["step", number]:
                if number not in self.made:
                    raise Lost
                return self.made[number]
            case ["module", name]:
                return importlib.import_module(name)
            case ["method", owner, name]:
                return getattr(self.read(owner), name)
            case ["stand-in", function]:
                return types.MethodType(self.read(function), types.SimpleNamespace())
            case ["shipped", *_]:
                return rebuild(written, self.resolve)
        raise ValueError(written[0])

    def read(self, written: Any) -> Any:
        return decode(written, self.resolve)

    def perform(self, step: dict[str, Any]) -> Any:
        do, of = step["do"], step.get("of")
        if do in ("value", "look"):
            return self.read(of)
        if do == "iterator":
            return iter(self.read(of))
        if do == "attribute":
            return getattr(self.read(of), step["name"])
        if do == "items":
            return list(itertools.islice(self.read(of), MOST_ITEMS))
        if do == "await":
            if self.loop is None:
                import asyncio

                self.loop = asyncio.new_event_loop()
            return self.loop.run_until_complete(self.read(of))
        args = [self.read(argument) for argument in step["args"]]
        if do == "operator":
            return operate(step["name"], *args)
        function = self.read(of) if do == "call" else getattr(self.read(of), step["name"])
        return function(*args, **{name: self.read(value) for name, value in step.get("named", {}).items()})

    def answer(self, number: int, step: dict[str, Any]) -> list[Any]:
        """Do a step. Returns `["returns", data]`, `["raises", class names of the exception and its bases]` or `["lost"]`."""
        try:
            result = self.made[number] = self.perform(step)
            if step.get("unused") or step["do"] in ("value", "iterator"):
                return ["returns", OPAQUE]
            return ["returns", encode_items(result) if step["do"] == "items" else encode_result(result)]
        except Lost:
            return ["lost"]
        except BaseException as error:  # noqa: BLE001 - whatever the code under test raises is its answer
            self.made[number] = error.with_traceback(None)
            return ["raises", [kind.__name__ for kind in type(error).__mro__]]


class Witness:
    """Sees which lines of the tree a program runs and what it calls there, and whether it asks the clock or the machine."""

    def __init__(self, *, lines: bool, known: KnownCalls | None) -> None:
        self.root = os.getcwd() + os.sep
        self.inside: dict[CodeType, str] = {}
        self.wants_lines = lines
        self.lines: set[tuple[str, int]] = set()
        self.calls = Calls(known=known)
        self.unsteady = False

    def path_of(self, code: CodeType) -> str:
        path = self.inside.get(code)
        if path is None:
            name = code.co_filename
            path = self.inside[code] = name[len(self.root) :] if name.startswith(self.root) else ""
        return path

    def trace(self, frame: FrameType, event: str, argument: Any) -> Any:
        path = self.path_of(frame.f_code)
        if not path:
            return None
        if event == "line":
            self.lines.add((path, frame.f_lineno))
            if self.calls.raising:
                self.calls.raising.pop(id(frame), None)
        elif event == "exception":
            self.calls.raised(frame, argument[0])
        return self.trace

    def profile(self, frame: FrameType, event: str, argument: Any) -> None:
        if event in ("call", "return"):
            path = self.path_of(frame.f_code) if self.wants_lines else ""
            if path and event == "call":
                self.calls.begin(path, frame)
            elif path:
                self.calls.end(frame, argument)
        elif event == "c_call" and isinstance(argument, BuiltinFunctionType) and argument.__name__ in _UNSTEADY:
            self.unsteady = self.unsteady or frame.f_globals.get("__name__", "").partition(".")[0] not in _CALLING_ANYWAY

    def __enter__(self) -> None:
        if self.wants_lines:
            sys.settrace(self.trace)
        sys.setprofile(self.profile)

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)
        sys.settrace(None)


def run(program: Program) -> list[Any]:
    """Return the answer of each step."""
    replay = Replay()
    return [replay.answer(number, step) for number, step in program]


def run_plainly(program: Program) -> list[Any]:
    """Return the answer of each step as JSON carries it."""
    plain: list[Any] = json.loads(json.dumps(run(program)))
    return plain


def examine(program: Program, *, lines: bool, known: KnownCalls | None) -> dict[str, Any]:
    """Return the answers, what trusted code ran for them (`lines`; some `calls` that are not known, `steps` that lead to any, by
    function; those that steps call, `outermost`; `unsteady`; `seconds`), and which steps gave `iterators`. There are no lines and
    calls unless `lines`."""
    witness, replay = Witness(lines=lines, known=known), Replay()
    started = time.process_time()
    answers = []
    with witness:
        for number, step in program:
            witness.calls.step = number
            answers.append(replay.answer(number, step))
    return {
        "answers": answers,
        "lines": sorted(witness.lines),
        "calls": witness.calls.found(),
        "steps": {function: sorted(steps) for function, steps in witness.calls.steps.items()},
        "outermost": sorted({*witness.calls.outermost.values()}),
        "unsteady": witness.unsteady,
        "iterators": [number for number, made in replay.made.items() if hasattr(type(made), "__next__")],
        "seconds": time.process_time() - started,
    }


def answers_again(programs: Sequence[Program], expected: Sequence[Any], *, cpu_s: float, wall_s: float) -> list[Any]:
    """Do programs once more, and return True for each that answers exactly as expected, and for others what they answer in a fork
    of their own. None stands for one that does not get to its end there, or that nothing is expected of."""
    asked = [at for at, before in enumerate(expected) if before is not None]
    answers: list[Any] = [True if before is not None else None for before in expected]
    for at in suspects(lambda at: run_plainly(programs[at]) != expected[at], asked):
        answers[at] = in_fork(partial(run, programs[at]), cpu_s=cpu_s, wall_s=wall_s)
    return answers


def suspects(is_wrong: Callable[[int], bool], numbers: Sequence[int]) -> list[int]:
    """Return the numbers of programs that are answered wrongly when many run in one fork, one after the other, and all of those
    whose fork does not get to its end.

    Most of what a program takes in a fork of its own is the copying of pages. But here each finds what those before it left
    behind, so a wrong answer is no proof.
    """
    found: list[int] = []
    for start in range(0, len(numbers), _TOGETHER):
        some = numbers[start : start + _TOGETHER]
        wrong = in_fork(partial(list, filter(is_wrong, some)), cpu_s=_TOGETHER_CPU_S, wall_s=_TOGETHER_WALL_S)
        found += some if wrong is None else wrong
    return found


def in_fork(work: Callable[[], Any], *, cpu_s: float, wall_s: float) -> Any:
    """Return what `work` returns, as JSON carries it, or None when it did not get to its end within the limits.

    The kernel ends it: a signal that Python handles is not heard in an endless loop of C.
    """
    end, start = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(end)
            for timer, number in ((signal.ITIMER_PROF, signal.SIGPROF), (signal.ITIMER_REAL, signal.SIGALRM)):
                signal.signal(number, signal.SIG_DFL)
                signal.setitimer(timer, cpu_s if timer == signal.ITIMER_PROF else wall_s)
            text = json.dumps(work()).encode()[:_LONGEST]
            for timer in (signal.ITIMER_PROF, signal.ITIMER_REAL):
                signal.setitimer(timer, 0)
            while text:
                text = text[os.write(start, text) :]
        finally:
            os._exit(0)
    os.close(start)
    text, deadline = b"", time.monotonic() + 2 * wall_s
    while (left := deadline - time.monotonic()) > 0 and select.select([end], [], [], left)[0]:
        more = os.read(end, 1 << 20)
        if not more:
            break
        text += more
    os.close(end)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    try:
        return json.loads(text)
    except ValueError:
        return None


def import_modules(programs: Sequence[Program]) -> None:
    """Import what programs need, so that their forks need not; what cannot be imported is their answer."""
    loops = ["asyncio"] if any(step["do"] == "await" for program in programs for _, step in program) else []
    for name in dict.fromkeys([*loops, *itertools.chain.from_iterable(map(modules_of, programs))]):
        try:
            importlib.import_module(name)
        except BaseException:  # noqa: BLE001 - the code under test may raise anything
            continue
