"""The detectors against transcripts of five agents with planted faults; `benchmarks/detectors.py` prints the table."""

from __future__ import annotations

import dataclasses
import subprocess
import sys

import pytest
from labelled.read import FILE, labelled, score

from composer_replication.hints import BUILTIN_DETECTORS, detect
from composer_replication.traces.outcome import inferred_result

PAIRS = labelled()
SCORES = score(PAIRS)
LATE = {kind for one in BUILTIN_DETECTORS.values() if one.needs & {"next", "end"} for kind in one.kinds}


def test_there_are_enough_labels():
    assert sum(len(planted) for _, planted in PAIRS) >= 300
    assert sum(len(transcript.turns) for transcript, _ in PAIRS) >= 3_000
    assert {transcript.format for transcript, _ in PAIRS} == {"ours", "claude-code", "codex", "openhands", "swe-agent"}


def test_every_kind_that_the_house_knows_was_planted():
    kinds = {kind for detector in BUILTIN_DETECTORS.values() for kind in detector.kinds}
    assert kinds - SCORES.keys() == {"out_of_memory", "cut_off"}  # of this framework's rollouts alone: test_detectors.py


@pytest.mark.parametrize("kind", SCORES)
def test_precision_and_recall(kind):
    right, wrong, missed = SCORES[kind]
    assert right / max(1, right + wrong) >= 0.95
    assert right / max(1, right + missed) >= 0.95


def test_the_statuses_that_readers_of_logs_tell_change_nothing():
    for transcript, planted in PAIRS:
        if transcript.format == "ours":
            continue
        calls = {call.call_id: call for turn in transcript.turns for call in turn.tool_calls}
        turns = (
            dataclasses.replace(
                turn, results=tuple(inferred_result(calls[r.call_id], r.call_id, r.content) for r in turn.results)
            )
            for turn in transcript.turns
        )
        read = dataclasses.replace(transcript, turns=tuple(turns))
        assert {(finding.kind, finding.turn) for finding in detect(read)} == planted


def test_the_file_is_what_its_generator_writes():
    before = FILE.read_bytes()
    subprocess.run([sys.executable, FILE.parent / "generate.py"], check=True, capture_output=True)
    assert FILE.read_bytes() == before


def test_findings_are_the_same_every_time():
    for transcript, _ in PAIRS[::7]:
        assert detect(transcript) == detect(transcript)


def test_later_turns_change_no_earlier_finding():
    for transcript, _ in PAIRS[::5]:
        whole = detect(transcript)
        for end in range(1, len(transcript.turns), 4):
            part = detect(dataclasses.replace(transcript, turns=transcript.turns[:end]))
            settled = [f for f in part if f.kind not in LATE]
            # a failing run blames a change before it, so an early turn may still be blamed later; none is acquitted
            known = [f for f in whole if f.turn < end and f.evidence.get("revealed_by", f.turn) < end and f.kind not in LATE]
            assert settled == known
