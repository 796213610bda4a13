"""The program that runs pytest inside a sandbox: its source is passed on the command line, its request on stdin.

It is self-contained (standard library, pytest and, when asked, coverage), and answers once, over the private channel: the nonce
of the request followed by zlib-compressed JSON. What an observer writes there stands before it. Nothing it says on stdout or
stderr counts.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import sys
import zlib
from collections.abc import Callable, Generator
from typing import Any

sys.path[:] = [entry for entry in sys.path if entry not in ("", os.getcwd())]

import pytest  # noqa: E402  - only after the tree's root has left sys.path, where the code under test could shadow it

_MESSAGE_LENGTH = 300
_RANK = {"missing": 0, "passed": 1, "skipped": 2, "xfailed": 2, "xpassed": 2, "failed": 3, "error": 4}
_GUARDED = (
    ("_pytest.runner", "CallInfo.from_call"),
    ("_pytest.runner", "call_and_report"),
    ("_pytest.runner", "pytest_runtest_makereport"),
    ("_pytest.reports", "TestReport.from_item_and_call"),
    ("_pytest.python", "Function.runtest"),
    ("_pytest.python", "pytest_pyfunc_call"),
    ("_pytest.assertion.rewrite", "AssertionRewritingHook.exec_module"),
    ("_pytest.unittest", "TestCaseFunction.runtest"),
    ("_pytest.unittest", "TestCaseFunction.addFailure"),
    ("_pytest.unittest", "TestCaseFunction.addError"),
    ("unittest.case", "TestCase.run"),
    ("unittest.case", "TestCase._callTestMethod"),
    ("unittest.case", "TestCase.assertEqual"),
    ("unittest.case", "TestCase.fail"),
    *(("builtins", name) for name in ("isinstance", "issubclass", "type", "bool", "len", "any", "all", "BaseException")),
    *(("builtins", name) for name in ("Exception", "AssertionError", "NotImplementedError", "KeyboardInterrupt")),
)
"""Functions that decide a test's outcome in pytest and below it; code under test that replaces one of them has forged its
result."""


_NAMED_BY_TESTS = {"anyio.pytest_plugin": b"anyio", "pytest_benchmark.plugin": b"benchmark"}
"""Plugins that take a while to import, and a word that stands in some test file or conftest of a project that needs one."""
_PLUGIN_ARGUMENTS = {"pytest_benchmark.plugin": "--benchmark-disable"}
"""Arguments under which a plugin runs each test once and measures nothing."""


class OutcomeRecorder:
    """A pytest plugin that selects the ordered tests and writes down what became of each."""

    def __init__(self, wanted: list[str], clean: Callable[[str], str], *, twice: bool = False) -> None:
        self.wanted = wanted
        self.names = {part.partition("[")[0] for node_id in wanted for part in node_id.split("::")[1:]}
        self.whole_files = {node_id for node_id in wanted if "::" not in node_id}
        self.twice = twice
        self.earlier: dict[str, str] = {}
        self.clean = clean
        self.collected: list[str] = []
        self.outcomes: dict[str, str] = {}
        self.failures: dict[str, str] = {}
        self.collect_errors: list[str] = []
        self.switch_context: Callable[[str], object] = str

    @pytest.hookimpl(tryfirst=True)
    def pytest_pycollect_makeitem(self, collector: pytest.Collector, name: str) -> list[pytest.Item] | None:
        """Make no item of a function that nothing ordered names; which names of a class are ordered is not looked at."""
        if not self.wanted or name in self.names or not isinstance(collector, pytest.Module):
            return None
        return None if collector.nodeid in self.whole_files else []

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> Generator[None, object, object]:
        """Run everything once before, if requested: in a fork, so that both runs start from the same collected state."""
        if self.twice and not session.config.option.collectonly:
            outcomes_fd = os.memfd_create("outcomes")
            child = os.fork()
            if child == 0:
                try:
                    yield
                    os.pwrite(outcomes_fd, json.dumps(self.outcomes).encode(), 0)
                finally:
                    os._exit(0)
            os.waitpid(child, 0)
            with open(outcomes_fd, "rb") as file:
                self.earlier = json.loads(file.read() or b"{}")
        return (yield)

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        if self.wanted:
            exact = set(self.wanted)
            wholes = tuple(w + end for w in self.wanted for end in ("::", "["))
            chosen = [item.nodeid in exact or item.nodeid.startswith(wholes) for item in items]
            config.hook.pytest_deselected(items=[item for item, taken in zip(items, chosen, strict=True) if not taken])
            items[:] = [item for item, taken in zip(items, chosen, strict=True) if taken]
        self.collected = [item.nodeid for item in items]

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.collect_errors.append(f"{report.nodeid}: {self.clean(message_of(report.longrepr))}")
            for wanted in self.wanted:
                if wanted.partition("::")[0] == report.nodeid.partition("::")[0]:
                    self._note(wanted, "error", report.longrepr)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        outcome: str = report.outcome
        if hasattr(report, "wasxfail"):
            outcome = {"skipped": "xfailed", "passed": "xpassed"}.get(outcome, outcome)
        elif outcome == "failed" and report.when != "call":
            outcome = "error"
        if outcome != "passed" or report.when == "call":
            self._note(report.nodeid, outcome, report.longrepr)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        self.switch_context(item.nodeid)
        result = yield
        self.switch_context("")
        return result

    def _note(self, nodeid: str, outcome: str, longrepr: object) -> None:
        before = self.outcomes.get(nodeid, "missing")
        if outcome not in _RANK or _RANK[outcome] <= _RANK[before]:
            return
        self.outcomes[nodeid] = outcome
        if outcome in ("failed", "error"):
            self.failures[nodeid] = self.clean(message_of(longrepr))


def message_of(longrepr: object) -> str:
    """Return the line that says what went wrong: an exception with its message, or a failed assertion."""
    crash = getattr(longrepr, "reprcrash", None)
    if crash is not None:
        return str(crash.message).strip().partition("\n")[0]
    lines = [line.strip() for line in str(longrepr).splitlines() if line.strip()]
    errors = [line[1:].strip() for line in lines if re.match(r"E\s", line)]
    return (errors or lines or [""])[-1]


def cleaner() -> Callable[[str], str]:
    """Take addresses and private folders out of a message, so that equal runs read equal."""
    places = [(os.getcwd(), "/repo"), (os.environ.get("TMPDIR", "/tmp"), "/tmp")]

    def clean(text: str) -> str:
        for place, name in places:
            text = text.replace(place, name)
        return re.sub(r"0x[0-9a-fA-F]{4,}", "0x...", text)[:_MESSAGE_LENGTH]

    return clean


def guarded_code() -> list[object]:
    """Return the identity of every function that decides outcomes."""
    found: list[object] = []
    for module, path in _GUARDED:
        target: Any = importlib.import_module(module)
        for name in path.split("."):
            target = getattr(target, name, None)
        function = getattr(target, "__func__", target)
        found.append((id(function), id(getattr(function, "__code__", None))))
    return found


def run(request: dict[str, Any]) -> dict[str, Any]:
    """Carry out the request and return the answer."""
    wanted: list[str] = request["ids"]
    recorder = OutcomeRecorder(wanted, cleaner(), twice=request["twice"])
    sys.path[:0] = [os.path.normpath(os.path.join(os.getcwd(), p)) for p in request["python_path"]]
    files = list(dict.fromkeys(w.partition("::")[0] for w in wanted))
    arguments = ["-q", "--tb=no", f"--rootdir={os.getcwd()}", "-p", "no:cacheprovider", "-o", "required_plugins="]
    arguments += ["--continue-on-collection-errors", *request["extra"]]
    arguments += [name for name in files if os.path.exists(name)]
    chosen = needed_plugins(request["plugins"])
    arguments += [_PLUGIN_ARGUMENTS[name] for name in chosen if name in _PLUGIN_ARGUMENTS]
    plugins: list[object] = [recorder, *map(importlib.import_module, chosen)]
    coverage = start_coverage(recorder) if request["coverage"] else None
    observed = start_observer(request["observer"]) if request["observer"] else None
    before = guarded_code()
    status = 0
    if not files or any(os.path.exists(name) for name in files):
        status = int(pytest.main([*arguments], plugins))
        if status == pytest.ExitCode.USAGE_ERROR and not recorder.collected:
            status = int(pytest.main(["-o", "addopts=", *arguments], plugins))
    return {
        "status": status,
        "collected": recorder.collected,
        "outcomes": recorder.outcomes,
        "earlier": recorder.earlier,
        "failures": recorder.failures,
        "collect_errors": recorder.collect_errors,
        "tampered": guarded_code() != before,
        "coverage": None if coverage is None else coverage(),
        "observed": None if observed is None else observed(),
    }


def needed_plugins(plugins: list[str]) -> list[str]:
    """Return plugins without those that no test file and no conftest of the tree names: the same for every run in it."""
    if not _NAMED_BY_TESTS.keys() & set(plugins):
        return plugins
    text = b"".join(content(path) for path in test_files())
    return [name for name in plugins if _NAMED_BY_TESTS.get(name, b"") in text]


def test_files() -> list[str]:
    """Return the Python files in folders of tests, those that pytest takes for tests by their names, and every conftest."""
    found = []
    for folder, _, names in os.walk("."):
        among = not {"test", "tests"}.isdisjoint(folder.split(os.sep))
        for name in names:
            likely = among or name.startswith("test_") or name.endswith("_test.py") or name == "conftest.py"
            if name.endswith(".py") and likely:
                found.append(os.path.join(folder, name))
    return sorted(found)


def content(path: str) -> bytes:
    """Return what a file holds; nothing where it is none."""
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return b""


def start_observer(observer: dict[str, Any]) -> Callable[[], Any]:
    """Run the observer's programs one after the other in one namespace, and its `start(options)`; what that returns stops it."""
    place: dict[str, Any] = {"__name__": "observer"}
    for program in observer["programs"]:
        exec(compile(program, "<observer>", "exec"), place)
    stop: Callable[[], Any] = place["start"](observer["options"])
    return stop


