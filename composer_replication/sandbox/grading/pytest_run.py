"""Run tests in a sandbox and read each id's outcome over the private channel, never from printed output."""

from __future__ import annotations

import dataclasses
import json
import secrets
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

from composer_replication.sandbox.protocol import Command, Ending, ExecResult, Limits, Sandbox, Tree
from composer_replication.sandbox.request import WARM_FLAGS
from composer_replication.types import Outcome
from composer_replication.types.errors import TaskError

__all__ = [
    "MOST_JUDGED",
    "CoverageByTest",
    "TestRun",
    "collect_tests",
    "plugins_of",
    "read_answer",
    "run_pytest",
    "run_pytest_observed",
    "run_pytest_twice",
    "run_pytest_with_coverage",
]

CoverageByTest: TypeAlias = dict[str, dict[int, frozenset[str]]]
"""Path relative to the root -> line number -> ids of the tests that executed it (lines run at import only are left out)."""

_SKIPPED_PLUGINS = frozenset(
    {
        "anyio",
        "benchmark",
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

_ANSWER_BYTES = 64 << 20
_MOST_UNPACKED, MOST_JUDGED = 256 << 20, 16 << 20
"""Limits on an unpacked answer, in bytes: about trusted code, and about judged work. A forged answer must not exhaust the host's
memory, and as Python objects it may be twenty times as large."""
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
    cpu_s: float = 0.0
    returncode: int = 0

    @property
    def passed(self) -> bool:
        """True when there was at least one test and every one passed."""
        return bool(self.outcomes) and all(outcome is Outcome.PASSED for outcome in self.outcomes.values())


def run_pytest(
    sandbox: Sandbox,
    tree: Tree,
    *,
    python: Path,
    test_ids: Sequence[str],
    python_path: Sequence[str] = (".",),
    limits: Limits | None = None,
    extra_args: Sequence[str] = (),
) -> TestRun:
    """Run the tests named by `test_ids` (all that pytest finds when empty) in one sandbox over `tree`.

    An id is a pytest node id; one that names a file, class or parametrized function stands for all tests in it. Configuration
    files and conftests are the tree's own: a grader must see to it that they are not the agent's.

    Raises:
        SandboxError: the sandbox broke.
        TaskError: `python` has no pytest.
    """
    result, answer = _drive(sandbox, tree, python, test_ids, python_path, limits, extra_args)
    return _test_run(result, answer, test_ids)


def run_pytest_twice(
    sandbox: Sandbox,
    tree: Tree,
    *,
    python: Path,
    test_ids: Sequence[str],
    python_path: Sequence[str] = (".",),
    limits: Limits | None = None,
) -> tuple[TestRun, TestRun]:
    """Do `run_pytest` twice in one sandbox: the tests are collected once, and each run starts from a fork of that state.

    `limits` are those of both runs together. They share the files of the sandbox, so a test that trips over what it left behind
    fails in the second. A first run that died has only `MISSING` outcomes.
    """
    result, answer = _drive(sandbox, tree, python, test_ids, python_path, limits, (), twice=True)
    second = _test_run(result, answer, test_ids)
    if answer is None or second.tampered:
        return second, second
    first = _test_run(result, {**answer, "outcomes": answer.get("earlier"), "failures": {}}, test_ids)
    return first, second


def run_pytest_with_coverage(
    sandbox: Sandbox,
    tree: Tree,
    *,
    python: Path,
    test_ids: Sequence[str] = (),
    python_path: Sequence[str] = (".",),
    limits: Limits | None = None,
    extra_args: Sequence[str] = (),
) -> tuple[TestRun, CoverageByTest]:
    """Do `run_pytest` and record which test executed which line. Raises TaskError when `python` has no coverage."""
    result, answer = _drive(sandbox, tree, python, test_ids, python_path, limits, extra_args, coverage=True)
    measured = (answer or {}).get("coverage") or {"tests": [], "files": {}}
    sets = [frozenset(tests) for tests in measured["tests"]]
    lines = {path: {int(line): sets[index] for line, index in table.items()} for path, table in measured["files"].items()}
    return _test_run(result, answer, test_ids), lines


def run_pytest_observed(
    sandbox: Sandbox,
    tree: Tree,
    *,
    python: Path,
    observer: Mapping[str, Any],
    python_path: Sequence[str] = (".",),
    limits: Limits | None = None,
    extra_args: Sequence[str] = (),
) -> tuple[TestRun, Any]:
    """Do `run_pytest` for all tests, and return what an observer in the test process saw; None when the run did not get to its
    end.

    Args:
        observer: `programs`, texts run one after the other before pytest starts, the last of which defines `start(options)`, and
            the `options`. What `start` returns is called after the last test and returns JSON data.
    """
    result, answer = _drive(sandbox, tree, python, (), python_path, limits, extra_args, observer=observer)
    return _test_run(result, answer, ()), (answer or {}).get("observed")


def collect_tests(
    sandbox: Sandbox,
    tree: Tree,
    *,
    python: Path,
    python_path: Sequence[str] = (".",),
    limits: Limits | None = None,
    extra_args: Sequence[str] = (),
) -> tuple[tuple[str, ...], TestRun]:
    """Return every test id pytest finds in the tree, without running one; the run reports errors."""
    result, answer = _drive(sandbox, tree, python, (), python_path, limits, extra_args, collect_only=True)
    return tuple((answer or {}).get("collected", ())), _test_run(result, answer, ())


def plugins_of(sandbox: Sandbox, python: Path) -> list[str]:
    """Return the modules of the installed pytest plugins that runs load. Raises TaskError and SandboxError."""
    return [module for name, module in sandbox.installation(python).pytest_plugins if name not in _SKIPPED_PLUGINS]


def _drive(
    sandbox: Sandbox,
    tree: Tree,
    python: Path,
    test_ids: Sequence[str],
    python_path: Sequence[str],
    limits: Limits | None,
    extra_args: Sequence[str],
    *,
    coverage: bool = False,
    collect_only: bool = False,
    observer: Mapping[str, Any] | None = None,
    twice: bool = False,
) -> tuple[ExecResult, dict[str, Any] | None]:
    nonce = secrets.token_hex(16)
    request = {
        "nonce": nonce,
        "ids": list(test_ids),
        "python_path": list(python_path),
        "extra": list(extra_args),
        "plugins": plugins_of(sandbox, python),
        "coverage": coverage,
        "collect_only": collect_only,
        "observer": observer,
        "twice": twice,
    }
    limits = limits or Limits()
    command = Command(
        argv=(str(python), *WARM_FLAGS, _driver_source()),
        python=python,
        stdin=json.dumps(request).encode(),
        env=_ENVIRONMENT,
        limits=dataclasses.replace(limits, output_bytes=max(limits.output_bytes, _ANSWER_BYTES)),
    )
    result = sandbox.run(tree, command)
    last_line = result.stderr.rstrip().rpartition(b"\n")[2].decode(errors="replace")
    if result.ending is Ending.EXITED and result.returncode == 1 and last_line.startswith("ModuleNotFoundError"):
        for name in ("pytest", "coverage"):
            if last_line.endswith(f"No module named '{name}'"):
                raise TaskError(f"{python} has no {name}", fix=f"{python} -m pip install {name}")
    answer = read_answer(result, nonce, MOST_JUDGED if test_ids else _MOST_UNPACKED)
    return result, answer if isinstance(answer, dict) else None


@cache
def _driver_source() -> str:
    return Path(__file__).with_name("pytest_driver.py").read_text(encoding="utf-8")


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


def _test_run(result: ExecResult, answer: dict[str, Any] | None, test_ids: Sequence[str]) -> TestRun:
    """Read a test run. Code that finds the nonce can send anything: an answer of another shape counts as none."""
    tampered = False
    if answer is not None:
        try:
            tampered = bool(answer["tampered"])
            if not tampered:
                return _answered_run(result, answer, test_ids)
        except (KeyError, TypeError, ValueError, AttributeError):
            tampered = False
    return TestRun(
        outcomes=dict.fromkeys(test_ids, Outcome.MISSING),
        ending=result.ending,
        collect_errors=("the code under test replaced parts of pytest",) if tampered else (),
        tampered=tampered,
        wall_s=result.wall_s,
        cpu_s=result.cpu_s,
        returncode=result.returncode,
    )


def _answered_run(result: ExecResult, answer: dict[str, Any], test_ids: Sequence[str]) -> TestRun:
    """Read a test run. Raises KeyError, TypeError, ValueError or AttributeError on an answer of another shape."""
    seen = {str(test_id): Outcome(outcome) for test_id, outcome in answer["outcomes"].items()}
    outcomes = {**dict.fromkeys(test_ids, Outcome.MISSING), **seen}
    for wanted in test_ids:
        if outcomes[wanted] is Outcome.MISSING and any(t.startswith((wanted + "::", wanted + "[")) for t in seen):
            del outcomes[wanted]
    failures = {str(test_id): str(message) for test_id, message in answer["failures"].items()}
    starved = any(message.startswith("MemoryError") for message in failures.values())
    return TestRun(
        outcomes=outcomes,
        ending=Ending.OUT_OF_MEMORY if starved else result.ending,
        collect_errors=tuple(str(error) for error in (*answer["collect_errors"], *_gave_up(answer["status"], result))),
        failures=failures,
        wall_s=result.wall_s,
        cpu_s=result.cpu_s,
        returncode=result.returncode,
    )


def _gave_up(status: int, result: ExecResult) -> list[str]:
    """Return one line when pytest stopped on an internal or usage error."""
    internal_error, usage_error = 3, 4
    if status not in (internal_error, usage_error):
        return []
    said = (result.stderr.strip() or result.stdout.strip()).decode(errors="replace").splitlines()
    return [f"pytest gave up: {said[-1].strip() if said else f'exit status {status}'}"]
