"""How often agreement of teachers is found, and is right: the cascade beside votes by exact string and by canonical string.

Synthetic teachers of known skill answer states whose right action is known. Who is right writes it in one of the forms that the
labelled pairs of `tests/actions` have shown, by carrying them out, to do the same. Who is wrong does something else: an action
on other files (`elsewhere`), or one that is shown to be a near miss (`near`). The student is wrong in half of the states. A pair
is correct when its chosen action does what the right one does and its rejected one does not.
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from measuring import emit

from composer_replication.actions.agreement import (
    ActionComparison,
    Ballot,
    SameAction,
    Scene,
    Vote,
    choose,
    cluster_votes,
    compare,
    family_accuracies,
)
from composer_replication.actions.calls import canonical_action, parse_action
from composer_replication.envs.tools import TOOLSETS

TESTS = Path(__file__).resolve().parent.parent / "tests" / "actions"
sys.path.insert(0, str(TESTS))
from trees import FULL  # noqa: E402

SCENE = Scene(files=FULL, complete=True, tools=TOOLSETS["shell"])
SKILLS = {"a": 0.9, "b": 0.8, "c": 0.7, "d": 0.5}
STATES, SEED, THRESHOLD = 2000, 0, 2


@dataclass(frozen=True, slots=True)
class State:
    """What was said at one state."""

    right: frozenset[str]
    """Forms of the right action."""
    votes: tuple[Vote, ...]
    student: str


def worlds(rows: list[dict[str, str]]) -> list[tuple[list[str], list[str]]]:
    """(forms of one action, actions that do something else): connected components of what was shown to be the same."""
    near: defaultdict[str, set[str]] = defaultdict(set)
    for row in rows:
        near[row["one"]] |= {row["one"]}
        if row["label"] == "same":
            merged = near[row["one"]] | near[row["other"]] | {row["one"], row["other"]}
            for form in merged:
                near[form] = merged
    wrong: defaultdict[str, set[str]] = defaultdict(set)
    for row in rows:
        if row["label"] == "different":
            wrong[min(near[row["one"]])].add(row["other"])
    groups = {min(forms): sorted(forms) for forms in near.values()}
    return [(forms, sorted(wrong[key])) for key, forms in sorted(groups.items()) if len(forms) > 1 and len(wrong[key]) > 1]


def names_in(forms: list[str]) -> set[str]:
    """The files and folders that an action names."""
    names = {part for path in FULL for part in (path, path.partition("/")[0])}
    return {name for name in names for form in forms if name in form}


def made_up(rows: list[dict[str, str]], rng: random.Random, *, near: bool, states: int) -> list[State]:
    """States, each with the answers of all teachers and of the student."""
    found = []
    groups = [group for group in worlds(rows) if near or names_in(group[0])]
    for _ in range(states):
        right, wrong = rng.choice(groups)
        if not near:
            elsewhere = [forms for forms, _ in groups if names_in(forms) and not names_in(forms) & names_in(right)]
            wrong = [rng.choice(forms) for forms in rng.sample(elsewhere, 3)]
        votes = tuple(
            Vote(teacher=name, family=name, action=rng.choice(right if rng.random() < skill else wrong))
            for name, skill in SKILLS.items()
        )
        found.append(State(frozenset(right), votes, rng.choice(right if rng.random() < 0.5 else wrong)))
    return found


def exact(one: str, other: str) -> ActionComparison:
    """Agreement by the text of the action."""
    return ActionComparison(SameAction.SAME if one == other else SameAction.DIFF, "exact", "")


def canonical(one: str, other: str) -> ActionComparison:
    """Agreement by the canonical string, in which the order of shell words counts."""
    return exact(canonical_action(*parse_action(one)), canonical_action(*parse_action(other)))


def cascade(one: str, other: str) -> ActionComparison:
    """Agreement by all methods but sandbox and judge."""
    return compare(one, other, SCENE)


def voted(states: list[State], same: Callable[[str, str], ActionComparison], *, weighted: bool = False) -> dict[str, float | int]:
    """Pairs, and how many are right."""
    clustered = [cluster_votes(state.votes, state.student, same)[0] for state in states]
    ballots = [Ballot({f: i for i, c in enumerate(clusters) for f in c.families}) for clusters in clustered]
    weights = family_accuracies(ballots) if weighted else {}
    counts: Counter[str] = Counter()
    for state, clusters in zip(states, clustered, strict=True):
        choice = choose(clusters, threshold=THRESHOLD, weights=weights)
        if isinstance(choice, str):
            counts["no agreement"] += 1
            continue
        agreed = choice.cluster.action in state.right
        counts["agreed"] += 1
        counts["agreed_right"] += agreed
        if choice.cluster.student.diff:
            counts["pairs"] += 1
            counts["pairs_correct"] += agreed and state.student not in state.right
    names = ("agreed", "agreed_right", "pairs", "pairs_correct")
    return {**{name: counts[name] for name in names}, "precision": round(counts["pairs_correct"] / max(1, counts["pairs"]), 4)}


def microseconds(rows: list[dict[str, str]], same: Callable[[str, str], ActionComparison]) -> float:
    """CPU time of one comparison: the least of five rounds over all pairs."""
    rounds = []
    for _ in range(5):
        start = time.process_time()
        for row in rows:
            same(row["one"], row["other"])
        rounds.append(time.process_time() - start)
    return round(1e6 * min(rounds) / len(rows), 1)


def measure(states: int = STATES) -> dict[str, Any]:
    """The figures, printed on the way; votes on so many states of each kind of mistake."""
    rows = [json.loads(line) for line in (TESTS / "pairs.jsonl").read_text("utf-8").splitlines()]
    found = Counter((row["class"], row["label"], cascade(row["one"], row["other"]).answer.value) for row in rows)
    for kind in sorted({row["class"] for row in rows}):
        print(f"{kind:22s}", {f"{label}: {answer}": n for (k, label, answer), n in sorted(found.items()) if k == kind})
    votes = {}
    for mistakes in ("elsewhere", "near"):
        answered = made_up(rows, random.Random(SEED), near=mistakes == "near", states=states)
        votes[mistakes] = {
            "exact": voted(answered, exact),
            "canonical": voted(answered, canonical),
            "cascade": voted(answered, cascade),
            "cascade_weighted": voted(answered, cascade, weighted=True),
        }
        for name, figures in votes[mistakes].items():
            print(f"{mistakes:10s}{name:22s}", figures)
    label = Counter((row["label"], cascade(row["one"], row["other"]).answer.value) for row in rows)
    return {
        "pairs": len(rows),
        "false_same": label["different", "same"],
        "false_diff": label["same", "diff"],
        "recall_same": round(label["same", "same"] / sum(n for (kind, _), n in label.items() if kind == "same"), 4),
        "states": states,
        "votes": votes,
        "us_per_comparison": {name: microseconds(rows, same) for name, same in (("canonical", canonical), ("cascade", cascade))},
    }


if __name__ == "__main__":
    emit("agreement", measure())
