"""The program that does steps over the code under test inside a sandbox, and says what each gave; the host decides.

Its text follows those of `literals`, `operators` and `shipping`. The request comes on stdin; the answer goes over the private
channel: the request's nonce and zlib-compressed JSON. Each program of steps runs in a fork of this process, under limits of the
kernel, so that programs know nothing of each other and none is endless. Everything in this process may be the agent's: all it
could forge is the answer to a question it has to know the answer to.
"""

from __future__ import annotations

import asyncio
import builtins
import gc
import importlib
import importlib.machinery
import itertools
import json
import os
import resource
import select
import signal
import sys
import time
import types
import zlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from types import BuiltinFunctionType, CodeType, FrameType, FunctionType
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from composer_replication.sandbox.grading.literals import MOST_ITEMS, OPAQUE, decode, differs, encode_items, encode_result
    from composer_replication.sandbox.grading.operators import Direct, operate
    from composer_replication.sandbox.grading.shipping import rebuild

Program: TypeAlias = "Sequence[tuple[int, dict[str, Any]]]"

_MEMORY = 2 << 30
"""Bytes that a program may take beside what the process has already."""
_LONGEST = 4 << 20
"""Bytes of the answer of one program."""
_UNSTEADY = frozenset(
    {"now", "today", "utcnow", "time", "time_ns", "monotonic", "perf_counter", "localtime", "gmtime", "ctime", "urandom"}
    | {"getrandbits", "random", "getpid", "getcwd", "listdir", "scandir", "stat", "open", "system", "fork"}
)
"""Built-in functions whose answers belong to the moment or the machine."""


class Lost(BaseException):
    """A step needs what an earlier one did not give."""


class Replay:
    """One run of a program."""

    def __init__(self) -> None:
        self.made: dict[int, Any] = {}
        self.loop: asyncio.AbstractEventLoop | None = None

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
            self.loop = self.loop or asyncio.new_event_loop()
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
            return ["raises", [kind.__name__ for kind in type(error).__mro__]]


class Witness:
    """Sees which lines and functions of the tree a program runs, and whether it asks the clock or the machine."""

    def __init__(self, *, lines: bool) -> None:
        self.root = os.getcwd() + os.sep
        self.inside: dict[CodeType, str] = {}
        self.wants_lines = lines
        self.lines: set[tuple[str, int]] = set()
        self.entered: set[tuple[str, str]] = set()
        self.unsteady = False

    def path_of(self, code: CodeType) -> str:
        path = self.inside.get(code)
        if path is None:
            name = code.co_filename
            path = self.inside[code] = name[len(self.root) :] if name.startswith(self.root) else ""
        return path

    def trace(self, frame: FrameType, event: str, _argument: object) -> Any:
        path = self.path_of(frame.f_code)
        if not path:
            return None
        if event == "line":
            self.lines.add((path, frame.f_lineno))
        return self.trace

    def profile(self, frame: FrameType, event: str, argument: Any) -> None:
        if event == "call":
            path = self.path_of(frame.f_code)
            if path:
                self.entered.add((path, frame.f_code.co_qualname))
        elif event == "c_call" and isinstance(argument, BuiltinFunctionType) and argument.__name__ in _UNSTEADY:
            self.unsteady = self.unsteady or not frame.f_code.co_filename.startswith("<frozen importlib")

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


def examine(program: Program, *, lines: bool) -> dict[str, Any]:
    """Return the answers, what trusted code ran for them (`lines`, `entered`, `unsteady`, `seconds`), and which steps gave
    `iterators`."""
    witness, replay = Witness(lines=lines), Replay()
    started = time.process_time()
    with witness:
        answers = [replay.answer(number, step) for number, step in program]
    return {
        "answers": answers,
        "lines": sorted(witness.lines),
        "entered": sorted(witness.entered),
        "unsteady": witness.unsteady,
        "iterators": [number for number, made in replay.made.items() if hasattr(type(made), "__next__")],
        "seconds": time.process_time() - started,
    }


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


def modules_of(value: Any) -> Iterator[str]:
    """Yield the modules that steps name."""
    match value:
        case ["named" | "module", str(name)]:
            yield name.partition(":")[0]
        case list():
            for item in value:
                yield from modules_of(item)
        case dict():
            for item in value.values():
                yield from modules_of(item)


def import_modules(programs: Sequence[Program]) -> None:
    """Import what programs name, so that their forks need not; what cannot be imported is their answer."""
    for name in dict.fromkeys(modules_of([list(map(list, program)) for program in programs])):
        try:
            importlib.import_module(name)
        except BaseException:  # noqa: BLE001 - the code under test may raise anything
            continue


def forget_tree() -> None:
    """Have the modules of the tree imported anew."""
    root = os.getcwd() + os.sep
    for name, module in list(sys.modules.items()):
        if (getattr(module, "__file__", None) or "").startswith(root):
            del sys.modules[name]


def replace_source(path: str, text: str) -> None:
    """Have the module at `path` compiled from `text`."""
    original = importlib.machinery.SourceFileLoader.get_code
    place = os.path.join(os.getcwd(), path)

    def get_code(loader: importlib.machinery.SourceFileLoader, name: str) -> CodeType | None:
        return compile(text, place, "exec") if loader.path == place else original(loader, name)

    importlib.machinery.SourceFileLoader.get_code = get_code  # type: ignore[method-assign,assignment]


