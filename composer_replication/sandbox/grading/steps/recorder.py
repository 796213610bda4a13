"""Recorder of what tests do with a project's objects: steps over handles, which can be done again without the tests.

Its text runs in a sandbox as an observer of `pytest_driver`, behind those of `literals`, `operators`, `shipping`, `harness`,
`entered`, `references` and `passed_on`, while test files run that `languages.python.instrument` has rewritten. A handle is
the number of the step that made an object. What happens inside a recorded step is not recorded: the project's own calls are not
part of its interface.

A step is a mapping: `do` says what, `unused` that the test does not look at the result, `asks` that it asks a text of any form
something. For the host stand beside it, in `facts`: the test, whether the project is touched, and the class of the result where
it is the project's.
"""

from __future__ import annotations

import builtins
import contextlib
import itertools
import os
import threading
import types
from collections.abc import Awaitable, Callable, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from composer_replication.sandbox.grading.literals import MOST_ITEMS, Unwritable, encode_argument, name_of
    from composer_replication.sandbox.grading.steps.entered import Entered, Expecting, pattern_of
    from composer_replication.sandbox.grading.steps.harness import EXPECTING, JUDGES, is_case
    from composer_replication.sandbox.grading.steps.operators import operate
    from composer_replication.sandbox.grading.steps.origins import Origins
    from composer_replication.sandbox.grading.steps.passed_on import PassedOn
    from composer_replication.sandbox.grading.steps.shipping import Shipper

_MOST_STEPS, _MOST_OUTSIDE, _MOST_IN_ALL = 120, 20_000, 60_000
"""Limits on the steps of one test, of what is outside of any (test files make their parameters when they are imported), and of
all."""
_INEQUALITIES = frozenset({"ne", "lt", "le", "gt", "ge"})
_PLAIN = (bool, int, float, complex, str, bytes, type(None), type(Ellipsis), type(NotImplemented))
_MUTABLE = (list, dict, set, bytearray)
_ANSWER_PRIVATE = frozenset({"builtins:id", "builtins:hash", "_pickle:dumps", "pickle:dumps", "marshal:dumps"})
"""Functions whose result is no promise."""


