"""A replay through a failing proxy, killed again and again, and the comparison of its ledger with the proxy's own count."""

from __future__ import annotations

import collections
import contextlib
import json
import math
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TOOLS = Path(__file__).parent
INPUT, OUTPUT = 3.0, 15.0
"""USD per million tokens."""
MAX_TOKENS, IN_FLIGHT = 8, 64
COMPOSER = "import sys; from composer_replication.cli import main; sys.argv[0] = 'composer'; main()"
READ = {
    "type": "function",
    "function": {
        "name": "read_file",
        "description": "Read a file.",
        "parameters": {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]},
    },
}
FAULTS = {
    "storm": 0.003,
    "server error": 0.01,
    "bad gateway": 0.005,
    "reset before": 0.01,
    "reset after": 0.01,
    "hang before": 0.002,
    "hang after": 0.002,
    "gateway timeout": 0.005,
    "truncated": 0.01,
    "garbled": 0.01,
    "drip": 0.002,
    "drip to the end": 0.01,
    "price negative": 0.01,
    "price huge": 0.01,
    "price text": 0.01,
    "price not a number": 0.01,
    "price zero": 0.01,
    "price missing": 0.01,
    "price no usage": 0.01,
}
TURNS = 4


@dataclass(frozen=True)
class Upstream:
    """A real server: `url` ends before `/v1`."""

    url: str
    model: str


def states(count: int) -> list[dict[str, Any]]:
    """Steps of traces of four turns, each with all of the trace before it."""
    made = []
    for i in range(count):
        trace, turn = divmod(i, TURNS)
        messages: list[dict[str, Any]] = [{"role": "user", "content": f"Fix task {trace}."}]
        for earlier in range(turn):
            call = {"id": f"c{earlier}", "type": "function"}
            call |= {"function": {"name": "read_file", "arguments": {"path": f"a{earlier}.py"}}}
            messages.append({"role": "assistant", "content": "", "tool_calls": [call]})
            messages.append({"role": "tool", "tool_call_id": f"c{earlier}", "content": f"x = {trace}"})
        line = {"state_id": f"t{trace}#{turn}", "messages": messages, "student_action": "I am done.", "tools": [READ]}
        made.append(line | {"trajectory_id": f"t{trace}", "turn": turn})
    return made


