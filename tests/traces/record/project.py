"""The project that agents work on while they are recorded: one wrong function and one test."""

from __future__ import annotations

import subprocess
from pathlib import Path

SHOP = '"""A shop."""\n\n\ndef total(price, count):\n    return price - count\n'
TEST = "from shop import total\n\n\ndef test_total():\n    assert total(3, 2) == 6\n"


def project(folder: Path) -> None:
    folder.mkdir(parents=True)
    (folder / "shop.py").write_text(SHOP)
    (folder / "test_shop.py").write_text(TEST)
    git = ["git", "-c", "user.name=A", "-c", "user.email=a@example.com", "-C", str(folder)]
    for command in (["init", "-q", "-b", "main"], ["add", "."], ["commit", "-qm", "A shop"]):
        subprocess.run([*git, *command], check=True)
