"""The program that does steps over the code under test inside a sandbox, and says what each gave; the host decides.

Its text follows those of `literals`, `operators`, `shipping`, `calls`, `references`, `replay`, `kept` and `mutants`. The request
comes on stdin; the answer goes over the private channel: the request's nonce and zlib-compressed JSON. Each program of steps runs
in a fork of this process, under limits of the kernel, so that programs know nothing of each other and none is endless. Everything
in this process may be the agent's: all it could forge is the answer to a question it has to know the answer to.
"""

from __future__ import annotations

import builtins
import gc
import json
import os
import resource
import sys
import zlib
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from composer_replication.sandbox.grading.steps.mutants import Mutants
    from composer_replication.sandbox.grading.steps.operators import Direct
    from composer_replication.sandbox.grading.steps.replay import answers_again, examine, import_modules, in_fork, run

_MEMORY = 2 << 30
"""Bytes that a program may take beside what the process has already."""


def answer(request: dict[str, Any]) -> list[Any]:
    """Carry out a request: run `programs`, once or `again`, examine them, or try each of `mutants` on them."""
    programs = request["programs"]
    limits = {"cpu_s": request["cpu_s"], "wall_s": request["wall_s"]}
    if request["mode"] == "mutants":
        mutants = Mutants(request)
        mutants.import_modules()
        gc.freeze()
        return mutants.kills_of_all(request["mutants"])
    import_modules(programs)
    gc.freeze()  # so that a collection in a fork does not copy every page
    if request["mode"] == "again":
        return answers_again(programs, request["expected"], **limits)
    if request["mode"] == "run":
        return [in_fork(partial(run, program), **limits) for program in programs]
    known = None if request["known"] is None else {function: set(calls) for function, calls in request["known"].items()}
    found = [in_fork(partial(examine, program, lines=request["lines"], known=known), **limits) for program in programs]
    told: set[tuple[str, int]] = set()
    for seen in found if known is None else ():
        for function, calls in seen["calls"].items() if seen is not None else ():
            calls[:] = [call for call in calls if (function, call[0]) not in told]
            told.update((function, call[0]) for call in calls)
    return found


def main() -> None:
    """Read a request from stdin, answer, and end without running exit handlers."""
    channel = int(os.environ.pop("COMPOSER_RESULT_FD"))
    os.set_inheritable(channel, False)
    with open(0, "rb", closefd=False) as stdin:
        request = json.loads(stdin.read())
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nothing, descriptor)
    root = os.getcwd()
    sys.path[:] = [entry for entry in sys.path if entry not in ("", root)]
    sys.path[:0] = [os.path.normpath(os.path.join(root, path)) for path in request["python_path"]]
    vars(builtins)["__composer__"] = Direct
    with open("/proc/self/statm", encoding="ascii") as file:
        used = int(file.read().split()[0]) * resource.getpagesize()
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    limits = [used + _MEMORY, *(limit for limit in (soft, hard) if limit != resource.RLIM_INFINITY)]
    resource.setrlimit(resource.RLIMIT_AS, (min(limits), hard))
    exit_now, write, dumps, compress = os._exit, os.write, json.dumps, zlib.compress
    text = request["nonce"].encode() + compress(dumps(answer(request)).encode())
    while text:
        text = text[write(channel, text) :]
    exit_now(0)


if __name__ == "__main__":
    main()