@contextlib.contextmanager
def proxy(work: Path, upstreams: Mapping[str, Upstream], *, seed: int, faults: Mapping[str, float]) -> Iterator[str]:
    """The URL of a proxy process with a route for every upstream."""
    routes = {name: {"upstream": up.url, "input": INPUT, "output": OUTPUT} for name, up in upstreams.items()}
    config = {"bill": str(work / "bill.jsonl"), "seed": seed, "routes": routes, "faults": dict(faults)}
    (work / "proxy.json").write_text(json.dumps(config))
    command = [sys.executable, str(TOOLS / "fault_proxy.py"), str(work / "proxy.json")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        yield process.stdout.readline().removeprefix("listening on ").strip()
        process.stdin.close()


class Replay:
    """`composer replay` of the same states, again and again."""

    def __init__(self, work: Path, url: str, upstreams: Mapping[str, Upstream], count: int, *, timeout_s: float) -> None:
        self.out, self.bill = work / "out", work / "bill.jsonl"
        self.wanted = count * len(upstreams)
        self.bill.touch()
        (work / "states.jsonl").write_text("".join(json.dumps(s) + "\n" for s in states(count)))
        shares = [IN_FLIGHT // len(upstreams) + (i < IN_FLIGHT % len(upstreams)) for i in range(len(upstreams))]
        tables = [
            f'[[teachers]]\nname = "{name}"\nmodel = "{up.model}"\nbase_url = "{url}/{name}/v1"\napi_key_env = ""\n'
            f"usd_per_million_input = {INPUT}\nusd_per_million_output = {OUTPUT}\nmax_tokens = {MAX_TOKENS}\n"
            f"max_concurrency = {share}\ntimeout_s = {timeout_s}\nmax_retries = 6\n"
            for (name, up), share in zip(upstreams.items(), shares, strict=True)
        ]
        (work / "teachers.toml").write_text("\n".join(tables))
        self._command = [sys.executable, "-c", COMPOSER, "replay", str(work / "states.jsonl"), "--json"]
        self._command += ["--teachers", str(work / "teachers.toml"), "--out", str(self.out)]

    def start(self, cap: float, *more: str) -> subprocess.Popen[str]:
        command = [*self._command, "--max-usd", f"{cap}", *more]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def run(self, cap: float, *more: str) -> tuple[int, dict[str, Any], str]:
        """Exit code, table, and what it said."""
        with self.start(cap, *more) as process:
            told, said = process.communicate()
        assert process.returncode in (0, 6), said
        return process.returncode, json.loads(told) if told else {}, said

    def killed(self, cap: float, billed: int) -> None:
        """Run until the proxy has billed so many calls, then `kill -9`."""
        with self.start(cap) as process:
            while len(self.billed()) < billed:
                assert process.poll() is None, process.communicate()
                time.sleep(0.02)
            os.kill(process.pid, signal.SIGKILL)
            process.communicate()
        assert process.returncode == -signal.SIGKILL

    def billed(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.bill.read_text().splitlines(keepends=True) if line.endswith("\n")]

    def ledger(self) -> list[tuple[str, str, str, float, bool]]:
        """Call id, key, status, USD and whether there is an answer."""
        db = sqlite3.connect(self.out / "ledger.sqlite")
        rows = db.execute("SELECT call_id, key, status, usd, answer IS NOT NULL FROM calls").fetchall()
        db.close()
        return rows


def bound(text: dict[str, Any]) -> float:
    """About the most one call can cost."""
    return ((len(json.dumps(text)) + 512) * INPUT + MAX_TOKENS * OUTPUT) / 1e6


def check_cap(replay: Replay, cap: float) -> None:
    """Neither the proxy's count nor the ledger is above the cap."""
    counted = math.fsum(line["usd"] for line in replay.billed())
    booked = math.fsum(usd for _, _, _, usd, _ in replay.ledger())
    assert counted <= booked + 1e-9 <= cap + 2e-9, (counted, booked, cap)


def replay_under_faults(
    work: Path,
    upstreams: Mapping[str, Upstream],
    *,
    count: int,
    kills: int,
    seed: int = 0,
    timeout_s: float = 30.0,
    faults: Mapping[str, float] = FAULTS,
) -> dict[str, Any]:
    """Replay until every answer is there, killed `kills` times on the way, and assert that the books agree; what was seen."""
    with proxy(work, upstreams, seed=seed, faults=faults) as url:
        replay = Replay(work, url, upstreams, count, timeout_s=timeout_s)
        small_cap = min(1.25 * IN_FLIGHT, replay.wanted / 10) * bound(states(count)[-1])
        code, table, _ = replay.run(small_cap)
        capped = len(replay.billed())
        assert code == 6, "the cap was never reached"
        assert sum(row["failed"].get("over budget", 0) for row in table["teachers"]) > 0
        check_cap(replay, small_cap)
        cap = 3 * (replay.wanted + kills * IN_FLIGHT) * bound(states(count)[-1])
        for kill in range(kills):
            left = replay.wanted - len(replay.billed())
            replay.killed(cap, len(replay.billed()) + max(1, left // (kills + 1 - kill)))
        runs = 0
        while code != 0:
            code, table, said = replay.run(cap)
            runs += 1
            assert runs <= 20, said
        check_cap(replay, cap)
        figures = compare(replay)
        bill, calls = len(replay.billed()), len(replay.ledger())
        code, table, said = replay.run(cap, "--bill", str(replay.bill))
        assert (code, table["held_usd"]) == (0, 0.0), said
        assert sum(row["from_cache"] for row in table["teachers"]) == replay.wanted
        assert (len(replay.billed()), len(replay.ledger())) == (bill, calls), "a finished replay asked again"
    counted = math.fsum(line["usd"] for line in replay.billed())
    assert abs(table["paid_usd"] - counted) < 1e-9, (table["paid_usd"], counted)
    return figures | {
        "kills": kills,
        "runs": 2 + kills + runs,
        "billed_under_small_cap": capped,
        "usd_after_bill": table["paid_usd"],
    }


def compare(replay: Replay) -> dict[str, Any]:
    """Ledger and bill, call by call, before the one has read the other."""
    bill, rows = replay.billed(), replay.ledger()
    price = {line["call_id"]: line["usd"] for line in bill}
    assert len(price) == len(bill), "two calls had one id"
    assert not price.keys() - {row[0] for row in rows}, "a call was billed that the ledger does not know"
    answers = [json.loads(line) for line in (replay.out / "answers.jsonl").read_text().splitlines()]
    assert len({(a["question_id"], a["teacher"]) for a in answers}) == len(answers) == replay.wanted, "a state was lost"
    assert all(a["error"] is None for a in answers)
    with_answer = collections.Counter(key for _, key, _, _, answered in rows if answered)
    assert sorted(with_answer.values()) == [1] * replay.wanted, "a question was answered and booked twice"
    paid = {call_id: usd for call_id, _, status, usd, _ in rows if status == "paid"}
    held = {call_id: usd for call_id, _, status, usd, _ in rows if status == "held"}
    assert len(paid) + len(held) == len(rows), "a call is still open"
    wrong = {i: (usd, price.get(i)) for i, usd in paid.items() if abs(usd - price.get(i, -1.0)) > 1e-9}
    assert not wrong, f"paid calls at another price than the bill's: {wrong}"
    assert all(price.get(i, 0.0) <= usd + 1e-9 for i, usd in held.items()), "held for less than was billed"
    counted, settled, kept = math.fsum(price.values()), math.fsum(paid.values()), math.fsum(held.values())
    assert settled - 1e-9 <= counted <= settled + kept + 1e-9
    twice = collections.Counter(line["request"] + line["route"] for line in bill)
    seen = collections.Counter(line["fault"] for line in bill if line["fault"])
    return {
        "answers": len(answers),
        "calls_billed": len(bill),
        "calls_held": len(held),
        "held_and_not_billed": len(held.keys() - price.keys()),
        "questions_billed_more_than_once": sum(n > 1 for n in twice.values()),
        "most_in_flight": max(line["in_flight"] for line in bill),
        "proxy_usd": counted,
        "ledger_paid_usd": settled,
        "ledger_held_usd": kept,
        "billed_faults": dict(sorted(seen.items())),
    }