class Recorder:
    """Stands behind the name `__composer__`."""

    def __init__(self, sources: list[str]) -> None:
        self.origins = Origins(sources)
        self.place, self.is_projects = self.origins.place, self.origins.is_projects
        self.steps: list[dict[str, Any]] = []
        self.facts: list[tuple[str, bool, str]] = []
        self.handles: dict[int, int] = {}
        self.touched: set[int] = set()
        self.kept: list[Any] = []
        self.counts: dict[str, int] = {}
        self.thread = threading.get_ident()
        self.inside = 0
        self.shipper = Shipper(self.reference)
        self.passed_on = PassedOn()

    # --- whose is what ---

    def touches(self, values: Iterable[Any]) -> bool:
        """Return whether one of the values is the project's, comes from it, or has been in its hands."""
        return any(type(value) not in _PLAIN and (id(value) in self.touched or self.is_projects(value)) for value in values)

    # --- writing down ---

    def test(self) -> str:
        return os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" (")[0]

    def full(self, test: str) -> bool:
        """Return whether a test, or all together, has taken as many steps as it may."""
        most = _MOST_STEPS if test else _MOST_OUTSIDE
        return self.counts.get(test, 0) >= most or len(self.steps) >= _MOST_IN_ALL

    def idle(self) -> bool:
        return bool(self.inside) or threading.get_ident() != self.thread

    def reference(self, value: Any) -> list[Any] | None:
        """Encode what is known by a handle, a module, what stands in one, or what a test defines; a container becomes known when
        it is first passed."""
        if type(value) in _PLAIN:
            return self.passed_on.reference(value)
        handle = self.handles.get(id(value))
        if handle is not None:
            return ["step", handle]
        if type(value) in _MUTABLE:
            return ["step", self.add({"do": "value", "of": encode_argument(value, self.inner)}, False, value)]
        return self.inner(value)

    def inner(self, value: Any) -> list[Any] | None:
        """Encode a part of a container: other than `reference`, no container of its own becomes known."""
        if type(value) in _PLAIN:
            return self.passed_on.reference(value)
        handle = self.handles.get(id(value))
        if handle is not None:
            return ["step", handle]
        if isinstance(value, types.ModuleType):
            if self.place(value) == "test":
                raise Unwritable("a module of the tests")
            return ["module", value.__name__]
        if isinstance(value, types.FunctionType | type) and self.place(value) == "test":
            return self.shipper.write(value)
        if isinstance(value, types.MethodType):
            if self.place(value.__func__) == "test" and id(value.__self__) not in self.handles:
                return ["stand-in", self.shipper.write(value.__func__)]
            return self.origins.standing(value) or ["method", encode_argument(value.__self__, self.reference), value.__name__]
        known = self.origins.named(value)
        if known is not None or self.place(value) != "source" or name_of(value) is not None:
            return known
        return self.origins.standing(value)

    def written(self, value: Any) -> Any:
        return encode_argument(value, self.reference)

    def add(self, step: dict[str, Any], touching: bool, result: Any = None) -> int:
        """Write a step down; its result gets a handle where it can be told from others. Raises Unwritable past the limits."""
        test = self.test()
        if self.full(test):
            raise Unwritable("too many steps")
        self.counts[test] = self.counts.get(test, 0) + 1
        self.steps.append(step)
        known = type(result) in _PLAIN or (type(result) is tuple and not result)
        kind = "" if known or self.place(result) not in ("source", "test") else type(result).__qualname__
        self.facts.append((test, touching, kind))
        again = step.get("of") == ["named", "builtins:iter"]  # that is another object where other work gives a list
        if not known and (again or id(result) not in self.handles) and not (isinstance(result, type) and name_of(result)):
            self.handles[id(result)] = len(self.steps) - 1
            self.kept.append(result)
            if touching:
                self.touched.add(id(result))
        return len(self.steps) - 1

    def add_raised(self, step: dict[str, Any], touching: bool, error: BaseException) -> None:
        """Write down a step that raises: the exception is what later steps look at."""
        number = self.add(step, touching)
        if id(error) not in self.handles:
            self.handles[id(error)] = number
            self.kept.append(error)
            if touching:
                self.touched.add(id(error))

    def note(self, make: Callable[[], dict[str, Any]], do: Callable[[], Any], operands: tuple[Any, ...]) -> Any:
        """Do what the test does, and write it down where that is possible."""
        if self.idle() or self.full(self.test()):
            return do()
        touching = self.touches(operands)
        known = touching or self.passed_on.follows(operands) or any(type(value) not in _PLAIN for value in operands)
        step = self.attempt(make) if known else None
        if step is None:
            return do()
        if touching:
            self.touched.update(id(value) for value in operands if id(value) in self.handles)
        self.inside += 1
        try:
            result = do()
        except BaseException as error:
            self.attempt(partial(self.add_raised, step, touching, error))
            raise
        finally:
            self.inside -= 1
        self.attempt(lambda: self.add_result(step, touching, operands, result))
        return result

    def add_result(self, step: dict[str, Any], touching: bool, operands: tuple[Any, ...], result: Any) -> None:
        inert = (*_PLAIN, *_MUTABLE, tuple, frozenset)
        own = touching and any(type(value) not in inert and self.touches((value,)) for value in operands)
        self.passed_on.note(self.add(step, touching, result), step, operands, result, own=own, touching=touching)

    def attempt(self, make: Callable[[], Any]) -> Any:
        """Return what `make` returns, or None where something cannot be written down."""
        self.inside += 1
        try:
            return make()
        except Exception:  # noqa: BLE001 - the properties of a stranger's objects may raise anything when they are looked at
            return None
        finally:
            self.inside -= 1

    # --- what rewritten code asks for ---

    def call(self, function: Any, /, *args: Any, **named: Any) -> Any:
        return self.called(function, args, named, used=True)

    def call_unused(self, function: Any, /, *args: Any, **named: Any) -> Any:
        return self.called(function, args, named, used=False)

    def called(self, function: Any, args: tuple[Any, ...], named: dict[str, Any], *, used: bool) -> Any:
        place = "" if self.idle() else self.place(function)
        helper = place == "test" and isinstance(function, types.FunctionType | types.MethodType)
        coroutine = any(isinstance(value, types.CoroutineType) and self.place(value) == "test" for value in args)
        if helper or place == "harness" or is_case(function) or coroutine:
            return function(*args, **named)  # what a helper of the tests does is recorded itself
        return self.note(
            lambda: self.step("call", function, args, named, used),
            lambda: function(*args, **named),
            (function, *args, *named.values()),
        )

    def step(self, do: str, of: Any, args: tuple[Any, ...], named: dict[str, Any], used: bool) -> dict[str, Any]:
        step = {"do": do, "of": self.written(of), "args": [self.written(a) for a in args]}
        if named:
            step["named"] = {name: self.written(value) for name, value in named.items()}
        if not used or name_of(of) in _ANSWER_PRIVATE:
            step["unused"] = True
        return step

    def method(self, owner: Any, name: str, /, *args: Any, **named: Any) -> Any:
        return self.method_called(owner, name, args, named, used=True)

    def method_unused(self, owner: Any, name: str, /, *args: Any, **named: Any) -> Any:
        return self.method_called(owner, name, args, named, used=False)

    def method_called(self, owner: Any, name: str, args: tuple[Any, ...], named: dict[str, Any], *, used: bool) -> Any:
        function = getattr(owner, name)
        if self.idle():
            return function(*args, **named)
        if isinstance(owner, types.ModuleType):
            self.origins.name(function, owner.__name__, name)
            if self.place(owner) == "harness":
                return function(*self.expecting(name, args), **named)
            return self.called(function, args, named, used=used)
        if is_case(type(owner)):
            if name in JUDGES:
                self.judged(JUDGES[name], args)
            if self.place(function) == "harness":
                return function(*self.expecting(name, args), **named)
            return self.called(function, args, named, used=used)
        if isinstance(function, types.MethodType) and self.place(function.__func__) == "test" and id(owner) not in self.handles:
            return function(*args, **named)

        def make() -> dict[str, Any]:
            return {**self.step("method", owner, args, named, used), "name": name}

        return self.note(make, lambda: function(*args, **named), (owner, *args, *named.values()))

    def expecting(self, name: str, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """Have `raises(Error, function, ...)` call the function through the recorder."""
        if name not in EXPECTING or len(args) < 2 or not callable(args[1]):
            return args
        function = args[1]
        return (args[0], lambda *given, **named: self.call(function, *given, **named), *args[2:])

    def judged(self, how: str, operands: tuple[Any, ...]) -> None:
        """Write down how a method of unittest looks at its operands; what goes wrong is the method's to say."""
        with contextlib.suppress(Exception):
            self.truth(operands[0]) if how == "truth" else self.operator(how, *operands[:2])

    def imported(self, value: Any, module: str, name: str, /) -> None:
        self.origins.name(value, module, name)

    def attribute(self, owner: Any, name: str, /) -> Any:
        if isinstance(owner, types.ModuleType):
            value = getattr(owner, name)
            self.origins.name(value, owner.__name__, name)
            return value
        if self.idle() or is_case(type(owner)) or not self.touches((owner,)):
            return getattr(owner, name)
        make = lambda: {"do": "attribute", "of": self.written(owner), "name": name}  # noqa: E731
        return self.note(make, lambda: getattr(owner, name), (owner,))

    def operator(self, name: str, /, *operands: Any) -> Any:
        touching, followed = self.touches(operands), [value for value in operands if self.passed_on.follows((value,))]
        if not self.idle() and not touching and not followed and name in _INEQUALITIES:
            self.attempt(lambda: self.passed_on.compare((name,), operands, self.add, len(self.steps)))
        if self.idle() or not (touching or followed) or is_case(type(operands[0])):
            return operate(name, *operands)
        if name == "eq" and not touching and len(followed) < len(operands):
            self.passed_on.look(followed)
            return operate(name, *operands)
        if name == "eq" and self.looked(operands):
            return operate(name, *operands)
        make = lambda: {"do": "operator", "name": name, "args": [self.written(value) for value in operands]}  # noqa: E731
        return self.note(make, lambda: operate(name, *operands), operands)

    def chained(self, names: tuple[str, ...], /, *operands: Any) -> Any:
        """Do comparisons in a chain, of which all operands are known."""
        if not self.idle() and _INEQUALITIES.issuperset(names):
            self.attempt(lambda: self.passed_on.compare(names, operands, self.add, len(self.steps)))
        result: Any = True
        for name, pair in zip(names, itertools.pairwise(operands), strict=True):
            result = self.operator(name, *pair)
            if not result:
                break
        return result

    def looked(self, operands: tuple[Any, ...]) -> bool:
        """Where a plain container is compared, write down that it is looked at: its contents say more than the comparison, and
        the other operand would give the answer away."""
        plain = [value for value in operands if type(value) in (*_MUTABLE, tuple) and id(value) in self.handles]
        for value in plain:
            self.attempt(partial(self.look, value))
        return bool(plain)

    def look(self, value: Any) -> None:
        self.add({"do": "look", "of": self.written(value)}, True)

    def truth(self, value: Any, /) -> Any:
        if self.idle() or type(value) in _PLAIN or not self.touches((value,)):
            return value
        self.note(lambda: {"do": "operator", "name": "truth", "args": [self.written(value)]}, lambda: bool(value), (value,))
        return value

    def items(self, values: Any, /) -> Any:
        self.passed_on.look((values,))
        if self.idle() or not self.touches((values,)):
            return values
        if type(values) in (list, tuple) and (len(values) > MOST_ITEMS or id(values) not in self.handles):
            handle = self.attempt(lambda: self.looked((values,)) and self.handles.get(id(values)))
        else:
            handle = self.attempt(lambda: self.add({"do": "items", "of": self.written(values)}, True))
        return values if handle is None else self.handed_out(values, handle)

    def handed_out(self, values: Iterable[Any], handle: int) -> Iterator[Any]:
        """Yield the items; each that is an object becomes known as one of the list that the step makes."""
        for number, item in enumerate(values):
            if not self.idle() and type(item) not in _PLAIN and id(item) not in self.handles:
                step = {"do": "operator", "name": "getitem", "args": [["step", handle], number]}
                self.attempt(partial(self.add, step, False, item))
            yield item

    def generated(self, items: Iterator[Any], /) -> Iterator[Any]:
        """Write down what a generator expression gives that is passed on; one that is long stays as it is."""
        if self.idle():
            return items
        first = list(itertools.islice(items, MOST_ITEMS + 1))
        if len(first) > MOST_ITEMS:
            return itertools.chain(first, items)
        again = iter(first)
        self.attempt(lambda: self.add({"do": "iterator", "of": encode_argument(first, self.inner)}, False, again))
        return again

    def context(self, manager: Any, /) -> Any:
        if self.idle() or not hasattr(manager, "__enter__"):
            return manager
        if self.place(manager) == "harness":
            pattern = pattern_of(manager)
            return manager if pattern is None else Expecting(self, manager, pattern)
        return Entered(self, manager) if self.touches((manager,)) else manager

    def matched(self, error: BaseException, pattern: str) -> None:
        """Write down that the message of an exception matches what the tests expect of it."""
        number = self.handles.get(id(error))
        if number is not None:
            text = self.add({"do": "call", "of": ["named", "builtins:str"], "args": [["step", number]], "unused": True}, True)
            self.add({"do": "call", "of": ["named", "re:search"], "args": [pattern, ["step", text]]}, True)

    def decorator(self, decorate: Any, /) -> Any:
        if self.idle() or not self.touches((decorate,)):
            return decorate
        return lambda function: self.call(decorate, function)

    def awaited(self, awaitable: Any, /) -> Awaitable[Any]:
        if self.idle() or not self.touches((awaitable,)):
            return awaitable  # type: ignore[no-any-return]
        return self.wait(awaitable)

    async def wait(self, awaitable: Awaitable[Any]) -> Any:
        step = self.attempt(lambda: {"do": "await", "of": self.written(awaitable)})
        try:
            result = await awaitable
        except BaseException as error:
            if step:
                self.attempt(partial(self.add_raised, step, True, error))
            raise
        if step is not None:
            self.attempt(lambda: self.add_result(step, True, (awaitable,), result))
        return result


def start(options: dict[str, Any]) -> Callable[[], dict[str, Any]]:
    """Record until the returned function is called, which returns `steps` and `facts` in the order of the steps.

    Args:
        options: `sources`, paths relative to the working directory.
    """
    recorder = Recorder(options["sources"])
    vars(builtins)["__composer__"] = recorder

    def stop() -> dict[str, Any]:
        recorder.inside += 1
        recorder.passed_on.settle(recorder.steps, recorder.facts)
        return {"steps": recorder.steps, "facts": recorder.facts}

    return stop
