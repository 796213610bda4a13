"""Make `pairs.jsonl`: labelled pairs of actions. Labels come from doing both actions, never from
`composer_replication.actions.agreement`.

    python tests/actions/make_pairs.py            write the file
    python tests/actions/make_pairs.py --check    only compare it with what is found now

Shell: both commands run by bash in copies of the trees of `trees.py`. Same: equal output (without `./` before paths, and
durations), exit status and files in every tree; different: not so in one. Tools and edits: both are carried out by `CodingEnv` in
the same trees. Python files afterwards are the same when CPython compiles them to the same code, else both are run on probes.
"""

from __future__ import annotations

import itertools
import json
import sys
import tempfile
from pathlib import Path

from commands import GROUPS
from edits_and_tools import EDITS, TOOLS
from trees import Runner, tree_names
from worlds import action, effect_of_edit, effect_of_tool

PAIRS = Path(__file__).with_name("pairs.jsonl")


def bash(command):
    return json.dumps({"name": "bash", "arguments": {"command": command}}, ensure_ascii=False)


def pairs_of(equal, others):
    """Pairs that are meant to be the same, then pairs that are not."""
    same = [(equal[0], e) for e in equal[1:]] + list(itertools.pairwise(equal[1:]))
    return same, [(equal[i % len(equal)], other) for i, other in enumerate(others)]


def labelled(name, kind, one, other, same, action):
    return {"id": name, "class": kind, "label": "same" if same else "different", "one": action(one), "other": action(other)}


def make(groups, kind_of, same_effect, action, prefix):
    """Rows, and the pairs whose label is not what their author meant."""
    rows, surprises = [], []
    for number, (kind, equal, others) in enumerate(groups):
        for meant, pairs in zip((True, False), pairs_of(equal, others), strict=True):
            for place, (one, other) in enumerate(pairs):
                found = same_effect(one, other)
                rows.append(
                    labelled(f"{prefix}{number}{'s' if meant else 'd'}{place}", kind_of(kind, meant), one, other, found, action)
                )
                if found is not meant:
                    surprises.append((meant, one, other))
    return rows, surprises


def main():
    with tempfile.TemporaryDirectory() as folder:
        runner = Runner(Path(folder))
        shell = make(
            GROUPS,
            lambda kind, meant: f"shell: {kind}" if meant else "shell: near miss",
            lambda one, other: all(runner.effect(one, tree) == runner.effect(other, tree) for tree in tree_names(one, other)),
            bash,
            "s",
        )
        tools = make(TOOLS, lambda _, meant: "tools" if meant else "tools: near miss", effect_of_tool, action, "t")
        edits = make(EDITS, lambda kind, meant: f"edits: {kind}" if meant else "edits: near miss", effect_of_edit, action, "e")
    rows = [row for part in (shell, tools, edits) for row in part[0]]
    surprises = [s for part in (shell, tools, edits) for s in part[1]]
    text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    for meant, one, other in surprises:
        print(f"NOT {'the same' if meant else 'different'}: {one!r} | {other!r}")
    print(f"{len(rows)} pairs, {sum(r['label'] == 'same' for r in rows)} of them the same")
    if "--check" in sys.argv:
        return int(bool(surprises) or text != PAIRS.read_text("utf-8"))
    PAIRS.write_text(text, "utf-8")
    return int(bool(surprises))


if __name__ == "__main__":
    sys.exit(main())
