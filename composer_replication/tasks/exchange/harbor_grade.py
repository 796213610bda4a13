"""Grades /app inside a Harbor verifier, without network: this file and the grader itself are copied into a task's `tests/`.

Writes `/logs/verifier/reward.txt`, and the whole verdict to `report.json` beside it. When the sandbox broke there is no reward
file, and the exit status is not 0: Harbor then counts an error, not a failure.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

__all__ = ["main"]

EXIT_UNSCORED = 4


def main(tests: Path, workspace: Path, logs: Path) -> int:
    """Grade `workspace` with the task in `tests`; the verdict goes to `logs`."""
    sys.path.insert(0, str(tests / "grader"))
    from composer_replication.errors import SandboxUnavailableError
    from composer_replication.sandbox import open_sandbox
    from composer_replication.sandbox.grading import grade
    from composer_replication.types import Unscored, task_spec_from_json, to_json

    spec = task_spec_from_json(json.loads((tests / "task.json").read_text("utf-8")))
    try:
        sandbox = open_sandbox()
    except SandboxUnavailableError:  # a container may allow none; it is then the only wall, and the report says so
        sandbox = open_sandbox("unsafe-subprocess")
    report = grade(spec, tests / "repo", workspace, sandbox=sandbox, python=Path(sys.executable))
    logs.mkdir(parents=True, exist_ok=True)
    (logs / "report.json").write_text(json.dumps(to_json(report), indent=1) + "\n", "utf-8")
    sys.stdout.write("\n".join([report.isolation, *report.reasons]) + "\n")
    if isinstance(report.reward, Unscored):
        return EXIT_UNSCORED
    (logs / "reward.txt").write_text(f"{report.reward:g}\n", "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(*(Path(argument) for argument in sys.argv[1:4])))
