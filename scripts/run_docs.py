"""Execute the examples of README.md, docs/*.md and the notebooks of examples/, so that they cannot lie.

Every fenced `python` block runs: the blocks of one page are one program, run from the root of the repository in a process of
its own. A fenced `bash` block runs when the line before its fence is `<!-- run -->`, with the environment's commands on PATH.

    usage: python scripts/run_docs.py [PAGE ...]
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FENCE = re.compile(r"^```(?P<language>[\w-]*)[^\n]*\n(?P<code>.*?)^```[ \t]*$", flags=re.MULTILINE | re.DOTALL)
MARK = "<!-- run -->"


@dataclass(frozen=True, slots=True)
class Example:
    """One thing to execute: the bash block at a line, or all python blocks of a page."""

    page: Path
    line: int
    language: str
    code: str

    @property
    def title(self) -> str:
        """Where the example stands, e.g. `README.md:12 (bash)`."""
        return f"{self.page.name}:{self.line} ({self.language})"

    @property
    def argv(self) -> list[str]:
        """The command that executes it."""
        if self.language == "notebook":
            return [sys.executable, "-m", "jupyter", "execute", str(self.page)]
        if self.language == "bash":
            return ["bash", "-euo", "pipefail", "-c", self.code]
        return [sys.executable, "-c", self.code]


def examples_of(page: Path) -> list[Example]:
    """Return the examples of one page, in the order they stand; python code keeps its line numbers. A notebook is one example."""
    if page.suffix == ".ipynb":
        return [Example(page, 1, "notebook", "")]
    text = page.read_text("utf-8")
    bash: list[Example] = []
    python: list[str] = []
    python_line = 0
    for fence in FENCE.finditer(text):
        line = text.count("\n", 0, fence.start("code")) + 1
        before = text[: fence.start()].rstrip().rpartition("\n")[2].strip()
        if fence["language"] == "bash" and before == MARK:
            bash.append(Example(page, line, "bash", fence["code"]))
        elif fence["language"] == "python":
            python_line = python_line or line
            written = sum(code.count("\n") for code in python)
            python.append("\n" * (line - 1 - written) + fence["code"])
    together = [Example(page, python_line, "python", "".join(python))] if python else []
    return sorted(bash + together, key=lambda example: example.line)


def execute(example: Example) -> bool:
    """Run one example and say how it went; its output is shown when it fails."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    start = time.monotonic()
    run = subprocess.run(
        example.argv,
        cwd=ROOT,
        env={**os.environ, "PATH": path},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    verdict = "ok" if run.returncode == 0 else f"FAILED with status {run.returncode}"
    print(f"{example.title}: {verdict}, {time.monotonic() - start:.1f} s", flush=True)
    if run.returncode != 0:
        print(run.stdout)
    return run.returncode == 0


def main(arguments: list[str]) -> int:
    """Execute the named pages, or README.md, docs/*.md and the notebooks; 1 when an example failed."""
    ours = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "examples").glob("*.ipynb"))]
    pages = [Path(name) for name in arguments] or ours
    examples = [example for page in pages for example in examples_of(page)]
    failed = [example.title for example in examples if not execute(example)]
    print(f"{len(examples)} examples from {len(pages)} pages, {len(failed)} failed{': ' + ', '.join(failed) if failed else ''}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
