"""Print which attacks on grading win, by strategy, against a naive grader and this one; the last line is JSON (`make attack`).

The columns: pytest's exit status in the agent's workspace; the fresh tree with the task's own tests; the same with anti-tests;
the whole grader, with calls judged outside the box; and whether the tripwire raises an alarm, which decides nothing. The exit
status is 1 when the whole grader rewards an attack or doing nothing, or does not reward honest work.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from accomplices import rewritten
from attacks import HONEST, NOTHING, Attack
from classes import forged_methods
from registry import STRATEGIES
from suite import build_methods, build_task, naive, ours, with_anti_tests, without_hidden_checks, workspace

from composer_replication.sandbox import Sandbox, open_sandbox
from composer_replication.tasks.store import Task

METHODS = "one line for a method of a class"
ACCOMPLICES = "other functions rewritten"
COLUMNS = ("exit status", "tests only", "anti-tests", "ours")


def verdicts(task: Task, attack: Attack, sandbox: Sandbox) -> tuple[tuple[bool, ...], bool]:
    """Return which graders reward it, and whether there is an alarm."""
    with workspace(task, attack) as root:
        reports = [ours(task, root, sandbox, spec) for spec in (without_hidden_checks(task), with_anti_tests(task), task.spec)]
        won = (naive(task, root, sandbox), *(report.reward == 1.0 for report in reports))
    return won, bool(reports[-1].alarms)


def attacks_on_methods(methods: Mapping[str, Task]) -> Iterator[tuple[str, str, Task, Attack]]:
    """Yield each method of a class with each body of one line, and with each rewrite of all other functions, every test
    forged."""
    for strategy, made in ((METHODS, forged_methods), (ACCOMPLICES, rewritten)):
        for name, task in methods.items():
            for body, files in made(task):
                attack = Attack(files={path: text.decode() for path, text in files.items()})
                yield strategy, f"{name}: {body}"[:48], task, attack


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", type=Path, help="keep the last line in this file")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        task, sandbox = build_task(Path(folder)), open_sandbox()
        print(sandbox.isolation.summary())
        print(f"{'':50}" + "".join(f"{column:>14}" for column in (*COLUMNS, "alarm")))
        found: dict[str, list[tuple[bool, ...]]] = {}
        alarms: dict[str, int] = {}
        groups = {"no attack": {**HONEST, "nothing": NOTHING}, **STRATEGIES}
        every = [(strategy, name, task, attack) for strategy, group in groups.items() for name, attack in group.items()]
        every += attacks_on_methods(build_methods(Path(folder)))
        for strategy, name, of, attack in every:
            if strategy not in found:
                print(f"\n{strategy}")
            won, alarm = verdicts(of, attack, sandbox)
            found.setdefault(strategy, []).append(won)
            alarms[strategy] = alarms.get(strategy, 0) + alarm
            cells = [*("REWARDED" if one else "-" for one in won), "alarm" if alarm else "-"]
            print(f"  {name:48}" + "".join(f"{cell:>14}" for cell in cells), flush=True)
    *honest, nothing = found.pop("no attack")
    honest_alarms = alarms.pop("no attack")
    print(f"\n{'rewarded, by strategy':50}" + "".join(f"{column:>14}" for column in COLUMNS))
    for strategy, group in found.items():
        sums = (f"{sum(won[n] for won in group)} of {len(group)}" for n in range(len(COLUMNS)))
        print(f"  {strategy:48}" + "".join(f"{cell:>14}" for cell in sums))
    won = {column: sum(one[n] for group in found.values() for one in group) for n, column in enumerate(COLUMNS)}
    honest_rewarded = all(one[3] for one in honest)
    passed = won["ours"] == 0 and honest_rewarded and not nothing[3]
    summary = {
        "attacks": sum(map(len, found.values())),
        "rewarded": won,
        "honest_rewarded": honest_rewarded,
        "nothing_rewarded": nothing[3],
        "alarms": sum(alarms.values()),
        "honest_alarms": honest_alarms,
        "passed": passed,
    }
    if arguments.write:
        by_strategy = {
            strategy: [len(group), sum(one[3] for one in group), alarms[strategy]] for strategy, group in found.items()
        }
        text = json.dumps({**summary, "attacks_rewarded_alarms": by_strategy}, indent=1)
        arguments.write.write_text(text + "\n", "utf-8")
    print(json.dumps(summary))
    return int(not passed)


if __name__ == "__main__":
    sys.exit(main())
