"""A source turned into a folder of validated tasks, resumable at any moment.

`OUT/.build/` holds what a continued build needs: the pristine tree, the baseline and one line per decided candidate. Candidates
are taken in a fixed order and their verdicts used in that order, so neither the number of jobs nor an interruption changes the
result.
"""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from composer_replication.sandbox import Limits, open_sandbox
from composer_replication.sandbox.grading.pytest_run import CodeRunner
from composer_replication.sandbox.opening import remote_python
from composer_replication.tasks.features.decide import VERDICTS, BuildWork, Decider
from composer_replication.tasks.features.deletions import CHECKS, deletions_of
from composer_replication.tasks.files import kept, read_json, restored, storage_errors, write_whole
from composer_replication.tasks.history.clone import REPOSITORY, fetch_newest
from composer_replication.tasks.history.work import commits_of
from composer_replication.tasks.index import write_index
from composer_replication.tasks.proofs.baseline import Baseline, baseline_from_json, baseline_to_json, measure_baseline
from composer_replication.tasks.proofs.fitting import fit_environment
from composer_replication.tasks.proofs.leak import refuse_copies
from composer_replication.tasks.proofs.validate import slug_of
from composer_replication.tasks.report import BUILD_REPORT, BuildEvent, BuildOptions, BuildReport, Progress
from composer_replication.tasks.sources.accepted import AcceptedProject, accept
from composer_replication.tasks.sources.benchmarks import Benchmarks
from composer_replication.tasks.sources.environment import made_for, make_environment
from composer_replication.tasks.sources.fetch import left_open
from composer_replication.tasks.sources.source import SOURCE_RECORD, STATE, PristineTree, digest_of, fetch_source
from composer_replication.types.errors import ConfigError, SourceError, TaskError

__all__ = ["BuildEvent", "BuildOptions", "BuildReport", "build_tasks"]

_BASELINE, _FITTED = "baseline.json", "environment.json"


def build_tasks(source: str, out: Path, options: BuildOptions | None = None, *, progress: Progress | None = None) -> BuildReport:
    """Build validated tasks from `source` into the folder `out`, by deleting features or by undoing commits.

    An interrupted build is continued by the same call and gives the same tasks.

    Args:
        source: a folder, `pypi:NAME==VERSION`, `npm:NAME@VERSION`, `debian:NAME==VERSION` or a git URL (`URL@REV`). Folders of
            tasks in it, `out` among them, are not part of it.
        progress: called from this thread.

    Raises:
        ConfigError: `out` is the source's own folder, or holds it.
        SourceError: the project cannot be fetched, is a benchmark's or under another licence, holds credentials, has no tests, or
            they fail or hang.
        TaskError: `out` holds verdicts of another build, or what another release began.
        SandboxError: no sandbox is available, or the sandbox broke.
        StorageError: `out` cannot be written.
    """
    start = time.monotonic()
    options = options or BuildOptions()
    tell = progress or (lambda _: None)
    state = out / STATE
    _check_out(source, out)
    tell(BuildEvent("fetching"))
    project = accept(_pristine(source, state, options, out), options, Benchmarks(options.benchmarks))
    runner = _runner(project, out, options, tell)
    tell(BuildEvent("testing"))
    baseline = _baseline(project, runner, state, options)
    work: BuildWork[Any]
    if options.mode == "commits":
        work = commits_of(project, runner, out, state, options)
    else:
        work = deletions_of(project, baseline, runner, state, options, tell)
    run: Decider[Any] = Decider(
        out,
        state,
        work=work,
        options=options,
        tell=tell,
        deadline=None if options.budget_s is None else start + options.budget_s,
    )
    stopped = run.decide_all()
    report = BuildReport(
        source=project.fetched.label,
        source_digest=project.fetched.digest,
        licence=project.licence,
        python=str(runner.python),
        isolation=runner.sandbox.isolation.summary(),
        tasks=tuple(run.tasks),
        dropped=tuple(run.dropped),
        skipped=work.skipped,
        candidates=len(work.candidates),
        tests_passing=len(baseline.passing),
        tests_failing=len(baseline.failing),
        tests_flaky=len(baseline.flaky),
        failing=baseline.failing,
        stopped=stopped,
        forgeable=run.forgeable,
        impossible=run.impossible,
        seconds=round(time.monotonic() - start, 1),
        pythons=run.pythons,
        credentials=project.credentials,
        notes=(*filter(None, [project.fetched.note]), *(read_json(state / _FITTED) or ()), *work.notes),
        not_confined=left_open(source, installs=options.runs_programs),
        options=json.loads(json.dumps(asdict(options), default=str)),
    )
    write_index(out)
    write_whole(out / BUILD_REPORT, json.dumps(asdict(report), indent=1).encode() + b"\n")
    return report


def _runner(project: AcceptedProject, out: Path, options: BuildOptions, tell: Progress) -> CodeRunner:
    sandbox = open_sandbox(options.sandbox)

    def runner_of(python: Path) -> CodeRunner:
        limits = _limits(options.timeout_s)
        return project.language.runner(sandbox, python, project.layout.python_path, limits)

    away = remote_python(options.sandbox)
    if options.install and away is not None:
        fix = "make an environment there, and name its interpreter with --python PATH"
        raise SourceError("nothing can be installed on the machine of a remote sandbox", fix=fix)
    if options.install:
        tell(BuildEvent("installing"))
        runner = _installed(project, out.absolute() / ".venv", out / STATE, options, runner_of)
    else:
        runner = runner_of((options.python or away or Path(sys.executable)).absolute())
    if away is None:
        notes = project.language.prepare(runner.python, project.fetched.tree, fetch=options.install)
        if notes:
            write_whole(out / STATE / _FITTED, json.dumps(notes).encode())
    return runner


