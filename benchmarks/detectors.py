"""Precision, recall and cost of the detectors on the labelled transcripts of tests/hints/labelled."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from measuring import emit

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "hints"))

from labelled.read import labelled, score

from composer_replication.hints import BUILTIN_DETECTORS, Detector, detect
from composer_replication.types.transcript import Trace

REPEATS = 9


def microseconds(transcripts: list[Trace], detectors: list[Detector] | None) -> float:
    """Least CPU time per turn of some repeats, parsing the calls included."""
    turns = sum(len(one.turns) for one in transcripts)
    best = float("inf")
    for _ in range(REPEATS):
        began = time.process_time()
        for one in transcripts:
            detect(one, detectors)
        best = min(best, time.process_time() - began)
    return round(1e6 * best / turns, 2)


def main() -> None:
    """Measure and print."""
    pairs = labelled()
    transcripts = [transcript for transcript, _ in pairs]
    quality = {}
    print(f"{'kind':22s} {'planted':>7s} {'found':>6s} {'wrong':>6s} {'precision':>9s} {'recall':>7s}")
    for kind, (right, wrong, missed) in score(pairs).items():
        precision, recall = right / max(1, right + wrong), right / max(1, right + missed)
        quality[kind] = {"planted": right + missed, "precision": round(precision, 4), "recall": round(recall, 4)}
        print(f"{kind:22s} {right + missed:7d} {right:6d} {wrong:6d} {precision:9.3f} {recall:7.3f}")
    reading = microseconds(transcripts, [])
    cost = {name: round(microseconds(transcripts, [one]) - reading, 2) for name, one in BUILTIN_DETECTORS.items()}
    whole = microseconds(transcripts, list(BUILTIN_DETECTORS.values()))
    print(f"\nreading a turn's calls takes {reading} us, and each detector so many us a turn on top:")
    for name, extra in sorted(cost.items(), key=lambda item: -item[1]):
        print(f"{name:22s} {extra:7.2f}")
    print(f"{'all, reading included':22s} {whole:7.2f}")
    turns = sum(len(one.turns) for one in transcripts)
    emit("detectors", {"turns": turns, "cpu_us_per_turn": whole, "reading_us": reading, "detector_us": cost, "kinds": quality})


if __name__ == "__main__":
    main()
