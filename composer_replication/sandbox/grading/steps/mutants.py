"""Mutants of the gold code, each with another body of one function or several, tried on programs of steps inside a sandbox.

The text of this module runs behind those of `steps.replay` and `steps.kept`, and in front of `steps.driver`.
"""

from __future__ import annotations

import builtins
import contextlib
import gc
import importlib.machinery
import itertools
import os
import sys
from collections.abc import Container, Iterator, Sequence
from functools import partial
from inspect import CO_ASYNC_GENERATOR, CO_GENERATOR
from types import CodeType, FrameType, FunctionType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from composer_replication.sandbox.grading.literals import differs
    from composer_replication.sandbox.grading.steps.calls import is_known
    from composer_replication.sandbox.grading.steps.kept import Kept, condition_of, is_keeping
    from composer_replication.sandbox.grading.steps.references import modules_of
    from composer_replication.sandbox.grading.steps.replay import Program, import_modules, in_fork, run, run_plainly, suspects

_MUTANTS_TOGETHER, _QUICK_CPU_S, _STUB_CPU_S = 32, 0.4, 2.0
"""Mutants that are tried in one fork, and its limit of CPU-seconds: one that has no end costs all of it. That of a stub on all
programs."""
_UNKNOWN = "__composer_unknown__"
"""Built-in function by which other bodies ask whether the call that they are in is no known one."""
_IMPORT_CPU_S, _IMPORT_WALL_S = 5.0, 20.0
"""Limits of importing what a file with another body is part of; CPU-seconds of programs are not counted."""


def forget_tree() -> None:
    """Have the modules of the tree imported anew."""
    root = os.getcwd() + os.sep
    for name, module in list(sys.modules.items()):
        if (getattr(module, "__file__", None) or "").startswith(root):
            del sys.modules[name]


def lines_of(place: str) -> list[bytes]:
    """Return the lines of a source file as Python counts them."""
    with open(place, "rb") as file:
        return file.read().removeprefix(b"\xef\xbb\xbf").splitlines(keepends=True)


def lines_with(body: dict[str, Any], lines: Sequence[bytes], gold: CodeType) -> list[bytes]:
    """Return the lines of a function with another body in the place of its own, or in front of that: for every call; where
    the answers to `known` calls are given as by heart, for all others; and for those under its own condition (`condition_of`)."""
    text, own = body["text"], lines[body["first_line"] - 1 : body["last_line"]]
    conditions = [f"{_UNKNOWN}()"] * (body["known"] is not None) + [*filter(None, [condition_of(body)])]
    if not conditions:
        return [f"{body['indent']}{text}\n".encode(), *(own if body["in_front"] else ())]
    if text.startswith("return ") and gold.co_flags & (CO_GENERATOR | CO_ASYNC_GENERATOR):
        items = text.removeprefix("return ")
        text = "return" if gold.co_flags & CO_ASYNC_GENERATOR or items == "None" else f"yield from {items}; return"
    return [f"{body['indent']}if {' and '.join(conditions)}: {text}\n".encode(), *own]


def replace_bodies(bodies: Sequence[dict[str, Any]]) -> None:
    """Have the modules that hold some functions compiled with other bodies in them."""
    original = importlib.machinery.SourceFileLoader.get_code
    files: dict[str, list[dict[str, Any]]] = {}
    for body in bodies:
        files.setdefault(place_of(body), []).append(body)
    texts = {place: text_with(place, found) for place, found in files.items()}

    def get_code(loader: importlib.machinery.SourceFileLoader, name: str) -> CodeType | None:
        place = str(loader.path)
        return compile(texts[place], place, "exec", dont_inherit=True) if place in texts else original(loader, name)

    importlib.machinery.SourceFileLoader.get_code = get_code  # type: ignore[method-assign,assignment]


def place_of(body: dict[str, Any]) -> str:
    """Return the absolute path of a function's file."""
    return os.path.join(os.getcwd(), body["path"])


def text_with(place: str, bodies: Sequence[dict[str, Any]]) -> str:
    """Return a file with other bodies in it."""
    lines = lines_of(place)
    module = compile(b"".join(lines), place, "exec", dont_inherit=True)
    for body in sorted(bodies, key=lambda body: -int(body["first_line"])):
        gold = code_named(module, body["qualname"])
        if gold is None:
            raise ValueError(f"{body['path']} has no {body['qualname']}")
        lines[body["first_line"] - 1 : body["last_line"]] = lines_with(body, lines, gold)
    return b"".join(lines).decode()


