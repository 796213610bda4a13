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
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from composer_replication.languages.functions import Function, Skipped
from composer_replication.languages.layout import NoTestsError, RepositoryLayout
from composer_replication.languages.protocol import Language
from composer_replication.languages.registry import language_of
from composer_replication.sandbox import Limits, open_sandbox
from composer_replication.sandbox.grading.pytest_run import CodeRunner
from composer_replication.sandbox.opening import remote_python
from composer_replication.tasks.features.decide import VERDICTS, Decider
from composer_replication.tasks.features.select import Candidate, choose_candidates
from composer_replication.tasks.files import foreign_state, read_json, storage_errors, tree_files, write_whole
from composer_replication.tasks.index import write_index
from composer_replication.tasks.proofs.baseline import Baseline, baseline_from_json, baseline_to_json, measure_baseline
from composer_replication.tasks.proofs.fitting import fit_environment
from composer_replication.tasks.proofs.leak import INSTALLED, VENDORED, LeakScanner, copies_of
from composer_replication.tasks.proofs.validate import Validator, slug_of
from composer_replication.tasks.report import BUILD_REPORT, BuildEvent, BuildOptions, BuildReport, Progress
from composer_replication.tasks.sources.benchmarks import Benchmarks
from composer_replication.tasks.sources.credentials import Credential, find_credentials, refuse_credentials
from composer_replication.tasks.sources.environment import made_for, make_environment
from composer_replication.tasks.sources.fetch import left_open
from composer_replication.tasks.sources.licence import check_licence, licence_of
from composer_replication.tasks.sources.source import SOURCE_RECORD, STATE, PristineTree, digest_of, fetch_source
from composer_replication.tasks.store import digests_of, docs_of
from composer_replication.types.errors import ConfigError, SourceError, TaskError

__all__ = ["BuildEvent", "BuildOptions", "BuildReport", "build_tasks"]

_BASELINE, _FITTED, _CHECKS = "baseline.json", "environment.json", "hidden.json"
_NO_TESTS = "name the project's repository instead (composer tasks build URL@TAG), or its tests with --tests PATH"
_T = TypeVar("_T")


def build_tasks(source: str, out: Path, options: BuildOptions | None = None, *, progress: Progress | None = None) -> BuildReport:
    """Build validated feature-deletion tasks from `source` into the folder `out`.

    An interrupted build is continued by the same call and gives the same tasks.

    Args:
        source: a folder, `pypi:NAME==VERSION` or a git URL (`URL@REV`). Folders of tasks in it, `out` among them, are not part
            of it.
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
    project = _accepted(_pristine(source, state, options, out), options)
    runner = _runner(project, out, options, tell)
    tell(BuildEvent("testing"))
    measured = _measured(project, runner, state, options)
    tell(BuildEvent("searching"))
    run = Decider(
        out,
        state,
        validator=_validator(project, measured, runner, state, options),
        candidates=measured.candidates,
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
        skipped=measured.skipped,
        candidates=len(measured.candidates),
        tests_passing=len(measured.baseline.passing),
        tests_failing=len(measured.baseline.failing),
        tests_flaky=len(measured.baseline.flaky),
        failing=measured.baseline.failing,
        stopped=stopped,
        forgeable=run.forgeable,
        impossible=run.impossible,
        seconds=round(time.monotonic() - start, 1),
        credentials=project.credentials,
        notes=(*filter(None, [project.fetched.note]), *(read_json(state / _FITTED) or ()), *measured.hidden.notes),
        not_confined=left_open(source, installs=options.install),
        options=json.loads(json.dumps(asdict(options), default=str)),
    )
    write_index(out)
    write_whole(out / BUILD_REPORT, json.dumps(asdict(report), indent=1).encode() + b"\n")
    return report


@dataclass(frozen=True, slots=True, kw_only=True)
class _Project:
    """A source that may be built from."""

    fetched: PristineTree
    language: Language
    layout: RepositoryLayout
    licence: str
    benchmarks: Benchmarks
    credentials: tuple[Credential, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Measured:
    """What runs of a project's tests say about its functions."""

    baseline: Baseline
    hidden: Any
    functions: list[Function]
    candidates: list[Candidate]
    skipped: tuple[Skipped, ...]


def _accepted(fetched: PristineTree, options: BuildOptions) -> _Project:
    """Look at a source's files alone. Raises SourceError for one that is not to be built from."""
    benchmarks = Benchmarks(options.benchmarks)
    benchmarks.check(fetched)
    licence = licence_of(fetched.tree)
    check_licence(licence, options.licences, fetched.label)
    try:
        language = language_of(tree_files(fetched.tree))
        layout = language.layout(fetched.tree, options.packages, options.tests)
    except NoTestsError as error:
        if fetched.note:
            raise SourceError(fetched.note, fix=_NO_TESTS) from error
        raise
    credentials = find_credentials(fetched.tree, options.allow_credentials)
    refuse_credentials(credentials, layout.tests, fetched.label)
    _refuse_options(language, options)
    return _Project(
        fetched=fetched, language=language, layout=layout, licence=licence, benchmarks=benchmarks, credentials=credentials
    )


def _refuse_options(language: Language, options: BuildOptions) -> None:
    """Refuse what a language does not have. Raises ConfigError."""
    if options.mode not in language.modes:
        raise ConfigError(
            f"the mode {options.mode!r} is not there for {language.name}", fix=f"choose one of {', '.join(language.modes)}"
        )


def _runner(project: _Project, out: Path, options: BuildOptions, tell: Progress) -> CodeRunner:
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
        project.language.prepare(runner.python, project.fetched.tree)
    return runner