def start_coverage(recorder: OutcomeRecorder) -> Callable[[], dict[str, Any]]:
    """Measure lines of the tree per test; the returned function stops and tells: sets of tests, and line -> set per file."""
    import coverage

    measured = coverage.Coverage(data_file=None, config_file=False, source=[os.getcwd()], messages=False)
    measured.start()
    recorder.switch_context = measured.switch_context

    def stop() -> dict[str, Any]:
        measured.stop()
        data = measured.get_data()
        table: dict[tuple[str, ...], int] = {}
        files: dict[str, dict[int, int]] = {}
        for name in sorted(data.measured_files()):
            lines = {
                line: table.setdefault(tests, len(table))
                for line, contexts in sorted(data.contexts_by_lineno(name).items())
                if (tests := tuple(sorted(c for c in contexts if c)))
            }
            if lines:
                files[os.path.relpath(name)] = lines
        return {"tests": list(table), "files": files}

    return stop


def main() -> None:
    """Read a request from stdin, run, answer, and end without running exit handlers."""
    channel = int(os.environ.pop("COMPOSER_RESULT_FD"))
    with open(0, "rb", closefd=False) as stdin:
        request = json.loads(stdin.read())
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    exit_now, write, dumps, compress = os._exit, os.write, json.dumps, zlib.compress
    nonce = request.pop("nonce")
    if request["observer"]:
        request["observer"]["options"]["channel"] = channel
    answer = nonce.encode() + compress(dumps(run(request)).encode())
    while answer:
        answer = answer[write(channel, answer) :]
    exit_now(0)


if __name__ == "__main__":
    main()
