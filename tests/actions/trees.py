"""Scratch trees to run commands in, and what a command did there."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

A = "def total(prices):\n    result = 0\n    for price in prices:\n        result += price\n    return result\n"
B = "RATE = 2\n\n\ndef count(prices):\n    return len(prices)\n\n\ndef Total(x):\n    return x * RATE\n"
TEST_A = (
    "import sys\nsys.path.insert(0, 'src')\nfrom a import total\n\n\ndef test_total():\n    assert total([1, 2]) == 3\n\n\n"
    "def test_total_wrong():\n    assert total([]) == 1\n\n\ndef test_count():\n    assert total([4]) == 5\n"
)
TEST_B = "def test_nothing():\n    assert True\n\n\ndef test_total_fails():\n    assert 1 == 2\n"
BIG = "".join(
    f"line {i} price {i * 7 % 11}{'  a.b' if i % 3 else ' axb'}{' price' if i % 5 == 0 else ''}\n" for i in range(1, 31)
)
FULL = {
    "src/a.py": A,
    "src/b.py": B,
    "src/.cache": "x\n",
    "tests/test_a.py": TEST_A,
    "tests/test_b.py": TEST_B,
    "README.md": "# Shop\n\nThe total of all.\ntota\n\n\n\nend\n",
    "notes.txt": "total\n-n\n-x\na|b\n",
    "data.csv": "10,x\n9,y\n9,a\n100,b\n9,y\n",
    ".hidden": "secret total\n",
    "empty.txt": "",
    "big.txt": BIG + "\n\n\na|b price\nprice$\n-n here\n-x\nend price",
    "dir with space/x.txt": "x\n",
}
TREES = {
    "full": FULL,
    "other": {
        "src/a.py": "# Total\n" + B,
        "src/c.py": "def total_of():\n    pass\n",
        "src/deep/d.py": "total = 'a.b'\n",
        "tests/test_a.py": "def test_total():\n    assert True\n\n\ndef test_count():\n    assert False\n",
        "big.txt": "a\nb\nprice\naxb\na.b\nprice x price\n",
        "notes.txt": "x\n",
        "src/x.txt": "price total\n",
        "zeta.txt": "tests\n",
    },
    "bait": {
        "-la": "option?\n",
        "-n": "price\n",
        "*.py": "star\n",
        "*.txt": "star\n",
        "a.py b.py": "two\n",
        "src/a.py": "x = 'total'\n",
        "src/*.py": "bait total\n",
        "src/a.py ": "blank behind\n",
        "big.txt": "price\n",
        "dir": "a file\n",
        "src/b.py": "y = 1\n",
    },
    "bare": {"a.py": A, "b.py": B, "out.txt": "old\n"},
    "empty": {},
}
GIT = {"GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_SYSTEM": "/dev/null"}
NAMES = {f"GIT_{who}_{what}": value for who in ("AUTHOR", "COMMITTER") for what, value in
         (("NAME", "n"), ("EMAIL", "e@x"), ("DATE", "2026-01-01T00:00:00Z"))}  # fmt: skip
DURATION = re.compile(r"\b[0-9]+\.[0-9]+s\b")
SPELLING = re.compile(
    r"(?<![\w./-])\./(?=[\w.])|(?<=/)(?:/|\./)+|/(?='?: |'?$)|(?<=bash: line )\d+|(?<=unknown option `)\w+", re.MULTILINE
)
"""Of messages: how a path or an option is written, and the line of the script."""
WALK = re.compile(r"(?:cp|rm|grep)\s(?:.*\s)?(?:-[A-Za-z]*[rR]|--recursive)|find\s")
"""Commands that walk a folder in the order of its file system, which two copies of one folder need not share."""
TIME_OF_ALL = 1_700_000_000


def tree_names(*commands):
    """Tests take long to start, and say nothing where there are none."""
    return ("full", "other", "bare") if any("pytest" in command for command in commands) else tuple(TREES)


class Runner:
    """Runs commands in fresh copies of the trees, all at one path."""

    def __init__(self, folder):
        self.folder = folder
        self.known = {}
        for name, files in TREES.items():
            self._lay_out(folder / "trees" / name, name, files)

    def _lay_out(self, root, name, files):
        root.mkdir(parents=True)
        for path, text in files.items():
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_text(text)
        if name in ("full", "other"):
            self._git(root, "init", "-q", "-b", "main")
            for message in ("one", "two", "three"):
                (root / "log.txt").write_text(message)
                self._git(root, "add", ".")
                self._git(root, "commit", "-q", "-m", message)
            (root / "log.txt").write_text("changed\n")
            (root / "staged.txt").write_text("staged\n")
            self._git(root, "add", "staged.txt")
            (root / "untracked.txt").write_text("new\n")
        for path in sorted(root.rglob("*"), reverse=True):
            if ".git" not in path.parts:
                os.utime(path, (TIME_OF_ALL + len(path.name), TIME_OF_ALL + len(path.name)))
        os.utime(root, (TIME_OF_ALL, TIME_OF_ALL))

    @staticmethod
    def _git(root, *words):
        subprocess.run(["git", *words], cwd=root, check=True, env={**os.environ, **GIT, **NAMES})

    def effect(self, command, tree):
        """Output, messages, exit status, and the files afterwards."""
        key = (command, tree)
        if key not in self.known:
            self.known[key] = self._run(command, tree)
        return self.known[key]

    def _run(self, command, tree):
        work = self.folder / "work"
        if work.exists():
            shutil.rmtree(work)
        shutil.copytree(self.folder / "trees" / tree, work, copy_function=shutil.copy2)
        env = {
            "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin",
            "HOME": "/nowhere",
            "LC_ALL": "C.UTF-8",
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTEST_ADDOPTS": "-p no:cacheprovider",
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            **GIT,
        }
        (work / "pytest.ini").write_text("[pytest]\n")
        inodes = re.compile(rb"^ *[0-9]+ (?=[-d][rwx-]{9})", re.MULTILINE)
        done = subprocess.run(
            ["bash", "-c", command], cwd=work, env=env, stdin=subprocess.DEVNULL, capture_output=True, check=False
        )
        shown = inodes.sub(b"INODE ", done.stdout).decode(errors="replace")
        clock = re.compile(r"[A-Z][a-z]{2} [ 0-9]{2} [0-9]{2}:[0-9]{2}")
        shown = DURATION.sub("TIME", clock.sub("NOW", shown))
        if WALK.match(command):
            shown = "".join(sorted(shown.splitlines(keepends=True)))
        said = SPELLING.sub("", done.stderr.decode(errors="replace"))
        files = {
            str(path.relative_to(work)): path.read_bytes() if path.is_file() else None
            for path in sorted(work.rglob("*"))
            if ".git" not in path.relative_to(work).parts
        }
        return shown, said, done.returncode, files
