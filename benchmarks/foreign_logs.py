"""Precision and recall of the detectors on logs of other agents that were labelled by hand, turn by turn.

The labels are `foreign_labels.json`: of each log the repository, commit, path and SHA-256, and of each turn the kinds of error
that a reader saw in it, whether that is sure, and why. A kind that no detector has is written `other:WHAT`. The logs are not ours
to keep: `--logs` names a folder that holds each as OWNER+NAME/PATH, as a checkout into OWNER+NAME has it.

A set measures only while no detector and no reader is changed after a look at it. Of the set `first` that is no longer true.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from measuring import emit

from composer_replication.config.loss import HintConfig
from composer_replication.hints import BUILTIN_DETECTORS, Detector, detect, detectors_named
from composer_replication.traces import reader_for
from composer_replication.types.transcript import Trace

LABELS = Path(__file__).with_name("foreign_labels.json")
EVERY = "every agent"
CHOICES: Mapping[str, Sequence[Detector]] = {
    "default": detectors_named(HintConfig().detectors),
    "all": tuple(BUILTIN_DETECTORS.values()),
}


def where(logs: Path, source: Mapping[str, Any]) -> Path:
    """Return the place of a source's log."""
    return logs / str(source["repository"]).replace("/", "+") / str(source["path"])


def files_of(logs: Path, source: Mapping[str, Any]) -> Iterator[tuple[Path, str]]:
    """Yield the files of a source, and the SHA-256 that each must have."""
    path, digests = where(logs, source), source["sha256"]
    if isinstance(digests, str):
        yield path, digests
    else:
        yield from ((path / name, digest) for name, digest in digests.items())


