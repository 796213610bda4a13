"""Probes that go beyond the limits on processes, memory, disk and time."""

from __future__ import annotations

import textwrap

from composer_replication.sandbox.attempt import Attempt
from composer_replication.sandbox.protocol import Ending


def fork_bomb(attempt: Attempt) -> list[str]:
    """Start more processes than the limit."""
    return attempt.got(
        """
        import time
        made = 0
        try:
            while made < 300:
                if os.fork() == 0:
                    time.sleep(60); os._exit(0)
                made += 1
        except OSError:
            pass
        if made > request["limit"]:
            got.append(f"{made} processes with a limit of {request['limit']}")
        """,
        {"limit": 16},
        processes=16,
    )


def memory(attempt: Attempt) -> list[str]:
    """Use more memory than the limit in one process."""
    code = """
        def exceed():
            kept = [bytearray(8 << 20) for _ in range(128)]
    """
    return _beyond(attempt, Ending.OUT_OF_MEMORY, "1024 MB with a limit of 128", code, memory_mb=128)


def shared_memory(attempt: Attempt) -> list[str]:
    """Use more memory than the limit outside every process."""
    code = """
        def exceed():
            for number in range(128):
                os.write(os.memfd_create(str(number)), bytes(8 << 20))
    """
    return _beyond(attempt, Ending.OUT_OF_MEMORY, "1024 MB of memory files with a limit of 128", code, memory_mb=128)


def disk(attempt: Attempt) -> list[str]:
    """Write more than the limit."""
    fill = """
        def exceed():
            for number in range(64):
                with open(f"{FOLDER}/fill-{number}", "wb") as file:
                    file.write(bytes(1 << 20))
    """
    huge = """
        def exceed():
            with open("huge", "wb") as file:
                for _ in range(64):
                    file.write(bytes(1 << 20))
    """
    ways = {
        "64 MB in the tree with a limit of 8": fill.replace("{FOLDER}", "."),
        "64 MB of temporary files with a limit of 8": fill.replace("{FOLDER}", "{os.environ['TMPDIR']}"),
        "a file of 64 MB with a limit of 8": huge,
    }
    return [line for what, code in ways.items() for line in _beyond(attempt, Ending.OUTPUT_LIMIT, what, code, disk_mb=8)]


def time(attempt: Attempt) -> list[str]:
    """Run longer than the limits."""
    sleeping = """
        import time
        def exceed():
            time.sleep(5)
    """
    spinning = """
        import signal, time
        def exceed():
            signal.signal(signal.SIGXCPU, signal.SIG_IGN)
            while time.process_time() < 5: pass
    """
    slept = _beyond(attempt, Ending.TIMEOUT, "slept 5 s with a limit of 0.5", sleeping, wall_s=0.5)
    return slept + _beyond(attempt, Ending.TIMEOUT, "computed 5 s with a limit of 1", spinning, cpu_s=1)


def _beyond(attempt: Attempt, expected: Ending, what: str, code: str, *, wall_s: float = 60.0, **limits: int) -> list[str]:
    """Run a program whose `exceed()` goes beyond a limit: it is stopped as expected, refused with an OSError, or gets through."""
    code = textwrap.dedent(code) + 'attempt(request["what"], exceed)\n'
    if attempt.execute(code, {"what": what}, wall_s=wall_s, **limits).ending is expected:
        return []
    return attempt.got(code, {"what": what}, wall_s=wall_s, **limits)
