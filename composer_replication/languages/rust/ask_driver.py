"""Make calls of a Rust project's functions inside a sandbox, and say what each gave; the host decides.

This text runs behind that of `toolchain`, in one namespace. The calls of each crate are made by a generated test of it, which is
started again behind a call that ends its process.
"""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from composer_replication.languages.rust.toolchain import WORK, built, project, run, targets_of
    from composer_replication.languages.tell import tell


def answers_of(crate: dict[str, Any], mark: str) -> tuple[list[Any], str]:
    """Return the answers to one crate's calls, None for one without, and what the compiler said where there are none."""
    answers: list[Any] = [None] * len(crate["calls"])
    packages, trouble = project()
    found = [(options, folder) for _, root, options, folder in targets_of(packages) if root == crate["root"]]
    if not found:
        return answers, trouble or f"cargo does not build {crate['root']}"
    options, folder = found[0]
    programs, complaints, why = built(options, RUSTC_BOOTSTRAP=crate["names"])
    program = programs.get(crate["root"])
    if program is None:
        return answers, next(iter(complaints.values()), "") or why
    path = os.path.join(WORK, "asked")
    with open(path, "w", encoding="utf-8") as file:
        file.write("\n".join(crate["calls"]) + "\n")
    first = ended = 0
    while first < len(answers) and ended < asked["most_ended"]:
        begun = -1
        variables = {"COMPOSER_ASKED": path, "COMPOSER_FROM": str(first)}
        for state, number, _, line in run(program, folder, mark, "--exact", crate["test"], **variables):
            if number.isdigit() and int(number) < len(answers):
                begun = int(number)
                try:
                    answers[begun] = json.loads(line) if state == "done" else None
                except ValueError:
                    continue
        ended += 1
        first = len(answers) if begun < 0 else begun + 1
    return answers, ""


if __name__ == "__main__":
    asked = json.load(sys.stdin)
    tell(asked["nonce"], [answers_of(crate, asked["mark"]) for crate in asked["crates"]])
