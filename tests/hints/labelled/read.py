"""The labelled transcripts as `Trace`s, and how well detectors find what was planted in them."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path

from labelled.vocabularies import VOCABULARIES

from composer_replication.hints import detect
from composer_replication.types import ToolCall, ToolResult
from composer_replication.types.transcript import Trace, TraceTurn

FILE = Path(__file__).parent / "turns.jsonl"
TOOLS = {vocabulary.name: vocabulary.tools for vocabulary in VOCABULARIES}
LONG = re.compile(r"<<(\d+) x (.*?)>>")
"""So many times the same words: long texts are short in the file."""


def labelled():
    """`(transcript, {(kind, turn)})` of each line."""
    lines = LONG.sub(lambda long: " ".join([long[2]] * int(long[1])), FILE.read_text("utf-8")).splitlines()
    return [(trace(line), {(kind, turn) for kind, turn in line["labels"]}) for line in map(json.loads, lines)]


def trace(line):
    turns = tuple(
        TraceTurn(
            context=(),
            text=turn["text"],
            tool_calls=tuple(ToolCall(**call) for call in turn["tool_calls"]),
            results=tuple(ToolResult(**result) for result in turn["results"]),
        )
        for turn in line["turns"]
    )
    return Trace(
        trajectory_id=line["trajectory_id"],
        format=line["agent"],
        turns=turns,
        messages=tuple(line["messages"]),
        tools=tuple(TOOLS[line["agent"]]),
        task_id=line["task_id"],
    )


def score(pairs, detectors=None):
    """By kind: how many were found rightly, wrongly, and not at all."""
    right, wrong, missed = Counter(), Counter(), Counter()
    for transcript, planted in pairs:
        found = {(finding.kind, finding.turn) for finding in detect(transcript, detectors)}
        right.update(kind for kind, _ in found & planted)
        wrong.update(kind for kind, _ in found - planted)
        missed.update(kind for kind, _ in planted - found)
    return {kind: (right[kind], wrong[kind], missed[kind]) for kind in sorted({*right, *wrong, *missed})}