def code_named(code: CodeType, qualname: str) -> CodeType | None:
    """Return the code of a function from that of its module."""
    if code.co_qualname == qualname:
        return code
    inner = (code_named(constant, qualname) for constant in code.co_consts if isinstance(constant, CodeType))
    return next((found for found in inner if found is not None), None)


def code_with(body: dict[str, Any], lines: Sequence[bytes], old: CodeType) -> CodeType | None:
    """Compile a function with another body, from its own lines between empty classes; None where that is not the same as in its
    file."""
    header = lines[body["def_line"] - 1 : body["first_line"] - 1]
    margin = header[0][: len(header[0]) - len(header[0].lstrip())]
    classes = body["qualname"].split(".")[:-1]
    around = [f"class {name}:\n".encode() for name in classes] or ([b"if True:\n"] if margin else [])
    if len(around) > len(margin):
        return None
    opened = [margin[:depth] + line for depth, line in enumerate(around)]
    indent = body["indent"].encode()
    kept = [indent + name.encode() + b"\n" for name in old.co_freevars]  # a name that is read stays a free variable
    text = b"".join([*opened, *header, *lines_with(body, lines, old), *kept])
    try:
        new = code_named(compile(text, old.co_filename, "exec", dont_inherit=True), body["qualname"])
    except SyntaxError:
        return None
    return new if new is not None and new.co_freevars == old.co_freevars else None


def set_known_calls(bodies: Sequence[dict[str, Any]]) -> None:
    """Say which calls of their functions other bodies leave to the gold code: all where nothing is said of a function."""
    known = {(place_of(body), body["qualname"]): frozenset(body["known"] or ()) for body in bodies}

    def is_unknown() -> bool:
        frame = sys._getframe(1)
        calls = known.get((frame.f_code.co_filename, frame.f_code.co_qualname))
        return calls is not None and not is_known(frame.f_code, frame.f_locals, calls)

    vars(builtins)[_UNKNOWN] = is_unknown


@contextlib.contextmanager
def swapped(functions: Sequence[FunctionType], codes: Sequence[Any]) -> Iterator[None]:
    """Give functions other code for a while."""
    before = [function.__code__ for function in functions]
    try:
        for function, code in zip(functions, codes, strict=True):
            function.__code__ = code
        yield
    finally:
        for function, code in zip(functions, before, strict=True):
            function.__code__ = code


