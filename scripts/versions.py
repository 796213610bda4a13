"""Write the table of tested versions in docs/substrates.md from docs/figures/tested_versions.json, which `make smoke` collects.

usage: python scripts/versions.py [--check]          --check changes nothing, and fails where the page is another
"""

from __future__ import annotations

import json
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "substrates.md"
BEGIN, END = "<!-- tested versions: written by scripts/versions.py -->\n", "<!-- end of tested versions -->\n"
SHOWN = ("python", "torch", "transformers", "openai")


def table() -> str:
    """One row per extra."""
    tested = json.loads((ROOT / "docs" / "figures" / "tested_versions.json").read_text("utf-8"))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    rows = [f"| extra | what it installs | {' | '.join(SHOWN)} |", "|---" * (2 + len(SHOWN)) + "|"]
    for extra in sorted(set(project["optional-dependencies"]) - {"dev"}):
        versions = tested.get(extra)
        if versions is None:
            rows.append(f"| `{extra}` | not tested alone | {' | '.join([''] * len(SHOWN))} |")
            continue
        own = ", ".join(f"{name} {version}" for name, version in versions.items() if name not in SHOWN)
        rows.append(f"| `{extra}` | {own} | {' | '.join(versions[name] for name in SHOWN)} |")
    return "\n".join(rows) + "\n"


def main() -> None:
    """The command."""
    text = PAGE.read_text("utf-8")
    before, _, rest = text.partition(BEGIN)
    after = rest.partition(END)[2]
    wanted = f"{before}{BEGIN}{table()}{END}{after}"
    if "--check" not in sys.argv[1:]:
        PAGE.write_text(wanted, "utf-8")
    elif wanted != text:
        sys.exit(f"{PAGE.name} has other versions than tested_versions.json: run python scripts/versions.py")


if __name__ == "__main__":
    main()
