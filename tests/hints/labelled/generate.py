"""Writes turns.jsonl: clean transcripts of five agents with planted faults and with things that only look like faults.

Labels are known by construction: `[kind, turn]` for every fault, and nothing else in a transcript is one. Run it again to get the
same file: `python tests/hints/labelled/generate.py`.
"""

from __future__ import annotations

import json
import random
from pathlib import Path

from faults import DISTRACTORS, FAULTS
from story import Story
from vocabularies import VOCABULARIES

SEED, PER_VOCABULARY, FAULTS_EACH = 20, 26, 4
FILE = Path(__file__).parent / "turns.jsonl"


def transcript(vocabulary, number, due):
    """One agent's work on one task, with the faults in `due` planted in it."""
    rng = random.Random(f"{SEED} {vocabulary.name} {number}")
    story = Story(vocabulary, rng, f"{vocabulary.name}/{number}")
    story.opening()
    parts = [*due, *rng.sample(DISTRACTORS, rng.randint(3, 6))]
    rng.shuffle(parts)
    last = [part for part in parts if getattr(part, "ends", False)]
    for part in parts:
        if part not in last:
            part(story)
    if last:
        last[0](story)
    else:
        story.ending()
    return story.record()


def deal(rng, vocabulary):
    """The faults of each transcript: every kind comes as often as every other, at most one of them at the end of the work."""
    possible = [fault for fault in FAULTS if vocabulary.name in getattr(fault, "only", (vocabulary.name,))]
    deck = []
    while len(deck) < PER_VOCABULARY * FAULTS_EACH:
        deck += rng.sample(possible, len(possible))
    return [list(dict.fromkeys(deck[i * FAULTS_EACH : (i + 1) * FAULTS_EACH])) for i in range(PER_VOCABULARY)]


def main():
    rng = random.Random(SEED)
    lines = []
    for vocabulary in VOCABULARIES:
        for number, due in enumerate(deal(rng, vocabulary)):
            ends = [fault for fault in due if getattr(fault, "ends", False)]
            lines.append(transcript(vocabulary, number, [fault for fault in due if fault not in ends[1:]]))
    FILE.write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines), "utf-8")
    turns = sum(len(line["turns"]) for line in lines)
    print(f"{len(lines)} transcripts, {turns} turns, {sum(len(line['labels']) for line in lines)} planted faults: {FILE.name}")


if __name__ == "__main__":
    main()