class Mutants:
    """Puts other bodies in the place of functions' own: in the functions themselves, where that is the same as a changed file."""

    def __init__(self, request: dict[str, Any]) -> None:
        self.programs: Sequence[Program] = request["programs"]
        self.expected: Sequence[list[Any]] = request["expected"]
        self.cpu_s, self.wall_s = request["cpu_s"], request["wall_s"]
        self.mutant_cpu_s: Sequence[float] = request["mutant_cpu_s"]
        self.run_at_import: set[CodeType] = set()
        self.functions: dict[tuple[str, str], list[FunctionType]] = {}
        self.imported: set[str] = set()
        """Modules that programs name and that can be imported."""
        self.held: dict[int, bool] = {}
        self.kept = Kept()

    def profile(self, frame: FrameType, event: str, _argument: Any) -> None:
        if event == "call":
            self.run_at_import.add(frame.f_code)

    def import_modules(self) -> None:
        """Import what programs name, and note what runs meanwhile and which functions there are."""
        sys.setprofile(self.profile)
        try:
            import_modules(self.programs)
        finally:
            sys.setprofile(None)
        self.imported = sys.modules.keys() & itertools.chain.from_iterable(map(modules_of, self.programs))
        for function in gc.get_objects():
            if isinstance(function, FunctionType):
                key = (function.__code__.co_filename, function.__code__.co_qualname)
                self.functions.setdefault(key, []).append(function)

    def find(self, body: dict[str, Any]) -> list[FunctionType]:
        """Return the functions of a body's name; none where one of them ran when its module was imported, and would have run
        otherwise with that body. All calls that are made then count as known."""
        found = self.functions.get((place_of(body), body["qualname"]), [])
        as_before = body["known"] is not None
        return [] if not as_before and any(function.__code__ in self.run_at_import for function in found) else found

    def is_wrong(self, number: int, cpu_s: float) -> bool:
        work = partial(run, self.programs[number])
        found = in_fork(lambda: [work(), self.kept.given_back], cpu_s=cpu_s, wall_s=self.wall_s)
        answers, self.kept.given_back = found or (None, self.kept.given_back)
        return differs(self.expected[number], answers)

    def suspects(self, numbers: Sequence[int]) -> list[int]:
        return suspects(self.differs_here, numbers)

    def holds(self, number: int) -> bool:
        """Return whether the gold code answers a program as expected, here and now."""
        if not self.held:
            everything = range(len(self.programs))
            self.held = dict.fromkeys(set(everything).difference(self.suspects(everything)), True)
        if number not in self.held:
            self.held[number] = not self.is_wrong(number, self.cpu_s)
        return self.held[number]

    def kills_of_all(self, mutants: Sequence[dict[str, Any]]) -> list[list[int]]:
        """Return for each mutant the first `most` of its `numbers` whose programs kill it; none where fewer than `least` do.

        Once a mutant survives, the others of the same functions are not tried, and get an empty list too. A program that the stub
        of the functions satisfies (the one that begins with what was `found_first`) is tried on none of them.
        """
        answers: list[list[int]] = []
        failing = self.failing_stubs(mutants)
        mutants = [{**one, "numbers": only(one["numbers"], failing.get(functions_of(one)))} for one in mutants]
        together = self.killed_together(mutants)
        alone = len({functions_of(mutant) for mutant in mutants if mutant["found_first"]}) == 1
        survived: set[tuple[str, ...]] = set()
        killers: dict[tuple[str, ...], dict[int, None]] = {}
        for at, mutant in enumerate(mutants):
            functions = functions_of(mutant)
            known = killers.setdefault(functions, {})
            first = known if mutant["found_first"] else {}
            numbers = [*first, *(number for number in mutant["numbers"] if number not in first)]
            most, may_survive = max(mutant["most"], len(first)), mutant["least"] == 0
            if functions in survived:
                found = []
            elif mutant["found_first"] and functions in failing and alone:  # all are done again on the task's own tree
                found = list(itertools.islice(filter(self.holds, numbers), most))
            else:
                found = together.get(at) or self.kills_of(mutant["bodies"], numbers, most, may_survive=may_survive)
            known.update(dict.fromkeys(found))
            if len(found) < mutant["least"]:
                survived.add(functions)
                found = []
            answers.append(found)
        return answers

    def killed_together(self, mutants: Sequence[dict[str, Any]]) -> dict[int, list[int]]:
        """Return the programs that kill mutants, by the place of each, of those that its first `most` programs all kill.

        Many are tried in one fork. After each the gold code does the same programs, in the same process: where it does not answer
        as expected, the mutant has left something behind, and the trial ends before it.
        """
        tried = [
            (at, mutant["bodies"], list(mutant["numbers"][: mutant["most"]]))
            for at, mutant in enumerate(mutants)
            if mutant["least"] > 0 and not mutant["found_first"] and not any(map(is_keeping, mutant["bodies"]))
        ]
        found: dict[int, list[int]] = {}
        for start in range(0, len(tried), _MUTANTS_TOGETHER):
            some = [one for one in tried[start : start + _MUTANTS_TOGETHER] if len(one[2]) == mutants[one[0]]["most"]]
            killed = in_fork(partial(self.try_together, some), cpu_s=_QUICK_CPU_S, wall_s=self.wall_s)
            found.update({at: numbers for at, numbers in killed or () if all(map(self.holds, numbers))})
        return found

    def try_together(self, tried: Sequence[tuple[int, list[dict[str, Any]], list[int]]]) -> list[tuple[int, list[int]]]:
        """Return the places of mutants that all their programs kill, and these, until one of them leaves something behind.

        Args:
            tried: the place of each mutant, its bodies and its programs.
        """
        killed = []
        for at, bodies, numbers in tried:
            replaced = self.replaced(bodies)
            if replaced is None:
                continue
            with swapped(*replaced):
                wrong = [self.differs_here(number) for number in numbers]
            if any(map(self.differs_here, numbers)):
                break
            if all(wrong):
                killed.append((at, numbers))
        return killed

    def differs_here(self, number: int) -> bool:
        """Return whether a program is answered wrongly in this process."""
        return differs(self.expected[number], run_plainly(self.programs[number]))

    def failing_stubs(self, mutants: Sequence[dict[str, Any]]) -> dict[tuple[str, ...], set[int]]:
        """Return for the functions of each stub the numbers of the programs that it does not satisfy, as far as one fork for all
        tells; nothing where that does not get to its end, or of functions that run when their module is imported."""
        found: dict[tuple[str, ...], set[int]] = {}
        for stub in mutants:
            replaced = self.replaced(stub["bodies"]) if stub["found_first"] else None
            if replaced is not None:
                functions = functions_of(stub)
                numbers = {number for mutant in mutants if functions_of(mutant) == functions for number in mutant["numbers"]}
                with swapped(*replaced):
                    wrong = in_fork(
                        partial(list, filter(self.differs_here, sorted(numbers))), cpu_s=_STUB_CPU_S, wall_s=self.wall_s
                    )
                if wrong is not None:
                    found[functions] = set(wrong)
        return found

    def replaced(self, bodies: Sequence[dict[str, Any]]) -> tuple[list[FunctionType], list[CodeType]] | None:
        """Return functions and their other code; None where only a changed file is the same. Says which calls are known."""
        set_known_calls(bodies)
        functions: list[FunctionType] = []
        codes: list[CodeType] = []
        for body in bodies:
            found = self.find(body)
            lines = lines_of(place_of(body))
            other = [code_with(body, lines, function.__code__) for function in found]
            if not found or None in other:
                return None
            functions += found
            codes += filter(None, other)
        return functions, codes

    def kills_of(self, bodies: Sequence[dict[str, Any]], numbers: Sequence[int], most: int, *, may_survive: bool) -> list[int]:
        """Return the first `most` of the numbers whose programs kill a mutant.

        Args:
            may_survive: no program has to kill it, and most do not. Only `suspects` are tried.
        """
        replaced = self.replaced(bodies)
        if replaced is None:
            return self.kills_in_files(bodies, numbers, most, may_survive=may_survive)
        functions, codes = replaced
        self.kept.prepare(dict(zip(codes, functions, strict=True)))

        def kills(number: int) -> bool:
            with swapped(functions, codes):
                wrong = self.is_wrong(number, self.mutant_cpu_s[number])
            return wrong and self.holds(number)

        if may_survive:
            with swapped(functions, codes):
                numbers = self.suspects(numbers)
        killing = list(itertools.islice(filter(kills, numbers), most))
        return list(itertools.islice(filter(self.holds, numbers), most)) if self.keeps_nothing(bodies, killing) else killing

    def keeps_nothing(self, bodies: Sequence[dict[str, Any]], found: Sequence[int]) -> bool:
        """Return whether no program of those that were tried asked bodies that keep something to give it back. Then they are no
        mutant: all programs count as killing it."""
        return not found and any(map(is_keeping, bodies)) and not self.kept.given_back

    def kills_in_files(
        self, bodies: Sequence[dict[str, Any]], numbers: Sequence[int], most: int, *, may_survive: bool
    ) -> list[int]:
        """Do `kills_of` with changed files. All programs kill a mutant whose modules cannot be imported with it, or not to the
        end. One that knows calls does as the gold code does until then: if it is not imported, that says nothing, and it
        survives."""
        work = partial(self.kills_imported, bodies, numbers, most, may_survive=may_survive)
        found = in_fork(work, cpu_s=_IMPORT_CPU_S, wall_s=_IMPORT_WALL_S)
        if found is None:
            return [] if knows_calls(bodies) else list(itertools.islice(filter(self.holds, numbers), most))
        if all(map(self.holds, found)):
            return list(found)
        holding = [number for number in numbers if self.holds(number)]
        return self.kills_in_files(bodies, holding, most, may_survive=may_survive)

    def kills_imported(
        self, bodies: Sequence[dict[str, Any]], numbers: Sequence[int], most: int, *, may_survive: bool
    ) -> list[int]:
        forget_tree()
        replace_bodies(bodies)
        set_known_calls(())  # what a module calls when it is imported, it calls for every test
        self.kept.prepare({})
        programs = [self.programs[number] for number in numbers]
        import_modules(programs)
        set_known_calls(bodies)
        wanted = self.imported & {*itertools.chain.from_iterable(map(modules_of, programs))}
        if knows_calls(bodies) and not wanted <= sys.modules.keys():
            return []
        suspects = self.suspects(numbers) if may_survive else numbers
        kills = (number for number in suspects if self.is_wrong(number, self.mutant_cpu_s[number]))
        found = list(itertools.islice(kills, most))
        return list(numbers[:most]) if self.keeps_nothing(bodies, found) else found


def only(numbers: Sequence[int], wanted: Container[int] | None) -> list[int]:
    """Return the numbers that are wanted; all of them with None."""
    return [number for number in numbers if wanted is None or number in wanted]


def functions_of(mutant: dict[str, Any]) -> tuple[str, ...]:
    """Return the names of the functions that a mutant has other bodies of."""
    return tuple(f"{body['path']}::{body['qualname']}" for body in mutant["bodies"])


def knows_calls(bodies: Sequence[dict[str, Any]]) -> bool:
    """Return whether a mutant answers some calls as by heart."""
    return any(body["known"] is not None for body in bodies)