def _installed(
    project: AcceptedProject, folder: Path, state: Path, options: BuildOptions, runner_of: Callable[[Path], CodeRunner]
) -> CodeRunner:
    """Return what runs tests in the environment of an earlier call, made anew where it is gone, or find one and keep what its
    tests gave."""
    fetched, wanted = project.fetched, made_for(folder)
    with storage_errors(folder):
        if wanted and (state / _BASELINE).exists():
            sandbox = runner_of(folder).sandbox
            return runner_of(make_environment(folder, fetched.tree, fetched.name, wanted, sandbox=sandbox, base=options.python))
        if project.language.requirements is not None:
            sandbox, tools = runner_of(folder).sandbox, project.language.requirements
            return runner_of(make_environment(folder, fetched.tree, fetched.name, tools, sandbox=sandbox, base=options.python))
        fitted = fit_environment(fetched, project.layout, folder, runner_of=runner_of, base=options.python)
    write_whole(state / _FITTED, json.dumps(fitted.notes).encode())
    write_whole(state / _BASELINE, json.dumps(baseline_to_json(fitted.baseline)).encode())
    return fitted.runner


def _baseline(project: AcceptedProject, runner: CodeRunner, state: Path, options: BuildOptions) -> Baseline:
    """Run the tests, unless an earlier call did."""
    tree, layout = project.fetched.tree, project.layout
    refuse_copies(runner.sandbox, runner.python, tree, layout.imports, installed=options.install)
    return kept(
        state / _BASELINE,
        lambda: measure_baseline(runner, tree, layout=layout, installed=options.install),
        baseline_from_json,
        baseline_to_json,
    )


def _limits(seconds: float) -> Limits:
    return Limits(wall_s=seconds, cpu_s=seconds)


# --- the stages ------------------------------------------------------------------------------------------------------


def _check_out(source: str, out: Path) -> None:
    if Path(source).is_dir() and Path(source).resolve().is_relative_to(out.resolve()):
        what = "is" if out.resolve() == Path(source).resolve() else "holds"
        raise ConfigError(f"--out {out} {what} the source itself", fix=f"name a separate folder, such as {out / 'tasks'}")


def _pristine(source: str, state: Path, options: BuildOptions, out: Path) -> PristineTree:
    """Fetch the tree, or reuse it from an earlier call where it cannot have changed.

    A build that has decided a candidate binds its folder to its source and options; one that has not starts over.
    """
    tree, record_file = state / "pristine", state / SOURCE_RECORD
    order = {"source": source, "options": json.loads(json.dumps(options.shaping, default=str))}
    record = restored(record_file, _source_record)
    bound = (state / VERDICTS).exists()
    if record is not None and record["order"] != order:
        if bound:
            raise TaskError(_other_build(out, record["order"], order), fix=_other_place(out, record))
        _begun_anew(state)
        record = None
    there = tree.is_dir() and (options.mode != "commits" or (state / REPOSITORY).is_dir())
    if record is not None and not Path(source).is_dir() and there and digest_of(tree) == record["digest"]:
        return PristineTree(name=record["name"], label=record["label"], digest=record["digest"], tree=tree, note=record["note"])
    fresh = state / "pristine.new"
    with storage_errors(state):
        shutil.rmtree(fresh, ignore_errors=True)
    fetched = fetch_newest(source, fresh, state) if options.mode == "commits" else fetch_source(source, fresh, without=out)
    if record is not None and fetched.digest != record["digest"]:
        if bound:
            raise TaskError(f"{source} has changed since {out} was built from it", fix=_other_place(out, record))
        _begun_anew(state)
    with storage_errors(state):
        shutil.rmtree(tree, ignore_errors=True)
        fresh.rename(tree)
    fetched = replace(fetched, tree=tree)
    record = {
        "order": order,
        "name": fetched.name,
        "label": fetched.label,
        "digest": fetched.digest,
        "note": fetched.note,
    }
    write_whole(record_file, json.dumps(record).encode())
    return fetched


def _begun_anew(state: Path) -> None:
    """Remove what a build that decided nothing has measured."""
    with storage_errors(state):
        for name in (SOURCE_RECORD, _BASELINE, _FITTED, CHECKS):
            (state / name).unlink(missing_ok=True)


def _other_build(out: Path, held: dict[str, Any], asked: dict[str, Any]) -> str:
    if held["source"] != asked["source"]:
        return f"{out} holds a build of {held['source']}, not of {asked['source']}"
    names = sorted(held["options"].keys() | asked["options"].keys())
    differ = [name for name in names if held["options"].get(name) != asked["options"].get(name)]
    return f"{out} holds a build of {held['source']} with other options ({', '.join(differ)})"


def _source_record(found: dict[str, Any]) -> dict[str, Any]:
    """Read a record of the source. Raises KeyError or TypeError on one of another shape."""
    order = {name: found["order"][name] for name in ("source", "options")}
    texts = {name: str(found[name]) for name in ("name", "label", "digest")}
    return {"order": order, **texts, "note": str(found.get("note", ""))}


def _other_place(out: Path, record: dict[str, Any]) -> str:
    return f"choose another --out, or delete {out / STATE} and that build's tasks, {out / slug_of(record['name'])}-*"
