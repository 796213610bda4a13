"""What holds for all tests: the tools are importable; hypothesis sets no clock on an example, as machines are busy.

With CI set in the environment hypothesis draws the same examples every time, so that a change is judged by what it changed.
What the commands print is wide enough for any folder of tests: a wrapped line would hide the words that a test looks for.
At the end of a run stand the tests that cost more than a CPU-second and are not marked slow. It is a report, never a failure.
What a fixture of the whole session costs is no test's. The tests marked long begin first.

With `--minutes N` no test begins after so many minutes, and those that are left are skipped aloud. The tests marked long are then
left out, and the others come in an order that the commit decides, so that each commit tries other ones.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import time
from collections.abc import Generator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

sys.path.insert(0, str(Path(__file__).parent / "tools"))
os.environ["TERMINAL_WIDTH"] = "400"  # read by typer when it is imported: https://github.com/fastapi/typer, rich_utils.py

settings.register_profile("untimed", deadline=None, derandomize="CI" in os.environ, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")

INNER_LOOP_CPU_S = 1.0
SHARED = pytest.StashKey[float]()
STARTED = pytest.StashKey[float]()
BEGAN = pytest.StashKey[float]()


def cpu_s(config: pytest.Config) -> float:
    """CPU-seconds of this process and of what it has started, without those of session fixtures."""
    return sum(os.times()[:4]) + living_children_cpu_s() - config.stash.get(SHARED, 0.0)


def living_children_cpu_s() -> float:
    """CPU-seconds of the living children, such as a launcher of boxes, and of their ended ones, where Linux's /proc tells."""
    children = [pid for path in Path("/proc/self/task").glob("*/children") for pid in content(path).split()]
    stats = [content(Path(f"/proc/{pid}/stat")).rpartition(")")[2].split() for pid in children]
    return sum(int(ticks) for fields in stats for ticks in fields[11:15]) / os.sysconf("SC_CLK_TCK")


def content(path: Path) -> str:
    """Return the text of a file in /proc; empty when its thread or process has just ended."""
    try:
        return path.read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""


class SessionFixtures:
    """A plugin for itself: pytest does not ask the hooks of this file about fixtures of the session, which stands above it."""

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(
        self, fixturedef: pytest.FixtureDef[object], request: pytest.FixtureRequest
    ) -> Generator[None, object, object]:
        if fixturedef.scope != "session":
            return (yield)
        before = cpu_s(request.config)
        made = yield
        request.config.stash[SHARED] = request.config.stash.get(SHARED, 0.0) + cpu_s(request.config) - before
        return made


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--minutes", type=float, help="begin no test after so many minutes, and none of those marked long")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(SessionFixtures())
    config.stash[BEGAN] = time.monotonic()


def pytest_runtest_setup(item: pytest.Item) -> None:
    minutes = item.config.getoption("--minutes")
    if minutes is not None and time.monotonic() - item.config.stash[BEGAN] > 60 * minutes:
        pytest.skip(f"{minutes:g} minutes are up")


def in_the_order_of_the_commit(items: list[pytest.Item]) -> list[pytest.Item]:
    """The same on every worker, as xdist demands."""
    command = ["git", "rev-parse", "HEAD"]
    commit = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, check=False).stdout
    return sorted(items, key=lambda item: hashlib.sha256(f"{commit}{item.nodeid}".encode()).digest())


@pytest.hookimpl(trylast=True)  # after tests were left out
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Let every worker begin with its part of the long tests: xdist gives each an equal piece of the list, and a long test at the
    end of one would run alone while the others have nothing left."""
    if config.getoption("--minutes") is not None:
        items[:] = in_the_order_of_the_commit([item for item in items if not item.get_closest_marker("long")])
        return
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    long = [item for item in items if item.get_closest_marker("long")]
    rest = [item for item in items if not item.get_closest_marker("long")]
    left, items[:] = len(items), []
    for worker in range(workers):
        piece = left // (workers - worker)
        first = long[worker::workers]
        items += first + rest[: piece - len(first)]
        del rest[: piece - len(first)]
        left -= piece
    items += rest


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    item.stash[STARTED] = cpu_s(item.config)
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if call.when == "teardown":
        report.cpu_s = cpu_s(item.config) - item.stash[STARTED]  # an attribute, because xdist sends those of a report on
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if config.pluginmanager.hasplugin("_cov"):  # measuring coverage costs CPU time as well
        return
    reports = [report for reports in terminalreporter.stats.values() for report in reports if hasattr(report, "cpu_s")]
    total = sum(report.cpu_s for report in reports)
    terminalreporter.section(f"CPU-seconds: {total:.0f} in {len(reports)} tests")
    for report in sorted(reports, key=lambda report: -report.cpu_s):
        if report.cpu_s > INNER_LOOP_CPU_S and "slow" not in report.keywords:
            terminalreporter.write_line(f"{report.cpu_s:6.1f} s, and not marked slow: {report.nodeid}")