def absent(logs: Path, sources: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return one line for each repository of which a file is missing or another one: how to get it."""
    told: dict[str, None] = {}
    for source in sources:
        for path, digest in files_of(logs, source):
            if not path.is_file():
                what = "is missing"
            elif hashlib.sha256(path.read_bytes()).hexdigest() != digest:
                what = "is not the file that was labelled"
            else:
                continue
            name = source["repository"]
            folder = logs / name.replace("/", "+")
            told[
                f"{path} {what}: git clone https://github.com/{name} {folder} && git -C {folder} checkout {source['commit']}"
            ] = None
    return list(told)


def read_trace(logs: Path, source: Mapping[str, Any]) -> Trace:
    """Read the labelled trajectory of a source. Raises ValueError when it has not as many turns as were labelled."""
    items = reader_for(source["format"]).read(where(logs, source))
    trace: Trace = [item for item in items if isinstance(item, Trace)][source["trajectory"]]
    if len(trace.turns) != source["turns"]:
        raise ValueError(f"{where(logs, source)}: {len(trace.turns)} turns, and labels of {source['turns']}")
    return trace


def findings(trace: Trace, detectors: Sequence[Detector]) -> dict[int, set[str]]:
    """Return the kinds that were found, by turn."""
    found: dict[int, set[str]] = defaultdict(set)
    for finding in detect(trace, detectors):
        found[finding.turn].add(finding.kind)
    return found


def plain(kinds: Sequence[str]) -> set[str]:
    """Return kinds without the words after `other:`."""
    return {kind.partition(":")[0] for kind in kinds}


class Scores:
    """Counts of turns by set and agent, and of kinds by set, for one choice of detectors."""

    def __init__(self) -> None:
        self.turns: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
        self.kinds: dict[str, dict[str, Counter[str]]] = defaultdict(lambda: defaultdict(Counter))

    def add(self, source: Mapping[str, Any], label: Mapping[str, Any], found: set[str]) -> None:
        """Count one turn."""
        kinds = plain(label["kinds"])
        counted = {
            "turns": True, "wrong": bool(kinds), "found": bool(found), "right": bool(found and kinds),
            "sure": bool(kinds and label["sure"]), "right_sure": bool(kinds and label["sure"] and found),
            "own": bool(kinds - {"other"}), "right_own": bool(kinds - {"other"} and found),
        }  # fmt: skip
        for agent in (source["agent"], EVERY):
            self.turns[source["set"], agent].update(name for name, holds in counted.items() if holds)
        for kind in found | kinds:
            column = "right" if kind in found & kinds else "missed" if kind in kinds else "elsewhere" if kinds else "wrong"
            self.kinds[source["set"]][kind][column] += 1

    def figures(self) -> dict[str, Any]:
        """Return plain JSON data."""
        by_set: dict[str, Any] = {}
        for (name, agent), counts in sorted(self.turns.items(), key=lambda item: (item[0][0], item[0][1] == EVERY, item[0][1])):
            by_set.setdefault(name, {"agents": {}, "kinds": {}})["agents"][agent] = {**counts, **rates(counts)}
        for name, kinds in self.kinds.items():
            by_set[name]["kinds"] = {kind: dict(counts) for kind, counts in sorted(kinds.items())}
        return by_set


def rates(counts: Mapping[str, int]) -> dict[str, float | None]:
    """Return the precision, and the recall of all wrong turns, of those that are sure, of those of a kind that detectors have."""
    pairs = {
        "precision": ("right", "found"),
        "recall": ("right", "wrong"),
        "recall_sure": ("right_sure", "sure"),
        "recall_own": ("right_own", "own"),
    }
    return {
        name: round(counts.get(part, 0) / counts[whole], 3) if counts.get(whole) else None
        for name, (part, whole) in pairs.items()
    }


def print_tables(choice: str, figures: Mapping[str, Any]) -> None:
    """Print what one choice of detectors finds."""
    for name, part in figures.items():
        print(f"\n{choice} detectors, set `{name}`")
        print(
            f"{'agent':20s}{'turns':>6s}{'wrong':>6s}{'found':>6s}{'right':>6s}{'precision':>10s}{'recall':>7s}{'sure':>6s}{'own':>6s}"
        )
        for agent, one in part["agents"].items():
            counts = "".join(f"{one.get(column, 0):6d}" for column in ("turns", "wrong", "found", "right"))
            shown = [" -" if one[rate] is None else f"{one[rate]:.2f}" for rate in rates({})]
            print(f"{agent:20s}{counts}{shown[0]:>10s}{shown[1]:>7s}{shown[2]:>6s}{shown[3]:>6s}")
        print(f"\n{'kind':24s}{'right':>6s}{'missed':>7s}{'wrong':>6s}{'elsewhere':>10s}")
        for kind, one in part["kinds"].items():
            right, missed, wrong, elsewhere = (one.get(column, 0) for column in ("right", "missed", "wrong", "elsewhere"))
            print(f"{kind:24s}{right:6d}{missed:7d}{wrong:6d}{elsewhere:10d}")


def print_turn(source: Mapping[str, Any], label: Mapping[str, Any], found: set[str]) -> None:
    """Print a turn about which label and detectors differ."""
    if bool(label["kinds"]) != bool(found):
        what = "missed" if label["kinds"] else "wrong"
        kinds = ", ".join(label["kinds"] or sorted(found))
        place = f"{source['repository']}/{source['path']} {source['trajectory']}"
        print(f"{what} {place}, turn {label['turn']}: {kinds} ({label['why']}{'' if label['sure'] else '; unsure'})")


def score(logs: Path, sources: Sequence[Mapping[str, Any]], *, each: bool) -> dict[str, Scores]:
    """Run every choice of detectors over every source; `each` prints the turns about which they and the labels differ."""
    scores = {choice: Scores() for choice in CHOICES}
    for source in sources:
        trace = read_trace(logs, source)
        for choice, detectors in CHOICES.items():
            found = findings(trace, detectors)
            for label in source["labels"]:
                scores[choice].add(source, label, found[label["turn"]])
                if each and choice == "all":
                    print_turn(source, label, found[label["turn"]])
    return scores


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--logs", type=Path, required=True, help="folder of logs, each as OWNER+NAME/PATH")
    parser.add_argument("--labels", type=Path, default=LABELS, help="other labels in the same form")
    parser.add_argument("--write", type=Path, help="write the figures to this file too")
    parser.add_argument("--each", action="store_true", help="print each turn about which labels and detectors differ")
    options = parser.parse_args()
    sources = json.loads(options.labels.read_text("utf-8"))["sources"]
    if lines := absent(options.logs, sources):
        print(*lines, sep="\n", file=sys.stderr)
        sys.exit(2)
    figures = {choice: one.figures() for choice, one in score(options.logs, sources, each=options.each).items()}
    for choice, part in figures.items():
        print_tables(choice, part)
    emit("foreign_logs", {"default_detectors": list(HintConfig().detectors), **figures}, options.write)


if __name__ == "__main__":
    main()
