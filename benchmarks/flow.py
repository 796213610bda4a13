"""How long a batch of rollouts takes over a server, beside the longest rollout alone.

The collector and the serving engine are the real ones; the server is an HTTP server in a process of its own, which takes a
lognormal time (sigma 1) for every turn and serves any number at once. `flow` gives it every turn that is ready, `16 requests` at
most 16 at a time. The bound is the longest rollout's turns one after another or, with 16 requests, a sixteenth of all turns if
that is more. In brackets is what the collector's order takes when nothing but the turns takes time: with 16 requests that is
more than the bound, because nobody knows beforehand which turns are long. `lock-step` samples whole cohorts through the same
engine, as an engine in this process needs it.
"""

from __future__ import annotations

import argparse
import asyncio
import heapq
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from measuring import cpu_seconds, emit

from composer_replication.rollouts.agent_loop import derive_seed
from composer_replication.rollouts.collect import collect_groups
from composer_replication.rollouts.protocol import AsyncEngine, Budgets, Engine, Sample, SampleRequest
from composer_replication.rollouts.serving import ServingEngine, open_server
from composer_replication.tokens import ChatRenderer, byte_level_tokenizer
from composer_replication.types import GradeReport, Group, Message, ToolCall, ToolResult, ToolSchema

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "tools"))
from timed_server import timed_server, turn_seconds

ROLLOUTS, TURNS, GROUP, SEATS = 64, 12, 8, 16
SIGMA = 1.0
MOST = 1.15
"""Wall time over the bound that is wanted."""
BUDGETS = Budgets(turn_tokens=256, trajectory_tokens=1 << 15, context_tokens=1 << 15, max_turns=TURNS)
RENDERER = ChatRenderer(byte_level_tokenizer())
TOOL: ToolSchema = {"type": "function", "function": {"name": "go", "parameters": {"type": "object", "properties": {}}}}


class Nothing:
    """An environment that does nothing, so that what is measured is the collector."""

    tools = (TOOL,)
    done = False

    def __init__(self, task_id: str) -> None:
        self.task_id = task_id

    def reset(self) -> tuple[Message, ...]:
        return ({"role": "user", "content": self.task_id},)

    def step(self, call: ToolCall) -> ToolResult:
        return ToolResult(call_id=call.call_id, name=call.name, content="gone", status="ok")

    def grade(self) -> GradeReport:
        return GradeReport(reward=1.0, outcomes={})


class WholeBatches:
    """A serving engine as an engine in this process has to be used: batch by batch."""

    def __init__(self, engine: ServingEngine) -> None:
        self._engine = engine

    @property
    def context_window(self) -> int:
        return self._engine.context_window

    def sample(self, requests: Sequence[SampleRequest], *, temperature: float) -> list[Sample]:
        return self._engine.sample(requests, temperature=temperature)

    def close(self, sessions: Sequence[str]) -> None:
        self._engine.close(sessions)


def drawn_times(seed: int, median_s: float) -> list[list[float]]:
    """The seconds of every rollout's turns, as the server draws them."""
    rollouts = [derive_seed(seed, 0, f"task-{i}", j) for i in range(ROLLOUTS // GROUP) for j in range(GROUP)]
    return [[turn_seconds(derive_seed(base, turn), median_s, SIGMA) for turn in range(TURNS)] for base in rollouts]


def without_overhead(times: Sequence[Sequence[float]], seats: int) -> float:
    """Seconds of all turns when so many are sampled at a time, in the collector's order, and nothing else takes time."""
    ready = [(0, rollout) for rollout in range(len(times))]
    ends: list[tuple[float, int, int]] = []
    now = 0.0
    while ready or ends:
        while ready and len(ends) < seats:
            turn, rollout = heapq.heappop(ready)
            heapq.heappush(ends, (now + times[rollout][turn], rollout, turn))
        now, rollout, turn = heapq.heappop(ends)
        if turn + 1 < len(times[rollout]):
            heapq.heappush(ready, (turn + 1, rollout))
    return now


def collect(engine: Engine | AsyncEngine, seed: int, *, max_requests: int | None = None, cohorts: int = 2) -> list[Group]:
    """All rollouts."""
    return asyncio.run(
        collect_groups(
            [f"task-{i}" for i in range(ROLLOUTS // GROUP)],
            make_env=Nothing,
            engine=engine,
            renderer=RENDERER,
            budgets=BUDGETS,
            group_size=GROUP,
            seed=seed,
            step=0,
            temperature=1.0,
            policy_version=0,
            cohorts=cohorts,
            max_requests=max_requests,
        )
    )


def measure(name: str, engine: Engine | AsyncEngine, options: argparse.Namespace, seats: int, **how: int) -> dict[str, float]:
    """Collect once, print and return the figures."""
    times = drawn_times(options.seed, options.median_s)
    longest, total = max(map(sum, times)), sum(map(sum, times))
    bound = max(longest, total / seats)
    cpu, wall = cpu_seconds(), time.perf_counter()
    groups = collect(engine, options.seed, **how)
    wall, cpu = time.perf_counter() - wall, cpu_seconds() - cpu
    if any(len(t.turns) != TURNS for group in groups for t in group.trajectories):
        raise RuntimeError("a rollout was cut short: its time would be unequal to the bound's")
    row = {"wall_s": round(wall, 2), "bound_s": round(bound, 2), "ratio": round(wall / bound, 3), "cpu_s": round(cpu, 2)}
    row["without_overhead_s"] = round(without_overhead(times, seats), 2)
    print(
        f"{name:20s} {wall:7.2f} s wall  {bound:6.2f} s bound  ratio {wall / bound:6.3f}  {cpu:5.2f} s CPU  "
        f"({row['without_overhead_s']:.2f} s without any overhead)",
        flush=True,
    )
    return row


def main(arguments: list[str]) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kind", choices=("sglang", "vllm"), default="sglang")
    parser.add_argument("--median-s", type=float, default=0.5, help="median of a turn's seconds")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    call: Message = {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": "x", "type": "function", "function": {"name": "go", "arguments": {}}}],
    }
    reply = RENDERER.assistant_ids(call)
    with timed_server(options.kind, reply=list(reply), median_s=options.median_s, sigma=SIGMA) as url:
        engine = ServingEngine(open_server(options.kind, url), stop_ids=[reply[-1]], probe_ids=range(1, 40))
        engine.check()
        rows = {
            "flow": measure("flow", engine, options, ROLLOUTS),
            "flow_16_requests": measure(f"flow, {SEATS} requests", engine, options, SEATS, max_requests=SEATS),
            "lock_step_1_cohort": measure("lock-step, 1 cohort", WholeBatches(engine), options, ROLLOUTS, cohorts=1),
            "lock_step_2_cohorts": measure("lock-step, 2 cohorts", WholeBatches(engine), options, ROLLOUTS, cohorts=2),
        }
        engine.end()
    passed = rows["flow"]["ratio"] <= MOST and rows["flow_16_requests"]["ratio"] <= MOST
    shape = {"rollouts": ROLLOUTS, "turns": TURNS, "median_s": options.median_s, "sigma": SIGMA, "wire": options.kind}
    emit("flow", {**rows, **shape, "most": MOST, "passed": passed})


if __name__ == "__main__":
    main(sys.argv[1:])
