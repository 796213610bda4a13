"""Import of files of any known format to one folder of traces, with an account of what was left out and why."""

from __future__ import annotations

import itertools
import json
import os
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from composer_replication.observe.files import replace_file
from composer_replication.traces.call_ids import UniqueNames
from composer_replication.traces.own import READER as OWN
from composer_replication.traces.reader import Reader, reader_for, readers
from composer_replication.traces.readers.fields import objects_in, section, string
from composer_replication.traces.readers.openhands import TWIN, DuplicateConversations
from composer_replication.traces.recorder import INCOMPLETE
from composer_replication.traces.redact import Redactor
from composer_replication.traces.source import Dropped, Problem, UnreadableError, document, objects, peek
from composer_replication.traces.states import lacks_tools
from composer_replication.traces.store import is_temporary, write_traces
from composer_replication.types import ToolSchema, to_json
from composer_replication.types.errors import ConfigError
from composer_replication.types.transcript import Trace

TRACES, ACCOUNT = "traces.jsonl", "import.json"


@dataclass(slots=True)
class Import:
    """The result of an import."""

    traces: Counter[str] = field(default_factory=Counter)
    """Number of traces by format."""
    turns: Counter[str] = field(default_factory=Counter)
    """Number of turns by format."""
    dropped: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    """By format, how often something was left out for which reason."""
    states: int = 0
    """Number of turns whose exact context is known."""
    toolless_states: int = 0
    """Number of these whose agent called tools that neither its log nor `tools` names."""
    problems: list[Problem] = field(default_factory=list)
    """Files and lines that could not be read, in the order in which they were found."""
    redacted: Counter[str] = field(default_factory=Counter)
    """Different credentials by kind, counted per trace."""

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON data."""
        return {**to_json(self), "problems": [str(problem) for problem in self.problems]}


def import_traces(
    path: Path | str,
    out: Path | str,
    *,
    format: str | None = None,  # noqa: A002
    tools: Sequence[ToolSchema] = (),
    redact: bool = True,
    overwrite: bool = False,
) -> Import:
    """Read everything at `path` that is a log of an agent, and write it to `out`.

    Files are written when everything has been read: `traces.jsonl` (see `read_traces`) and `import.json`, the account; none where
    nothing was a trace. A foreign trace's `details` name its log as `log`, from `path` on. A folder `out` inside `path`, and
    temporary files of a killed import, are not input.

    Args:
        path: a file, or a folder that is searched; links are not followed.
        format: name of the reader for every file; each is guessed without it.
        tools: for traces whose logs do not name their tools.
        redact: replace credentials by `[REDACTED:kind]`.
        overwrite: replace an earlier import in `out` also when it has traces, or turns of one, that this one has not.

    Raises:
        ConfigError: nothing is at `path`, no reader is called `format`, or an earlier import in `out` would lose something.
        StorageError: `out` cannot be written.
    """
    path, out = Path(path), Path(out)
    if not path.exists():
        raise ConfigError(f"there is nothing at {path}", fix="name a log of an agent, or a folder of them")
    forced = reader_for(format) if format else None
    account = Import()
    redactor = Redactor() if redact else None
    places = list(_places(path, out, forced, account))  # before anything is written: the output may lie beside the input
    traces = _traces(path, places, tuple(tools), redactor, account)
    first = next(traces, None)
    if first is None:
        return account
    held = {} if overwrite else _held(out / TRACES)
    write_traces(out / TRACES, _guarded(itertools.chain([first], traces), held, out / TRACES))
    if redactor:
        account.redacted = redactor.counts
    replace_file(out / ACCOUNT, json.dumps(account.to_json(), indent=1).encode() + b"\n")
    return account


def _held(path: Path) -> dict[str, int]:
    """Return the number of turns of each trace of an earlier import, as far as it can be read."""
    if not path.is_file():
        return {}
    records = (item[1] for item in objects(path) if not isinstance(item, Problem))
    return {string(record, "trajectory_id"): len(objects_in(record.get("turns"))) for record in records}


def _guarded(traces: Iterator[Trace], held: dict[str, int], path: Path) -> Iterator[Trace]:
    """Pass the traces through; raise at their end when `path` held one that is not among them, or more of it."""
    left = dict(held)
    for trace in traces:
        if left.get(trace.trajectory_id, 0) <= len(trace.turns):
            left.pop(trace.trajectory_id, None)
        yield trace
    if left:
        raise ConfigError(
            f"{path} has {len(held)} traces of an earlier import, and {len(left)} of them are not in this one or are longer than "
            f"in it, e.g. {min(left)}",
            fix="name another folder with --out, import everything at once, or give --overwrite to lose them",
        )


def _traces(
    path: Path,
    places: Sequence[tuple[Path, Reader]],
    tools: tuple[ToolSchema, ...],
    redactor: Redactor | None,
    account: Import,
) -> Iterator[Trace]:
    names, twins = UniqueNames(), DuplicateConversations()
    for place, reader in places:
        log = {"log": _from(path, place)} if reader.name != OWN.name else {}  # ids of ours say where they are from
        for item in reader.read(place):
            if isinstance(item, Problem):
                account.problems.append(item)
            elif isinstance(item, Dropped):
                account.dropped[reader.name][item.reason] += item.count
            elif reader.name == "openhands" and twins.has(item):
                account.dropped[reader.name][TWIN] += 1
            else:
                account.traces[reader.name] += 1
                account.turns[reader.name] += len(item.turns)
                given = replace(item, tools=item.tools or tools, details={**log, **item.details})
                exact = sum(INCOMPLETE not in turn.details for turn in given.turns)
                account.states += exact
                account.toolless_states += exact if lacks_tools(given) else 0
                clean = redactor.redact(given) if redactor else given
                yield replace(clean, trajectory_id=names.free(clean.trajectory_id))  # redacted ones may be equal


def _from(path: Path, place: Path) -> str:
    """Return the name of a log below the path that was imported."""
    below = os.path.relpath(place, path.resolve() if path.is_symlink() else path)
    return place.name if below == "." else below


def _places(path: Path, out: Path, forced: Reader | None, account: Import) -> Iterator[tuple[Path, Reader]]:
    """Yield files and folders to read, and by which reader, in the order of their names; `out` is skipped unless it is `path`
    itself."""
    known = [forced] if forced else list(readers().values())
    start = path.resolve() if path.is_symlink() else path
    results = (out.resolve() / name for name in ("", TRACES, ACCOUNT))
    left_out = {start / result.relative_to(start.resolve()) for result in results if result.is_relative_to(start.resolve())}
    pending = [start]
    while pending:
        place = pending.pop()
        folder = place.is_dir() and not place.is_symlink()
        try:
            if not folder:
                peek(place)
            reader = next((r for r in known if r.sniff(place)), forced if not folder else None)
            if reader:
                yield place, reader
            elif folder:
                found = (place / entry for entry in sorted(os.listdir(place), reverse=True))
                pending.extend(entry for entry in found if entry not in left_out and not is_temporary(entry))
            else:
                account.problems.append(Problem(place, "no log of a known agent"))
        except UnreadableError as error:
            account.problems.append(Problem(place, str(error)))
        except OSError as error:
            account.problems.append(Problem(place, error.strerror or str(error)))


def load_tools(path: Path) -> tuple[ToolSchema, ...]:
    """Read tool schemas from a JSON file: a list of them in OpenAI's or Anthropic's form. Raises ConfigError for anything
    else."""
    try:
        value = document(path)
    except UnreadableError as error:
        raise ConfigError(f"{path}: {error}", fix="give a JSON list of tool schemas") from error
    if not isinstance(value, list) or not value:
        raise ConfigError(f"{path}: not a list of tools", fix="give a JSON list of tool schemas")
    return tuple(openai_tool(tool, f"{path}, tool {place}") for place, tool in enumerate(value))


def openai_tool(tool: Any, where: str) -> ToolSchema:
    """Return a tool schema in OpenAI's form, from that or Anthropic's. Raises ConfigError."""
    if isinstance(tool, dict):
        function = section(tool, "function") or tool
        name = string(function, "name")
        parameters = section(function, "parameters") or section(function, "input_schema")
        if name:
            described = {"name": name, "description": string(function, "description"), "parameters": parameters}
            return {"type": "function", "function": described}
    raise ConfigError(f"{where}: not a tool schema", fix='give {"name", "description", "input_schema"} or OpenAI\'s form')
