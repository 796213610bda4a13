"""What the pool adds to bare calls of the same client, and what a replay costs whose answers are all in the ledger.

Both sides ask the same server, a process of its own, the same 1,000 questions, 64 at a time, and take turns. Bare: `AsyncOpenAI`
with ready-made bodies, answers as its objects. The pool: canonical keys, reservation and settlement on the disk, prices, answers
read and checked. CPU time is that of this process alone; the server's is not in it.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import openai
from replay_server import canned_server

from composer_replication.envs.tools import CODING_TOOLS
from composer_replication.teachers import Ledger, Question, Teacher, TeacherPool

CALLS, CONCURRENCY, ROUNDS = 1000, 64, 5
MOST_MS, LEAST_SPEEDUP = 3.0, 50.0


def questions() -> list[Question]:
    """States of a trace of about 4,000 characters, with the tools of an agent."""
    made = []
    for i in range(CALLS):
        messages: list[dict[str, Any]] = [{"role": "system", "content": "You repair Python projects."}]
        messages.append({"role": "user", "content": f"Task {i}: bring `shop.total` back. " + "The handbook says how. " * 20})
        for turn in range(6):
            call = {"id": f"c{turn}", "type": "function"}
            call |= {"function": {"name": "read_file", "arguments": {"path": f"shop/part_{turn}.py"}}}
            messages.append({"role": "assistant", "content": "I look.", "tool_calls": [call]})
            messages.append({"role": "tool", "tool_call_id": f"c{turn}", "content": f"def part_{turn}(prices):\n    pass\n" * 10})
        made.append(Question(question_id=f"q{i}", messages=messages, tools=CODING_TOOLS))
    return made


async def bare(teacher: Teacher, asked: list[Question]) -> None:
    """The calls without the pool."""
    bodies = [teacher.request(q) for q in asked]
    gate = asyncio.Semaphore(CONCURRENCY)
    async with openai.AsyncOpenAI(api_key="none", base_url=teacher.base_url, max_retries=0) as client:

        async def one(body: dict[str, Any]) -> Any:
            async with gate:
                return await client.chat.completions.create(**body)

        done = await asyncio.gather(*(one(b) for b in bodies))
    assert all(d.choices[0].message.tool_calls for d in done)


async def pooled(teacher: Teacher, asked: list[Question], path: Path, *, cached: bool) -> None:
    """The calls through the pool, on a ledger on the disk."""
    with Ledger(path) as ledger:
        async with TeacherPool([teacher], ledger=ledger, max_total_usd=1e4) as pool:
            answers = await pool.ask(asked)
    assert all(a.error is None and a.tool_calls and a.cached is cached for a in answers)


def timed(work: Callable[[], Any]) -> tuple[float, float]:
    """Wall and CPU seconds of this process."""
    wall, cpu = time.perf_counter(), time.process_time()
    asyncio.run(work())
    return time.perf_counter() - wall, time.process_time() - cpu


def measure() -> dict[str, Any]:
    """The figures of this section; AssertionError when a limit is broken."""
    asked = questions()
    seen: dict[str, list[tuple[float, float]]] = {"bare": [], "pool": [], "cached": []}
    with canned_server() as url, tempfile.TemporaryDirectory(prefix="composer-bench-") as folder:
        teacher = Teacher(
            name="canned",
            model="canned",
            base_url=url,
            api_key_env=None,
            usd_per_million_input=3.0,
            usd_per_million_output=15.0,
            max_concurrency=CONCURRENCY,
        )
        for number in range(ROUNDS + 1):  # the first warms up
            path = Path(folder) / f"{number}.sqlite"
            once = {
                "bare": timed(lambda: bare(teacher, asked)),
                "pool": timed(lambda path=path: pooled(teacher, asked, path, cached=False)),
                "cached": timed(lambda path=path: pooled(teacher, asked, path, cached=True)),
            }
            for name, figures in once.items() if number else ():
                seen[name].append(figures)
    wall_s, cpu_s = ({name: statistics.median(f[i] for f in rounds) for name, rounds in seen.items()} for i in (0, 1))
    per_call = {name: 1e3 * seconds / CALLS for name, seconds in cpu_s.items()}
    added_ms, speedup = per_call["pool"] - per_call["bare"], wall_s["pool"] / wall_s["cached"]
    for name in seen:
        print(f"{name:7s} {per_call[name]:7.3f} ms CPU a call, {wall_s[name]:7.3f} s for {CALLS} calls")
    assert added_ms <= MOST_MS, f"the pool adds {added_ms:.2f} ms of CPU to a call"
    assert speedup >= LEAST_SPEEDUP, f"a replay from the ledger is only {speedup:.0f} times faster"
    return {
        "calls": CALLS,
        "concurrency": CONCURRENCY,
        "cpu_ms_per_call": {name: round(value, 3) for name, value in per_call.items()},
        "pool_minus_bare_cpu_ms": round(added_ms, 3),
        "pool_over_bare_cpu": round(per_call["pool"] / per_call["bare"], 2),
        "wall_s": {name: round(value, 3) for name, value in wall_s.items()},
        "cached_speedup_wall": round(speedup, 1),
        "cached_speedup_cpu": round(cpu_s["pool"] / cpu_s["cached"], 1),
    }
