"""Make calls of a Java project's methods inside a sandbox, and say what each gave; the host decides.

The calls are made by a program on a JVM, whose class path has the project's code and libraries and no tests. It is started again
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

MOST_ENDED = 10
"""Calls that may end the process, or hang, before the others count as unanswered."""


def answers_to(request: Mapping[str, Any]) -> tuple[list[Any], str]:
    """Return an answer to each call, None for one without, and why none could be made."""
    calls, mark = request["calls"], request["mark"]
    answers: list[Any] = [None] * len(calls)
    main = [path for path in java_paths(".") if place_of(path) == "main"]
    _, others = jars()
    code, plan = os.path.join(WORK, "main"), os.path.join(WORK, "plan")
    asker, said = support_classes(request["support"], request["askers"], [])
    said = said or compile_main(main, code, [asker, *others])[0]
    class_path = [asker, code, *resources_of(main), *others]
    first = ended = 0
    while not said and first < len(calls) and ended < MOST_ENDED:
        asked = {name: request[name] for name in ("calls", "mark", "details", "repeats")}
        with open(plan, "w", encoding="utf-8") as file:
            json.dump({**asked, "first": first}, file)
        command = ["zzcomposer.Asker", "{fd}", plan]
        lines, printed, _ = run_watched(command, class_path, request["call_s"], request["start_s"], request["all_s"])
        begun = -1
        for line in lines:
            parts = line.split(" ", 2)
            if len(parts) != 3 or parts[0] != mark or not parts[1].isdigit() or int(parts[1]) >= len(calls):
                continue
            begun = int(parts[1])
            if parts[2] != "begun":
                try:
                    answers[begun] = json.loads(parts[2])
                except (ValueError, RecursionError):
                    continue
        ended += 1
        said = "" if begun >= 0 else last_line(printed) or "the JVM of the calls ended"
        first = begun + 1
    return answers, said


if __name__ == "__main__":
    asked = json.load(sys.stdin)
    tell(asked["nonce"], answers_to(asked))