def code_named(code: CodeType, qualname: str) -> CodeType | None:
    """Return the code of a function from that of its module."""
    if code.co_qualname == qualname:
        return code
    inner = (code_named(constant, qualname) for constant in code.co_consts if isinstance(constant, CodeType))
    return next((found for found in inner if found is not None), None)


class Bodies:
    """Puts other bodies in the place of functions' own: in the functions themselves, where that is the same as a changed file."""

    def __init__(self) -> None:
        self.run_at_import: set[CodeType] = set()
        self.functions: dict[tuple[str, str], list[FunctionType]] = {}

    def profile(self, frame: FrameType, event: str, _argument: Any) -> None:
        if event == "call":
            self.run_at_import.add(frame.f_code)

    def import_modules(self, programs: Sequence[Program]) -> None:
        """Import what programs name, and note what runs meanwhile."""
        sys.setprofile(self.profile)
        try:
            import_modules(programs)
        finally:
            sys.setprofile(None)

    def find(self, path: str, qualname: str) -> list[FunctionType]:
        """Return the functions of that name; none where one of them ran when its module was imported."""
        key = (os.path.join(os.getcwd(), path), qualname)
        if key not in self.functions:
            every = [found for found in gc.get_objects() if isinstance(found, FunctionType)]
            found = [f for f in every if (f.__code__.co_filename, f.__code__.co_qualname) == key]
            self.functions[key] = [] if any(f.__code__ in self.run_at_import for f in found) else found
        return self.functions[key]

    def try_one(self, order: dict[str, Any], programs: Sequence[Program]) -> list[int] | None:
        """Return the numbers of the first `most` programs, in the order of `order["numbers"]`, that tell a body from the gold
        code: all of them where its module cannot be imported, None when that does not end."""
        body = order["body"]
        if body is None:
            return biting(order, programs)
        functions = self.find(body["path"], body["qualname"])
        try:
            new = code_named(compile(body["text"], os.path.join(os.getcwd(), body["path"]), "exec"), body["qualname"])
        except SyntaxError:
            return list(order["numbers"])
        before = [function.__code__ for function in functions]
        if not functions or new is None or any(len(old.co_freevars) != len(new.co_freevars) for old in before):
            return in_fork(partial(try_file, body, order, programs), cpu_s=60.0, wall_s=60.0)  # type: ignore[no-any-return]
        try:
            for function in functions:
                function.__code__ = new
            return biting(order, programs)
        finally:
            for function, old in zip(functions, before, strict=True):
                function.__code__ = old


def try_file(body: dict[str, str], order: dict[str, Any], programs: Sequence[Program]) -> list[int]:
    """Do `Bodies.try_one` with a changed file."""
    forget_tree()
    replace_source(body["path"], body["text"])
    import_modules([programs[number] for number in order["numbers"]])
    return biting(order, programs)


def biting(order: dict[str, Any], programs: Sequence[Program]) -> list[int]:
    """Return the numbers of the first `most` programs that do not answer as expected."""
    found: list[int] = []
    for number in order["numbers"]:
        answers = in_fork(partial(run, programs[number]), cpu_s=order["cpu_s"], wall_s=order["wall_s"])
        if differs(order["expected"][str(number)], answers):
            found.append(number)
            if len(found) == order["most"]:
                break
    return found


def answer(request: dict[str, Any]) -> list[Any]:
    """Carry out a request: run `programs`, or try each of `bodies` on them."""
    programs = request["programs"]
    limits = {"cpu_s": request["cpu_s"], "wall_s": request["wall_s"]}
    bodies = Bodies()
    if request["mode"] == "bodies":
        bodies.import_modules(programs)
        return [bodies.try_one(order, programs) for order in request["orders"]]
    import_modules(programs)
    if request["mode"] == "run":
        return [in_fork(partial(run, program), **limits) for program in programs]
    return [in_fork(partial(examine, program, lines=request["mode"] == "lines"), **limits) for program in programs]


def main() -> None:
    """Read a request from stdin, answer, and end without running exit handlers."""
    channel = int(os.environ.pop("COMPOSER_RESULT_FD"))
    os.set_inheritable(channel, False)
    with open(0, "rb", closefd=False) as stdin:
        request = json.loads(stdin.read())
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nothing, descriptor)
    root = os.getcwd()
    sys.path[:] = [entry for entry in sys.path if entry not in ("", root)]
    sys.path[:0] = [os.path.normpath(os.path.join(root, path)) for path in request["python_path"]]
    vars(builtins)["__composer__"] = Direct
    with open("/proc/self/statm", encoding="ascii") as file:
        used = int(file.read().split()[0]) * resource.getpagesize()
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    limits = [used + _MEMORY, *(limit for limit in (soft, hard) if limit != resource.RLIM_INFINITY)]
    resource.setrlimit(resource.RLIMIT_AS, (min(limits), hard))
    exit_now, write, dumps, compress = os._exit, os.write, json.dumps, zlib.compress
    text = request["nonce"].encode() + compress(dumps(answer(request)).encode())
    while text:
        text = text[write(channel, text) :]
    exit_now(0)


if __name__ == "__main__":
    main()
