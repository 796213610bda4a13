"""Recorded logs of every format, spoiled at random places: nothing from the import to a teacher's question raises."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path

import pytest

from composer_replication.actions.agreement import files_seen
from composer_replication.hints import all_detectors, detect
from composer_replication.teachers import wire_messages
from composer_replication.teachers.mining.pair_mining import find_disagreements
from composer_replication.traces import import_traces, read_traces, states_from_traces, write_atif

FIXTURES = Path(__file__).parent / "fixtures"
MUTANTS = 40
"""Of every seed: a few seconds in all. A loop over seeds for minutes is how the shapes of `traces.schema` were found."""
WRONG = (
    *(None, True, 0, -1, 10**30, 1.5, "", "x", "\ud800", "\x00", "a\nb", "[]", "{}", "null", "9" * 5000, 2**63),
    *([], {}, [[]], [{}], [None], ["x"], [1, 2], {"a": 1}, {"content": []}),
    *({"type": "text"}, {"type": "text", "text": None}, {"role": "user"}, {"role": "assistant", "content": None}),
)


@pytest.fixture(scope="module")
def logs(tmp_path_factory):
    """Every log of the fixtures, and the same as our own traces and as ATIF."""
    base = tmp_path_factory.mktemp("seeds")
    import_traces(FIXTURES, base / "own")
    write_atif(list(read_traces(base / "own" / "traces.jsonl"))[:6], base / "atif")
    own = [base / "own" / "traces.jsonl"] * 8  # every format of the eight as often as another
    kept = [path for path in sorted(FIXTURES.rglob("*.json*")) if ".requests." not in path.name]
    return [*kept, *own, *sorted((base / "atif").iterdir())]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_a_spoiled_log_stops_nothing(tmp_path, logs, seed):
    rng = random.Random(seed)
    detectors = [detector for detector in all_detectors().values() if not detector.needs & {"subprocess", "judge"}]
    for number in range(MUTANTS):
        home = tmp_path / str(number)
        spoil(rng, rng.choice(logs), home / "in")
        done = import_traces(home / "in", home / "out")
        traces = list(read_traces(home / "out" / "traces.jsonl")) if done.traces else []
        for trace in traces:
            detect(trace, detectors)
        states = states_from_traces(traces)
        for state in states:
            wire_messages(state["messages"])
            files_seen(state["messages"])
        find_disagreements(states, [])
        if traces:
            write_atif(traces, home / "atif")
            back = import_traces(home / "atif", home / "again")
            again = list(read_traces(home / "again" / "traces.jsonl")) if back.traces else []
            assert sorted(map(repr, again)) == sorted(repr(trace) for trace in traces if trace.turns)
        shutil.rmtree(home)


def spoil(rng, path, folder):
    """A copy of a log, with its neighbours where it is one file of many, that is wrong at some places."""
    if path.name.startswith("event-") or path.parent.name == "completions":
        shutil.copytree(path.parent, folder / path.parent.name)
        copy = folder / path.parent.name / path.name
    else:
        folder.mkdir(parents=True)
        copy = folder / path.name
    lines = path.read_text("utf-8").splitlines() if path.suffix == ".jsonl" else [path.read_text("utf-8")]
    for _ in range(rng.randint(1, 3)):
        place = rng.randrange(len(lines))
        record = json.loads(lines[place])
        for _ in range(rng.randint(1, 3)):
            record = changed(rng, record)
        lines[place] = json.dumps(record)
    if rng.random() < 0.2:
        rng.shuffle(lines)
    copy.write_text("\n".join(lines), "utf-8")


def changed(rng, record):
    """The record with one place wrong, gone, twice there, or like another."""
    places = list(paths(record))
    path = rng.choice(places)
    if not path:
        return rng.choice(WRONG)
    target = at(record, path[:-1])
    match rng.choices(["wrong", "gone", "twice", "other"], [65, 20, 8, 7])[0]:
        case "gone":
            del target[path[-1]]
        case "twice" if isinstance(target, list):
            target.insert(path[-1], json.loads(json.dumps(target[path[-1]])))
        case "other":
            target[path[-1]] = json.loads(json.dumps(at(record, rng.choice(places))))
        case _:
            target[path[-1]] = json.loads(json.dumps(rng.choice(WRONG)))
    return record


def paths(value, path=()):
    yield path
    if isinstance(value, dict | list):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from paths(inner, (*path, key))


def at(value, path):
    for key in path:
        value = value[key]
    return value
