"""Make calls of a Java project's methods inside a sandbox, and say what each gave; the host decides.

The calls are made by a program on a JVM, whose class path has the project's code and libraries and no tests. It is started again
behind a call that ends it, or does not end.

This text runs behind that of `toolchain`, in one namespace.
"""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from composer_replication.languages.java.settings import java_paths, place_of
    from composer_replication.languages.java.toolchain import (
        WORK,
        compile_main,
        jars,
        last_line,
        resources_of,
        run_watched,
        support_classes,
    )
    from composer_replication.languages.tell import tell

MOST_ENDED, MOST_ENDED_BY_GOLD = 10, 40
"""Calls that may end the process, or hang, before the others count as unanswered."""
MOST_OF_ONE = 2
"""Such calls of one method, behind which its others count as unanswered where the gold code is asked."""


def answers_to(request: Mapping[str, Any]) -> tuple[list[Any], str]:
    """Return an answer to each call, None for one without, and why none could be made."""
    calls, mark, details = list(request["calls"]), request["mark"], request["details"]
    ended_by: Counter[str] = Counter()
    answers: list[Any] = [None] * len(calls)
    main = [path for path in java_paths(".") if place_of(path) == "main"]
    _, others = jars()
    code, plan = os.path.join(WORK, "main"), os.path.join(WORK, "plan")
    asker, said = support_classes(request["support"], request["askers"], [])
    said = said or compile_main(main, code, [asker, *others])[0]
    class_path = [asker, code, *resources_of(main), *others]
    first = ended = 0
    while not said and first < len(calls) and ended < (MOST_ENDED_BY_GOLD if details else MOST_ENDED):
        asked = {"calls": calls, "mark": mark, "details": details, "repeats": request["repeats"], "first": first}
        with open(plan, "w", encoding="utf-8") as file:
            json.dump(asked, file)
        command = ["zzcomposer.Asker", "{fd}", plan]
        lines, printed, _ = run_watched(command, class_path, request["call_s"], request["start_s"], request["all_s"])
        begun = take_answers(lines, mark, answers)
        if f"{mark} end" in lines:
            break
        ended += 1
        if begun >= 0 and details and answers[begun] is None:
            ended_by[calls[begun]["key"]] += 1
            calls = [one if one and ended_by[one["key"]] < MOST_OF_ONE else None for one in calls]
        said = "" if begun >= 0 else last_line(printed) or "the JVM of the calls ended"
        first = begun + 1
    return answers, said


def take_answers(lines: Sequence[str], mark: str, answers: list[Any]) -> int:
    """Read the answers among lines; return the number of the last call that was begun, -1 for none."""
    begun = -1
    for line in lines:
        parts = line.split(" ", 2)
        if len(parts) != 3 or parts[0] != mark or not parts[1].isdigit() or int(parts[1]) >= len(answers):
            continue
        begun = int(parts[1])
        if parts[2] != "begun":
            try:
                answers[begun] = json.loads(parts[2])
            except (ValueError, RecursionError):
                continue
    return begun


if __name__ == "__main__":
    asked = json.load(sys.stdin)
    tell(asked["nonce"], answers_to(asked))
