"""The process that builds one source of a set: `python -m composer_replication.tasks.sets.one_build OUT`.

A process of its own, so that what ends it ends nothing else. What to build is in its environment, which other users of the
machine do not see: an address may hold a password. Why it built nothing is kept in OUT, where `build_set` reads it.
"""

from __future__ import annotations

import json
import os
import resource
import sys
from collections.abc import Sequence
from pathlib import Path

from pydantic import TypeAdapter

from composer_replication.languages.layout import NoTestsError
from composer_replication.sandbox import open_sandbox
from composer_replication.tasks.build import build_tasks
from composer_replication.tasks.files import write_whole
from composer_replication.tasks.proofs.baseline import UnhealthyError
from composer_replication.tasks.report import BuildEvent, BuildOptions
from composer_replication.tasks.sources.fetch import without_password
from composer_replication.tasks.sources.source import STATE
from composer_replication.types.errors import ComposerError
from composer_replication.types.guarded_streams import guard_streams

OPTIONS: TypeAdapter[BuildOptions] = TypeAdapter(BuildOptions)
REQUEST = "COMPOSER_BUILD_REQUEST"
"""Environment variable that holds the source and the options, as JSON."""
COST = f"{STATE}/cost.json"
"""File below a build's folder that holds the CPU-seconds of the last build."""
REFUSED = f"{STATE}/refused.json"
"""File below a build's folder that says why nothing could be built."""


def main(words: Sequence[str]) -> int:
    """Build; return the exit code of what went wrong, 0 for nothing."""
    guard_streams()
    request, out = json.loads(os.environ.pop(REQUEST)), Path(words[0])
    source, options = str(request["source"]), OPTIONS.validate_python(request["options"])
    try:
        build_tasks(source, out, options, progress=_Said())
        code = 0
    except ComposerError as error:
        code = error.exit_code
        lasting = isinstance(error, UnhealthyError | NoTestsError)
        record = {"reason": error.message, "fix": error.fix or "", "lasting": lasting, "order": order_of(source, options)}
        write_whole(out / REFUSED, json.dumps(record, indent=1).encode())
        print(error, flush=True)  # noqa: T201  into the log
    write_whole(out / COST, json.dumps({"cpu_s": round(_cpu_s(options), 2)}).encode())
    return code


def _cpu_s(options: BuildOptions) -> float:
    """Return the CPU-seconds of this process, of what it has started, and of its sandboxes."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    ours = sum(one.ru_utime + one.ru_stime for one in used)
    try:
        return ours + open_sandbox(options.sandbox).cpu_s
    except ComposerError:
        return ours


def order_of(source: str, options: BuildOptions) -> dict[str, object]:
    """Return what a build was asked for, as far as it decides whether the tests pass."""
    asked = {**options.shaping, "timeout_s": options.timeout_s, "sandbox": options.sandbox}
    return {"source": without_password(source), "options": json.loads(json.dumps(asked, default=str))}


class _Said:
    """Say each stage once, in the log."""

    def __init__(self) -> None:
        self._stage = ""

    def __call__(self, event: BuildEvent) -> None:
        if event.stage != self._stage:
            print(event.stage, flush=True)  # noqa: T201  into the log
        self._stage = event.stage


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
