"""Make calls of a project's functions inside a sandbox, and say what each gave; the host decides.

The calls are made by a generated test, so that modules are loaded as the project's own tests load them. It is started again
behind a call that ends it, or does not end.

This text runs behind that of `toolchain`, in one namespace.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from composer_replication.languages.javascript.toolchain import (
        WORK,
        commands_of,
        error_in,
        lines_of,
        link_modules,
        run_limited,
    )
    from composer_replication.languages.tell import tell

MOST_ENDED = 10
"""Calls that may end the process before the others count as unanswered."""


def answers_to(request: Mapping[str, Any]) -> tuple[list[Any], str]:
    """Return an answer to each call, None for one without, and what went wrong where modules could not be loaded."""
    link_modules(request["support"])
    os.makedirs(os.path.dirname(request["asker"]) or ".", exist_ok=True)
    with open(request["asker"], "w", encoding="utf-8") as file:
        file.write(request["text"])
    calls, out, mark = request["calls"], os.path.join(WORK, "answers"), request["mark"]
    answers: list[Any] = [None] * len(calls)
    said = ""
    first = ended = 0
    while first < len(calls) and ended < MOST_ENDED:
        plan = {"calls": calls, "modules": request["modules"], "out": out, "mark": mark, "first": first}
        plan |= {"details": request["details"], "repeats": request["repeats"]}
        with open(os.path.join(WORK, "plan"), "w", encoding="utf-8") as file:
            json.dump(plan, file)
        ((command, _),) = commands_of(request["framework"], [request["asker"]])
        extra = {"COMPOSER_MARK": mark}
        _, printed = run_limited(command, request["call_s"], extra, watched=out, start_s=request["start_s"])
        begun = -1
        for line in lines_of(out, mark):
            if len(line) < 2 or not isinstance(line[0], int) or not -1 <= line[0] < len(calls):
                continue
            if line[1] == "module":
                said = said or str(line[2])
            else:
                begun = line[0]
                if line[1] == "answer" and len(line) == 3:
                    answers[begun] = line[2]
        ended += 1
        said = said or (error_in(printed) if begun < 0 else "")
        first = len(calls) if begun < 0 else begun + 1
    return answers, said


if __name__ == "__main__":
    asked = json.load(sys.stdin)
    tell(asked["nonce"], answers_to(asked))
