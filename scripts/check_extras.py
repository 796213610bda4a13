"""Resolve every optional extra of the package beside the core's torch, as `pip install 'composer-replication[EXTRA]'` would.

Nothing is installed: pip resolves against an empty environment and reports what it would choose. An extra that does not
resolve, or does not do so within the time given, fails.

    usage: python scripts/check_extras.py [EXTRA ...]
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import time
import tomllib
import venv
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TORCH = "torch==2.13.0"
TIMEOUT_S = 900.0
PIP = "pip>=25"
"""Resolves from package metadata alone; older versions download every wheel they look at."""
SHOWN = ("torch", "transformers", "openai")


def resolve(python: Path, extra: str) -> tuple[bool, str]:
    """Ask pip for the extra's set of packages; (did it resolve, one paragraph for people)."""
    argv = [str(python), "-m", "pip", "install", "--dry-run", "--ignore-installed", "--quiet", "--report", "-"]
    start = time.monotonic()
    try:
        run = subprocess.run(
            [*argv, TORCH, f".[{extra}]"],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=TIMEOUT_S,
        )
    except subprocess.TimeoutExpired:
        return False, f"{extra}: NOT RESOLVED within {TIMEOUT_S:.0f} s"
    if run.returncode != 0:
        return False, f"{extra}: DOES NOT RESOLVE\n{run.stderr.strip()}"
    chosen = {item["metadata"]["name"].lower(): item["metadata"]["version"] for item in json.loads(run.stdout)["install"]}
    asked = declared_extras()[extra]
    names = dict.fromkeys([*SHOWN, *(re.split(r"[\s<>=!~;\[]", line, maxsplit=1)[0].lower() for line in asked)])
    versions = ", ".join(f"{name} {chosen[name]}" for name in names if name in chosen)
    return True, f"{extra}: {len(chosen)} packages in {time.monotonic() - start:.0f} s: {versions}"


def declared_extras() -> dict[str, list[str]]:
    """The extras of pyproject.toml and what each asks for."""
    extras: dict[str, list[str]] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    return extras


def main(arguments: list[str]) -> int:
    """Resolve the named extras, or all; 1 when one does not resolve."""
    extras = arguments or list(declared_extras())
    unknown = sorted(set(extras) - set(declared_extras()))
    if unknown:
        print(f"no such extra: {', '.join(unknown)}; pyproject.toml has {', '.join(declared_extras())}")
        return 2
    with tempfile.TemporaryDirectory(prefix="extras-") as folder:
        venv.create(folder, with_pip=True)
        python = Path(folder) / "bin" / "python"
        subprocess.run([python, "-m", "pip", "install", "--quiet", "--upgrade", PIP], check=True, stdin=subprocess.DEVNULL)
        with ThreadPoolExecutor(max_workers=2) as pool:
            results = []
            for resolved, paragraph in pool.map(lambda extra: resolve(python, extra), extras):
                print(paragraph, flush=True)
                results.append(resolved)
    print(f"{sum(results)} of {len(results)} extras resolve beside {TORCH}")
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
