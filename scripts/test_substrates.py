"""Test every substrate in an environment of its own, and end with one line of JSON.

usage: python scripts/test_substrates.py [SESSION ...]
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

SESSIONS = ("trl", "verl", "mesh", "monarch", "prime_rl")


def main() -> None:
    """The command."""
    sessions = sys.argv[1:] or SESSIONS
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        nox = (str(Path(sys.executable).parent / "nox"), "--session", *sessions, "--report", str(report))
        status = subprocess.run(nox, check=False).returncode
        told = json.loads(report.read_text("utf-8"))["sessions"] if report.exists() else []
    results = {row["name"]: row["result"] for row in told}
    skipped = [name for name, result in results.items() if result == "skipped"]
    print(json.dumps({"tests": "substrates", "passed": status == 0, "not_checked": skipped, "sessions": results}))
    sys.exit(status)


if __name__ == "__main__":
    main()
