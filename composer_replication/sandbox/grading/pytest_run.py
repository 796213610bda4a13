"""Run tests in a sandbox and read each id's outcome over the private channel, never from printed output."""

from __future__ import annotations

import dataclasses
import json
import secrets
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, TypeAlias

from composer_replication.sandbox.grading.events import after_events, event_observer, events_in
from composer_replication.sandbox.grading.texts import program_of
from composer_replication.sandbox.protocol import Command, Ending, ExecResult, Limits, Sandbox, Tree
from composer_replication.sandbox.request import WARM_FLAGS
from composer_replication.types import Outcome
from composer_replication.types.errors import TaskError
from composer_replication.types.plain_text import visible

CoverageByTest: TypeAlias = dict[str, dict[int, frozenset[str]]]
"""Path relative to the root -> line number -> ids of the tests that executed it (lines run at import only are left out)."""

_SKIPPED_PLUGINS = frozenset(
    {
        "hypothesispytest",
        "pytest_cov",
        "randomly",
        "random_order",
        "rerunfailures",
        "xdist",
        "xdist.looponfail",
    }
)
"""Installed pytest plugins left unloaded: they reorder, repeat, spread or measure tests, or cost a second at start-up without
being needed to run them (`@given` works without hypothesis's plugin)."""

_FRESH_FLAGS = ("-B", "-s", "-c")
"""`WARM_FLAGS` in another order: the same to Python, but a sandbox starts an interpreter for it."""
_OTHER_ADDRESSES = {"PYTHONMALLOC": "malloc"}
"""Moves what the interpreter allocates, also where the kernel does not randomize addresses. What lies in the interpreter's own
image, as `None` does, stays where it is on such a machine."""
_FOUND_NOTHING = 5
"""Exit status of pytest."""
_ANSWER_BYTES = 64 << 20
_MOST_UNPACKED, _MOST_JUDGED = 256 << 20, 16 << 20
"""Limits on an unpacked answer, in bytes: about trusted code, and about judged work. A forged answer must not exhaust the host's
memory, and as Python objects it may be twenty times as large."""
_MOST_ERRORS, _LONGEST_MESSAGE = 1000, 1000
"""Of files that could not be imported, and characters of one message."""
_ENVIRONMENT = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "CI": "1", "COVERAGE_CORE": "ctrace"}
"""`CI` makes hypothesis deterministic."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TestRun:
    """Result of one run of pytest in a sandbox."""

    __test__ = False

    outcomes: Mapping[str, Outcome]
    """Per ordered id (`MISSING` when the run ended without one), or per collected id when none was ordered."""
    ending: Ending
    collect_errors: tuple[str, ...] = ()
    """`file: message` for files that could not be imported, and why pytest itself gave up, if it did."""
    failures: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Id -> the exception or failed assertion in one line, without addresses, durations or private paths."""
    tampered: bool = False
    """The code under test replaced parts of pytest that decide outcomes; `outcomes` are all `MISSING`."""
    wall_s: float = 0.0
    returncode: int = 0
    events: tuple[str, ...] = ()
    """Kinds of audit events that the watched sources caused, in order; none where nothing was watched, or all were lost."""

    @property
    def passed(self) -> bool:
        """True when there was at least one test and every one passed."""
        return bool(self.outcomes) and all(outcome is Outcome.PASSED for outcome in self.outcomes.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeRunner:
    """Runs a project's tests and other programs over its code, each in a fresh sandbox.

    Configuration files and conftests are the tree's own: a grader must see to it that they are not the agent's.
    """

    sandbox: Sandbox
    python: Path
    """The interpreter; it has what the code imports."""
    python_path: Sequence[str] = (".",)
    """Folders of the tree that are put on `sys.path`."""
    limits: Limits = dataclasses.field(default_factory=Limits)
    fresh: bool = False
    """Start an interpreter for each run, instead of forking a running one: objects then have other addresses."""

    language: ClassVar[str] = "python"
    """Name of the language whose tests it runs."""

    def run(self, tree: Tree, test_ids: Sequence[str], extra_args: Sequence[str] = (), *, watched: Sequence[str] = ()) -> TestRun:
        """Run the tests named by `test_ids` (all that pytest finds when empty).

        An id is a pytest node id; one that names a file, class or parametrized function stands for all tests in it. `watched`
        are regular expressions of paths: what these sources do is noted in `TestRun.events`.

        Raises:
            SandboxError: the sandbox broke.
            TaskError: the interpreter has no pytest.
        """
        if not watched:
            return _test_run(*self._drive(tree, test_ids, extra_args), test_ids)
        mark = secrets.token_hex(16)
        result, answer = self._drive(tree, test_ids, extra_args, mark=mark, observer=event_observer(mark, watched))
        return dataclasses.replace(_test_run(result, answer, test_ids), events=events_in(result.channel, mark))

    def run_twice(self, tree: Tree, test_ids: Sequence[str]) -> tuple[TestRun, TestRun]:
        """Do `run` twice in one sandbox: the tests are collected once, and each run starts from a fork of that state.

        The limits are those of both runs together. They share the files of the sandbox, so a test that trips over what it left
        behind fails in the second. A first run that died has only `MISSING` outcomes.
        """
        result, answer = self._drive(tree, test_ids, twice=True)
        second = _test_run(result, answer, test_ids)
        if answer is None or second.tampered:
            return second, second
        first = _test_run(result, {**answer, "outcomes": answer.get("earlier"), "failures": {}}, test_ids)
        return first, second

    def run_with_coverage(self, tree: Tree, extra_args: Sequence[str] = ()) -> tuple[TestRun, CoverageByTest]:
        """Run all tests, and record which test executed which line. Raises TaskError when the interpreter has no coverage."""
        result, answer = self._drive(tree, (), extra_args, coverage=True)
        return _test_run(result, answer, ()), _coverage((answer or {}).get("coverage"))

    def run_observed(self, tree: Tree, observer: Mapping[str, Any], extra_args: Sequence[str] = ()) -> tuple[TestRun, Any]:
        """Run all tests, and return what an observer in the test process saw; None when the run did not get to its end.

        Args:
            observer: `programs`, texts run one after the other before pytest starts, the last of which defines `start(options)`,
                and the `options`. What `start` returns is called after the last test and returns JSON data.
        """
        result, answer = self._drive(tree, (), extra_args, observer=observer)
        return _test_run(result, answer, ()), (answer or {}).get("observed")

    def why_nothing_ran(self, tree: Tree, extra_args: Sequence[str]) -> list[str]:
        """Return what pytest says in plain words, where a run gave not a single outcome; nothing where it found no test."""
        argv = (str(self.python), "-s", "-B", "-m", "pytest", "-q", "--collect-only", "-p", "no:cacheprovider", *extra_args)
        environment = {"PYTHONPATH": ":".join(self.python_path)}
        result = self.sandbox.run(tree, Command(argv=argv, python=self.python, env=environment))
        if result.returncode in (0, _FOUND_NOTHING):
            return []
        lines = (result.stdout + b"\n" + result.stderr).decode(errors="replace").splitlines()
        return [line.strip() for line in lines if line.strip()]

    def ask(
        self, tree: Tree, program: str, request: Mapping[str, Any], env: Mapping[str, str], *, judged: bool, mark: str = ""
    ) -> tuple[ExecResult, Any]:
        """Run a driver, which reads `request` from stdin, and return what it wrote to the channel after the request's nonce.

        None is absent, torn, not the driver's, or too long: an answer about `judged` work may take less of the host's memory.
        Events behind `mark` may stand before the answer.
        """
        nonce = secrets.token_hex(16)
        command = Command(
            argv=(str(self.python), *(_FRESH_FLAGS if self.fresh else WARM_FLAGS), program),
            python=self.python,
            stdin=json.dumps({"nonce": nonce, "python_path": list(self.python_path), **request}).encode(),
            env={**env, **_OTHER_ADDRESSES} if self.fresh else env,
            limits=dataclasses.replace(self.limits, output_bytes=max(self.limits.output_bytes, _ANSWER_BYTES)),
        )
        result = self.sandbox.run(tree, command)
        answered = dataclasses.replace(result, channel=after_events(result.channel, mark)) if mark else result
        return result, read_answer(answered, nonce, _MOST_JUDGED if judged else _MOST_UNPACKED)

    def _drive(
        self, tree: Tree, test_ids: Sequence[str], extra_args: Sequence[str] = (), *, mark: str = "", **options: Any
    ) -> tuple[ExecResult, dict[str, Any] | None]:
        ordered = {"ids": list(test_ids), "extra": list(extra_args), "plugins": plugins_of(self.sandbox, self.python)}
        request = {"coverage": False, "observer": None, "twice": False, **ordered, **options}
        require_modules(self.sandbox, self.python, "pytest", *(["coverage"] if request["coverage"] else []))
        result, answer = self.ask(tree, program_of("pytest_driver"), request, _ENVIRONMENT, judged=bool(test_ids), mark=mark)
        return result, answer if isinstance(answer, dict) else None


def require_modules(sandbox: Sandbox, python: Path, *names: str) -> None:
    """Refuse an interpreter that cannot import one of `names`, by what it says of itself before any code under test runs.

    Raises:
        TaskError: one is missing, or `python` does not run.
        SandboxError: it did not answer in time.
    """
    missing = [name for name in names if name not in sandbox.installation(python).modules]
    if missing:
        raise TaskError(f"{python} has no {missing[0]}", fix=f"{python} -m pip install {missing[0]}")


def plugins_of(sandbox: Sandbox, python: Path) -> list[str]:
    """Return the modules of the installed pytest plugins that runs load. Raises TaskError and SandboxError."""
    return [module for name, module in sandbox.installation(python).pytest_plugins if name not in _SKIPPED_PLUGINS]


def read_answer(result: ExecResult, nonce: str, most: int = _MOST_UNPACKED) -> Any:
    """Return what a driver wrote to the channel after its nonce, or None: absent, torn, above `most` bytes or not the
    driver's."""
    head, body = result.channel[: len(nonce)], result.channel[len(nonce) :]
    if result.ending is not Ending.EXITED or not secrets.compare_digest(head, nonce.encode()):
        return None
    try:
        unpacking = zlib.decompressobj()
        text = unpacking.decompress(body, most)
        return json.loads(text) if unpacking.eof else None
    except (ValueError, RecursionError, zlib.error):
        return None


def _coverage(measured: Any) -> CoverageByTest:
    """Read what `start_coverage` sent: sets of tests, and by file and line the number of a set. Another shape counts as none."""
    try:
        sets = [frozenset(map(str, tests)) for tests in measured["tests"]]
        return {path: {int(line): sets[index] for line, index in table.items()} for path, table in measured["files"].items()}
    except (KeyError, IndexError, TypeError, ValueError, AttributeError):
        return {}


def _said(text: object) -> str:
    """Return what code under test said, fit for a report: short, and nothing that a terminal obeys."""
    words = str(text)
    return visible(words if len(words) <= _LONGEST_MESSAGE else words[:_LONGEST_MESSAGE] + "...")


def _test_run(result: ExecResult, answer: dict[str, Any] | None, test_ids: Sequence[str]) -> TestRun:
    """Read a test run. Code that finds the nonce can send anything: an answer of another shape counts as none."""
    unanswered = TestRun(
        outcomes=dict.fromkeys(test_ids, Outcome.MISSING),
        ending=result.ending,
        wall_s=result.wall_s,
        returncode=result.returncode,
    )
    if answer is None:
        return unanswered
    try:
        if answer["tampered"]:
            why = ("the code under test replaced parts of pytest",)
            return dataclasses.replace(unanswered, tampered=True, collect_errors=why)
        return _answered_run(unanswered, result, answer, test_ids)
    except (KeyError, TypeError, ValueError, AttributeError):
        return unanswered


def _answered_run(unanswered: TestRun, result: ExecResult, answer: dict[str, Any], test_ids: Sequence[str]) -> TestRun:
    """Read a test run. Raises KeyError, TypeError, ValueError or AttributeError on an answer of another shape."""
    seen = {str(test_id): Outcome(outcome) for test_id, outcome in answer["outcomes"].items()}
    outcomes = {**unanswered.outcomes, **seen}
    for wanted in test_ids:
        if outcomes[wanted] is Outcome.MISSING and any(t.startswith((wanted + "::", wanted + "[")) for t in seen):
            del outcomes[wanted]
    failures = {str(test_id): _said(message) for test_id, message in answer["failures"].items() if test_id in outcomes}
    errors = answer["collect_errors"]
    if not isinstance(errors, list):
        raise TypeError("collect_errors is no list")
    starved = any(message.startswith("MemoryError") for message in failures.values())
    return dataclasses.replace(
        unanswered,
        outcomes=outcomes,
        ending=Ending.OUT_OF_MEMORY if starved else result.ending,
        collect_errors=tuple(_said(error) for error in (*errors[:_MOST_ERRORS], *_gave_up(answer["status"], result))),
        failures=failures,
    )


def _gave_up(status: int, result: ExecResult) -> list[str]:
    """Return one line when pytest stopped on an internal or usage error."""
    internal_error, usage_error = 3, 4
    if status not in (internal_error, usage_error):
        return []
    said = (result.stderr.strip() or result.stdout.strip()).decode(errors="replace").splitlines()
    return [f"pytest gave up: {said[-1].strip() if said else f'exit status {status}'}"]
