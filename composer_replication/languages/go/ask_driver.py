"""Make calls of a Go module's functions inside a sandbox, and say what each gave; the host decides.

This text runs behind that of `toolchain`, in one namespace. Each package's calls are in a test program of its own, which is
started again behind a call that ends it.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from composer_replication.languages.go.toolchain import ENVIRONMENT, WORK, compiler_said, go
    from composer_replication.languages.tell import tell

MOST_ENDED = 10
"""Calls that may end the process before the others count as unanswered."""
MOST_ROUNDS = 5
"""Times that a program is built again without calls that the compiler refuses."""


def answers_of(package: dict[str, Any], number: int, mark: str) -> tuple[list[Any], str]:
    """Return the answers to one package's calls, None for one without, and what the compiler said where there are none."""
    folder, count = package["folder"], package["count"]
    for name, text in package["files"].items():
        with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
            file.write(text)
    binary = os.path.join(WORK, f"calls{number}")
    said = built(folder, binary, package)
    answers: list[Any] = [None] * count
    if not os.path.exists(binary):
        return answers, compiler_said(said)
    first = ended = 0
    while first < count and ended < MOST_ENDED:
        begun = -1
        for line in lines_of(binary, folder, first):
            parts = line.split(" ", 2)
            if len(parts) == 3 and parts[0] == mark and parts[1].isdigit() and int(parts[1]) < count:
                begun = int(parts[1])
                if parts[2] != "begun":
                    try:
                        answers[begun] = json.loads(parts[2])
                    except ValueError:
                        continue
        ended += 1
        first = count if begun < 0 else begun + 1
    return answers, ""


def built(folder: str, binary: str, package: dict[str, Any]) -> subprocess.CompletedProcess[bytes]:
    """Build a package's calls; those that the compiler refuses are left out and give no answer."""
    asker = os.path.join(folder, package["asker"])
    for _ in range(MOST_ROUNDS):
        said = go("test", "-c", "-vet=off", "-gcflags=-e", "-o", binary, "./" + folder)
        text = said.stderr.decode(errors="replace")
        refused = {int(line) for line in re.findall(re.escape(package["asker"]) + r":(\d+):", text)}
        if not said.returncode or not refused:
            break
        with open(asker, encoding="utf-8") as file:
            lines = file.read().split("\n")
        calls = {number for number in refused if number <= len(lines) and lines[number - 1].startswith("\tfunc()")}
        if not calls:
            break
        for number in calls:
            lines[number - 1] = "\tfunc() composerAnswer { return composerAnswer{Panics: true} },"
        with open(asker, "w", encoding="utf-8") as file:
            file.write("\n".join(lines))
    return said


def lines_of(binary: str, folder: str, first: int) -> list[str]:
    """Run the calls from number `first` on, and return the lines that the program writes to its pipe."""
    reading, writing = os.pipe()
    env = {**ENVIRONMENT, "COMPOSER_PIPE": str(writing), "COMPOSER_FROM": str(first)}
    nothing = subprocess.DEVNULL
    process = subprocess.Popen([binary], cwd=folder, env=env, pass_fds=[writing], stdin=nothing, stdout=nothing, stderr=nothing)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        lines = pipe.read(64 << 20).decode(errors="replace").splitlines()
    process.kill()
    process.wait()
    return lines


if __name__ == "__main__":
    asked = json.load(sys.stdin)
    found = [answers_of(package, number, asked["mark"]) for number, package in enumerate(asked["packages"])]
    tell(asked["nonce"], [[answers, said] for answers, said in found])
