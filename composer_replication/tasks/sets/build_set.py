"""Many sources turned into one set of tasks, a few at a time, each in a process of its own; resumable at any moment."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from composer_replication.observe.files import exclusive
from composer_replication.sandbox.program import RunningProgram
from composer_replication.tasks.files import read_json, storage_errors, write_whole
from composer_replication.tasks.folders import SET_REPORT, left_out_of
from composer_replication.tasks.report import BUILD_REPORT, BuildOptions
from composer_replication.tasks.sets import one_build
from composer_replication.tasks.sets.duplicates import find_duplicates
from composer_replication.tasks.sets.one_build import COST, OPTIONS, REFUSED, REQUEST, order_of
from composer_replication.tasks.sets.report import SetReport, SourceOutcome
from composer_replication.tasks.sets.sources_file import folders_of
from composer_replication.tasks.sources.fetch import without_password
from composer_replication.tasks.sources.source import SOURCE_RECORD, STATE
from composer_replication.tasks.store import MANIFEST
from composer_replication.types.errors import ConfigError, TaskError

_LOG = f"{STATE}/build.log"
_MARK = b'{"set": "set.json"}'
_POLL_S, _PATIENCE_S = 0.1, 10.0
_NONE_VALID = "none of its {} candidates could be validated"


def build_set(
    sources: Sequence[str],
    out: Path,
    options: BuildOptions,
    *,
    retry: bool = False,
    progress: Callable[[SourceOutcome], None] | None = None,
) -> SetReport:
    """Build every source into a folder of its own below `out`, `options.jobs` at a time.

    A source that cannot be built is reported with its reason, and does not stop the others. The same call continues an
    interrupted one; what is built, or was refused for a reason that lasts, is not built again.

    Args:
        options: of every build. With fewer sources than jobs, each validates some candidates at once.
        retry: try refused sources again.
        progress: called from this thread with each source that is done, in the order of the list.

    Raises:
        ConfigError: another process builds into `out`, `out` holds a single build or a source.
        StorageError: `out` cannot be written.
    """
    _check_place(sources, out)
    with storage_errors(out):
        out.mkdir(parents=True, exist_ok=True)
    write_whole(out / STATE / SOURCE_RECORD, _MARK)  # else tasks in a folder that is a source would be part of it
    at_once = max(1, min(options.jobs, len(sources)))
    builds = _Builds(out, replace(options, jobs=max(1, options.jobs // at_once)), folders_of(sources), retry)
    done: list[SourceOutcome] = []
    left_out = left_out_of(out)
    with exclusive(out), ThreadPoolExecutor(at_once, thread_name_prefix="build") as threads:
        try:
            for outcome in threads.map(builds.build, sources):
                done.append(outcome)
                if progress is not None:
                    progress(outcome)
                _write(out, SetReport(sources=tuple(done), left_out=left_out))
        except BaseException:
            builds.stop()
            threads.shutdown(wait=False, cancel_futures=True)
            raise
    report = SetReport(sources=tuple(done), left_out=find_duplicates(out))
    _write(out, report)
    return report


class _Builds:
    """The builds of a set's sources."""

    def __init__(self, out: Path, options: BuildOptions, folders: Mapping[str, str], retry: bool) -> None:
        self._out, self._options, self._folders, self._retry = out, options, folders, retry
        self._stopping = threading.Event()

    def stop(self) -> None:
        """End the builds that run; others do not begin."""
        self._stopping.set()

    def build(self, source: str) -> SourceOutcome:
        """Build one source, unless that is done already."""
        folder = self._out / self._folders[source]
        known = self._known(source, folder)
        if known is not None or self._stopping.is_set():
            return known or self._outcome(source)
        start = time.monotonic()
        code = self._run(source, folder)
        seconds = round(time.monotonic() - start, 1)
        if code is None:
            return self._outcome(source, reason="its build was stopped", fix="run the same command again")
        if code == 0:
            return self._built(source, folder, seconds)
        refusal = read_json(folder / REFUSED)
        if refusal is None:
            ended_by = code - 128 if code > 128 else -code
            how = f"signal {ended_by}" if ended_by > 0 else f"exit code {code}"
            refusal = {"reason": f"its build ended with {how}", "fix": f"read {folder / _LOG}"}
        return self._refused(source, refusal, seconds)

    def _run(self, source: str, folder: Path) -> int | None:
        """Return the exit status of a build, as `RunningProgram.poll` does; None where it was stopped."""
        with storage_errors(folder):
            (folder / STATE).mkdir(parents=True, exist_ok=True)
            for name in (REFUSED, COST):
                (folder / name).unlink(missing_ok=True)
        command = [sys.executable, "-m", one_build.__name__, str(folder)]
        request = {REQUEST: json.dumps({"source": source, "options": OPTIONS.dump_python(self._options, mode="json")})}
        with RunningProgram(command, log=folder / _LOG, environment=request, patience_s=_PATIENCE_S) as program:
            while (code := program.poll()) is None and not self._stopping.wait(_POLL_S):
                pass
        return code

    def _known(self, source: str, folder: Path) -> SourceOutcome | None:
        """Return the outcome of an earlier call where it still holds: a folder may have changed since."""
        if Path(source).is_dir():
            return None
        order = order_of(source, self._options)
        try:
            refusal = read_json(folder / REFUSED)
            if refusal is not None:
                holds = refusal["lasting"] and refusal["order"] == order and not self._retry
                return self._refused(source, refusal) if holds else None
            report = read_json(folder / BUILD_REPORT)
            if report is None or any(not (folder / name / MANIFEST).is_file() for name in report["tasks"]):
                return None
            made = {name: report["options"].get(name) for name in self._options.shaping}
            most = report["options"].get("max_tasks")
            enough = not report["stopped"] or (report["stopped"] == "max_tasks" and most == self._options.max_tasks)
            same = made == json.loads(json.dumps(self._options.shaping, default=str))
            return self._built(source, folder, 0.0) if same and enough else None
        except (KeyError, TypeError, AttributeError, TaskError):  # another release's: the build says so
            return None

    def _refused(self, source: str, refusal: Mapping[str, Any], seconds: float = 0.0) -> SourceOutcome:
        fix = "; ".join(filter(None, [refusal["fix"], "then try again with --retry" if refusal.get("lasting") else ""]))
        return self._outcome(source, reason=refusal["reason"], fix=fix, seconds=seconds)

    def _built(self, source: str, folder: Path, seconds: float) -> SourceOutcome:
        report = read_json(folder / BUILD_REPORT)
        tasks, candidates = len(report["tasks"]), report["candidates"]
        reason = "" if tasks else _NONE_VALID.format(candidates)
        fix = "" if tasks else f"see {folder / BUILD_REPORT}: dropped says why for each"
        found = {"tasks": tasks, "forgeable": report["forgeable"], "candidates": candidates}
        return self._outcome(source, **found, reason=reason, fix=fix, seconds=seconds)

    def _outcome(self, source: str, **facts: Any) -> SourceOutcome:
        cost = read_json(self._out / self._folders[source] / COST) or {}
        return SourceOutcome(source=without_password(source), folder=self._folders[source], cpu_s=cost.get("cpu_s", 0.0), **facts)


def _check_place(sources: Sequence[str], out: Path) -> None:
    if (out / BUILD_REPORT).exists():
        raise ConfigError(f"--out {out} holds the tasks of one build", fix="name another folder for the set")
    inside = next((s for s in sources if Path(s).is_dir() and Path(s).resolve().is_relative_to(out.resolve())), None)
    if inside is not None:
        raise ConfigError(f"--out {out} holds the source {inside}", fix="name a separate folder")


def _write(out: Path, report: SetReport) -> None:
    write_whole(out / SET_REPORT, json.dumps(asdict(report), indent=1).encode() + b"\n")
