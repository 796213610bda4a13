"""Grades /app inside a Harbor verifier, without network: this file and the grader itself are copied into a task's `tests/`.

Writes `/logs/verifier/reward.txt`, and the whole verdict to `report.json` beside it. When the sandbox broke, or the container
allows none, there is no reward file, and the exit status is not 0: Harbor then counts an error, not a failure. Without a sandbox
the code under test could read the expected answers beside this file; who accepts that says so in the verifier's environment:
`COMPOSER_SANDBOX=unsafe-subprocess`.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Final

EXIT_UNSCORED = 4
UNSAFE: Final = "unsafe-subprocess"


def main(tests: Path, workspace: Path, logs: Path) -> int:
    """Grade `workspace` with the task in `tests`; the verdict goes to `logs`."""
    sys.path.insert(0, str(tests / "grader"))
    from composer_replication.sandbox import open_sandbox
    from composer_replication.sandbox.grading.grade import grade
    from composer_replication.types import TaskSpec, Unscored, from_json, to_json
    from composer_replication.types.errors import SandboxUnavailableError
    from composer_replication.types.guarded_streams import guard_streams

    guard_streams()
    spec = from_json(TaskSpec, json.loads((tests / "task.json").read_text("utf-8")))
    try:
        sandbox = open_sandbox(UNSAFE if os.environ.get("COMPOSER_SANDBOX") == UNSAFE else "auto")
    except SandboxUnavailableError as error:
        sys.stdout.write(
            f"no reward: {error.message}\n  fix: run the verifier where a sandbox can start, or COMPOSER_SANDBOX={UNSAFE}\n"
        )
        return EXIT_UNSCORED
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
