"""Git repositories with a history, made on the spot."""

from __future__ import annotations

import subprocess
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

DATE = "2024-05-06T07:08:09+00:00"


@dataclass(frozen=True)
class Repository:
    """A real repository: commits are files by path, None for one that is removed."""

    path: Path

    def git(self, *arguments: str) -> str:
        settings = ["user.name=a", "user.email=a@example.org", "commit.gpgsign=false", "init.defaultBranch=main"]
        identity = [word for setting in settings for word in ("-c", setting)]
        environment = {"GIT_COMMITTER_DATE": DATE, "GIT_AUTHOR_DATE": DATE, "PATH": "/usr/bin:/bin", "HOME": str(self.path)}
        command = ["git", *identity, *arguments]
        return subprocess.run(command, cwd=self.path, check=True, capture_output=True, text=True, env=environment).stdout.strip()

    def commit(self, message: str, files: Mapping[str, str | None]) -> str:
        for name, text in files.items():
            if text is None:
                (self.path / name).unlink()
            else:
                (self.path / name).parent.mkdir(parents=True, exist_ok=True)
                (self.path / name).write_text(textwrap.dedent(text))
        self.git("add", "-A")
        self.git("commit", "-q", "--allow-empty", "-m", message)
        return self.git("rev-parse", "HEAD")

    def merge(self, branch: str, message: str) -> str:
        self.git("merge", "-q", "--no-ff", "-m", message, branch)
        return self.git("rev-parse", "HEAD")


def new_repository(path: Path) -> Repository:
    path.mkdir(parents=True)
    found = Repository(path)
    found.git("init", "-q")
    return found


TOTALS = '''\
"""Totals."""


def total(prices):
    """Add prices."""
    whole = 0
    for price in prices:
        whole += price
    return whole
'''
WITH_DISCOUNT = (
    TOTALS
    + '''

def discounted(price, percent):
    """Take a discount from a price."""
    if percent < 0:
        raise ValueError("a discount is not negative")
    taken = price * percent // 100
    return price - taken
'''
)
CLAMPED = WITH_DISCOUNT.replace("    taken =", "    percent = min(percent, 90)\n    taken =")
TEST_TOTAL = """\
import pytest

from shop.totals import total


def test_total():
    assert total([1, 2, 3]) == 6


def test_nothing():
    assert total([]) == 0
"""
TEST_DISCOUNT = """\
import pytest

from shop.totals import discounted


def test_discount():
    assert discounted(200, 10) == 180


def test_small_discount():
    assert discounted(99, 50) == 50


def test_no_discount():
    assert discounted(70, 0) == 70


def test_negative():
    with pytest.raises(ValueError):
        discounted(10, -1)
"""
TEST_CLAMPED = (
    TEST_DISCOUNT
    + """

def test_at_most_ninety():
    assert discounted(1000, 95) == 100
    assert discounted(500, 91) == 50
"""
)
FIRST_NEWS = "## 0.1\n\n- The first release of the shop\n"
BASE = {
    "pyproject.toml": '[project]\nname = "shop"\nversion = "1"\nlicense = "MIT"\n',
    "README.md": "Totals of a shop.\n",
    "CHANGELOG.md": f"# Changes\n\n{FIRST_NEWS}",
    "shop/__init__.py": "",
    "shop/totals.py": TOTALS,
    "tests/test_total.py": TEST_TOTAL,
}
DISCOUNT = {
    "shop/totals.py": WITH_DISCOUNT,
    "tests/test_discount.py": TEST_DISCOUNT,
    "CHANGELOG.md": f"# Changes\n\n## 0.2\n\n- Prices can have a discount in percent\n\n{FIRST_NEWS}",
}
CLAMP = {"shop/totals.py": CLAMPED, "tests/test_discount.py": TEST_CLAMPED}