def _installed(
    project: _Project, folder: Path, state: Path, options: BuildOptions, runner_of: Callable[[Path], CodeRunner]
) -> CodeRunner:
    """Return what runs tests in the environment of an earlier call, made anew where it is gone, or find one and keep what its
    tests gave."""
    fetched, wanted = project.fetched, made_for(folder)
    with storage_errors(folder):
        if wanted and (state / _BASELINE).exists():
            sandbox = runner_of(folder).sandbox
            return runner_of(make_environment(folder, fetched.tree, fetched.name, wanted, sandbox=sandbox, base=options.python))
        if project.language.requirements is not None:
            python = make_environment(
                folder,
                fetched.tree,
                fetched.name,
                project.language.requirements,
                sandbox=runner_of(folder).sandbox,
                base=options.python,
            )
            return runner_of(python)
        fitted = fit_environment(fetched, project.layout, folder, runner_of=runner_of, base=options.python)
    write_whole(state / _FITTED, json.dumps(fitted.notes).encode())
    write_whole(state / _BASELINE, json.dumps(baseline_to_json(fitted.baseline)).encode())
    return fitted.runner


def _measured(project: _Project, runner: CodeRunner, state: Path, options: BuildOptions) -> _Measured:
    """Run the tests, unless an earlier call did."""
    tree, layout = project.fetched.tree, project.layout
    _refuse_copies(project.fetched, layout, runner, options)
    baseline = _kept(
        state / _BASELINE,
        lambda: measure_baseline(runner, tree, layout=layout, installed=options.install),
        baseline_from_json,
        baseline_to_json,
    )
    language = project.language
    functions, skipped = _functions(tree, language, layout, options)
    candidates, uncovered = choose_candidates(functions, baseline.coverage, baseline.passing, options=options)
    hidden = _kept(
        state / _CHECKS,
        lambda: language.make_book(runner, tree, layout, baseline.passing, options.seed),
        language.book_from_json,
        language.book_to_json,
    )
    return _Measured(baseline=baseline, hidden=hidden, functions=functions, candidates=candidates, skipped=(*skipped, *uncovered))


def _limits(seconds: float) -> Limits:
    return Limits(wall_s=seconds, cpu_s=seconds)


def _validator(project: _Project, measured: _Measured, runner: CodeRunner, state: Path, options: BuildOptions) -> Validator:
    """Make the validator: everything is read, hashed, compiled and searched for once."""
    tree, layout = project.fetched.tree, project.layout
    files = {path: (tree / path).read_bytes() for path in layout.sources}
    return Validator(
        source=project.fetched,
        layout=layout,
        options=options,
        baseline=measured.baseline,
        hidden=measured.hidden,
        compiled=project.language.compiled(runner, tree, state / "compiled", layout),
        language=project.language,
        files=files,
        digests=digests_of(tree),
        docs=docs_of(tree),
        licence=project.licence,
        benchmarks=project.benchmarks,
        credentials=project.credentials,
        scanner=LeakScanner(tree),
        copies=project.language.find_copies(
            runner.sandbox, runner.python, files, [function.key for function in measured.functions]
        ),
        runner=replace(runner, limits=_limits(options.task_timeout_s)),
        staging=state / "staged",
    )


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
    record = _restored(record_file, _source_record)
    bound = (state / VERDICTS).exists()
    if record is not None and record["order"] != order:
        if bound:
            raise TaskError(_other_build(out, record["order"], order), fix=_other_place(out, record))
        _begun_anew(state)
        record = None
    if record is not None and not Path(source).is_dir() and tree.is_dir() and digest_of(tree) == record["digest"]:
        return PristineTree(name=record["name"], label=record["label"], digest=record["digest"], tree=tree, note=record["note"])
    fresh = state / "pristine.new"
    with storage_errors(state):
        shutil.rmtree(fresh, ignore_errors=True)
    fetched = fetch_source(source, fresh, without=out)
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
        for name in (SOURCE_RECORD, _BASELINE, _FITTED, _CHECKS):
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


def _refuse_copies(source: PristineTree, layout: RepositoryLayout, runner: CodeRunner, options: BuildOptions) -> None:
    """Refuse an interpreter that has the project installed, or vendored in what is. Raises SourceError."""
    python = runner.python
    ways = {
        INSTALLED: (
            "a copy of {0} installed ({1})",
            "one of the project's dependencies, or pytest, needs the project itself: it cannot be built from",
        ),
        VENDORED: ("a vendored copy of {0} ({1})", "delete {1} if the tests do without it, and build again"),
    }
    for program, (what, cure) in ways.items():
        for copy in copies_of(program, runner.sandbox, python, source.tree, layout.imports).items():
            fix = cure.format(*copy) if options.install else "use an environment without it: --install, or --python PATH"
            raise SourceError(f"{python} has {what.format(*copy)}, which would give the answers away", fix=fix)


def _kept(file: Path, make: Callable[[], _T], read: Callable[[Any], _T], write: Callable[[_T], Any]) -> _T:
    """Return what an earlier call wrote to `file`, or make it and write it."""
    known = _restored(file, read)
    if known is None:
        known = make()
        write_whole(file, json.dumps(write(known)).encode())
    return known


def _functions(
    tree: Path, language: Language, layout: RepositoryLayout, options: BuildOptions
) -> tuple[list[Function], list[Skipped]]:
    functions: list[Function] = []
    skipped: list[Skipped] = []
    for path in layout.sources:
        found, left = language.find_functions(path, (tree / path).read_bytes(), options.keep_docstring)
        functions += found
        skipped += left
    return functions, skipped


def _restored(file: Path, read: Callable[[Any], _T]) -> _T | None:
    """Read what an earlier call wrote to `file`; None where there is none. Raises TaskError for what another release wrote."""
    known = read_json(file)
    try:
        return None if known is None else read(known)
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise foreign_state(file) from error
