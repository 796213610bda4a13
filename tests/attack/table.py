"""Print which attacks on grading win, by strategy, against a naive grader and this one; the last line is JSON (`make attack`).

The columns: pytest's exit status in the agent's workspace; the fresh tree with the task's own tests; the same with anti-tests;
the whole grader, with calls judged outside the box; and whether the tripwire raises an alarm, which decides nothing. The exit
status is 1 when the whole grader rewards an attack or doing nothing, or does not reward honest work.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

from attacks import HONEST, NOTHING, Attack
from registry import ATTACKS, STRATEGIES
from suite import build_task, naive, ours, with_anti_tests, without_hidden_checks, workspace

from composer_replication.sandbox import Sandbox, open_sandbox
from composer_replication.tasks.store import Task

COLUMNS = ("exit status", "tests only", "anti-tests", "ours")


def verdicts(task: Task, attack: Attack, sandbox: Sandbox) -> tuple[tuple[bool, ...], bool]:
    """Return which graders reward it, and whether there is an alarm."""
    with workspace(task, attack) as root:
        reports = [ours(task, root, sandbox, spec) for spec in (without_hidden_checks(task), with_anti_tests(task), task.spec)]
        won = (naive(task, root, sandbox), *(report.reward == 1.0 for report in reports))
    return won, bool(reports[-1].alarms)


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        task, sandbox = build_task(Path(folder)), open_sandbox()
        print(sandbox.isolation.summary())
        print(f"{'':50}" + "".join(f"{column:>14}" for column in (*COLUMNS, "alarm")))
        found: dict[str, tuple[bool, ...]] = {}
        alarms: dict[str, bool] = {}
        for strategy, group in {"no attack": {**HONEST, "nothing": NOTHING}, **STRATEGIES}.items():
            print(f"\n{strategy}")
            for name, attack in group.items():
                found[name], alarms[name] = verdicts(task, attack, sandbox)
                cells = [*("REWARDED" if won else "-" for won in found[name]), "alarm" if alarms[name] else "-"]
                print(f"  {name:48}" + "".join(f"{cell:>14}" for cell in cells), flush=True)
    print(f"\n{'rewarded, by strategy':50}" + "".join(f"{column:>14}" for column in COLUMNS))
    for strategy, group in STRATEGIES.items():
        sums = (f"{sum(found[name][n] for name in group)} of {len(group)}" for n in range(len(COLUMNS)))
        print(f"  {strategy:48}" + "".join(f"{cell:>14}" for cell in sums))
    won = {column: sum(found[name][n] for name in ATTACKS) for n, column in enumerate(COLUMNS)}
    honest, nothing = all(found[name][3] for name in HONEST), found["nothing"][3]
    passed = won["ours"] == 0 and honest and not nothing
    summary = {
        "attacks": len(ATTACKS),
        "rewarded": won,
        "honest_rewarded": honest,
        "nothing_rewarded": nothing,
        "alarms": sum(alarms[name] for name in ATTACKS),
        "honest_alarms": sum(alarms[name] for name in HONEST),
        "passed": passed,
    }
    print(json.dumps(summary))
    return int(not passed)


if __name__ == "__main__":
    sys.exit(main())
