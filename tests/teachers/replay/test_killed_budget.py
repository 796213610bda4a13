"""A replay that is killed again and again leaves little of its budget behind, asks nothing twice that was answered, and goes on
asking several questions at a time.

The prices, the size of the prompts, the cap and the tokens that the server counts are those of a replay that one kill left with
nothing: it held $4.84 of $5.
"""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections import Counter
from functools import partial
from pathlib import Path

import pytest
from teacher_server import Reply, TeacherServer

from composer_replication.teachers import Ledger, Teacher

COMPOSER = "import sys; from composer_replication.cli import main; sys.argv[0] = 'composer'; main()"
SESSIONS, TURNS, PROMPT_BYTES, CAP = 6, 12, 100_000, 5.0
STATES = SESSIONS * TURNS
BYTES_PER_TOKEN, ANSWER_TOKENS = 5, 100
OPUS = Teacher(
    name="opus",
    model="opus",
    api_key_env="",
    usd_per_million_input=5.0,
    usd_per_million_output=25.0,
    usd_per_million_cache_read=0.5,
    usd_per_million_cache_write=6.25,
)


class Endpoint:
    """Counts tokens and bills them as a provider does that caches prompts: each turn's begins with the whole prompt before it."""

    def __init__(self):
        self.billed_usd = 0.0
        self.answers = threading.Event()
        self._longest = Counter()
        self._mutex = threading.Lock()

    def __call__(self, body, _number):
        messages = body["messages"]
        session, tokens = messages[0]["content"].split()[0], len(json.dumps(messages)) // BYTES_PER_TOKEN
        with self._mutex:
            cached = min(tokens, self._longest[session])
            self._longest[session] = max(tokens, cached)
            self.billed_usd += OPUS.price(tokens, ANSWER_TOKENS, cached=cached, written=tokens - cached)
        details = {"cached_tokens": cached, "cache_write_tokens": tokens - cached}
        usage = {"prompt_tokens": tokens, "completion_tokens": ANSWER_TOKENS, "prompt_tokens_details": details}
        return Reply(content="run the tests", usage_fields=usage, before=self._think)

    def _think(self):
        self.answers.wait()
        time.sleep(0.05)


def write_files(folder: Path, url: str) -> None:
    lines = []
    for session in range(SESSIONS):
        messages = [{"role": "user", "content": f"{session} " + "x" * (PROMPT_BYTES - 500 * TURNS)}]
        for turn in range(TURNS):
            state = {"state_id": f"{session}/{turn}", "trajectory_id": f"{session}", "turn": turn, "student_action": "stop"}
            lines.append(json.dumps(state | {"messages": messages}) + "\n")
            messages = [*messages, {"role": "assistant", "content": "look"}, {"role": "user", "content": "y" * 400}]
    (folder / "states.jsonl").write_text("".join(lines))
    prices = "".join(f"{name} = {value}\n" for name, value in OPUS.model_dump().items() if name.startswith("usd_per_million"))
    fields = f'name = "opus"\nmodel = "opus"\nbase_url = "{url}"\napi_key_env = ""\nmax_concurrency = 16\n'
    (folder / "teachers.toml").write_text(f"[[teachers]]\n{fields}{prices}")


def rows(folder: Path) -> list[tuple[str, str]]:
    """Key and status of every call, also while a replay makes them; none before there is a ledger."""
    path = folder / "out" / "ledger.sqlite"
    if not path.exists():
        return []
    db = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    try:
        return db.execute("SELECT key, status FROM calls").fetchall()
    except sqlite3.OperationalError:  # the file is there, and its table is not yet
        return []
    finally:
        db.close()


def has_paid(folder: Path, count: int) -> bool:
    return sum(status == "paid" for _, status in rows(folder)) >= count


def replay(folder: Path, server: TeacherServer, kill_when=None) -> int:
    """Replay until it ends or `kill_when()` is true, and return how many calls were in progress at once at the most."""
    server.most_at_once = 0
    words = ["replay", "states.jsonl", "--teachers", "teachers.toml", "--out", "out", "--max-usd", f"{CAP}"]
    command = [sys.executable, "-c", COMPOSER, *words]
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        if kill_when is not None:
            while not kill_when():
                assert process.poll() is None, process.communicate()[0]
                time.sleep(0.01)
            os.kill(process.pid, signal.SIGKILL)
        said = process.communicate()[0].decode()
    assert process.returncode == (-signal.SIGKILL if kill_when is not None else 0), said
    return server.most_at_once


def has_asked(server: TeacherServer, more_than: int) -> bool:
    return len(server.requests) > more_than


@pytest.mark.slow
@pytest.mark.parametrize("kills", [(0, STATES // 2, 3 * STATES // 4), (0, 0, 0)], ids=str)
def test_three_kills_strand_at_most_a_twentieth_of_the_cap(tmp_path, kills):
    """Each when so many answers are paid: at 0 the first call of all is open, and no answer ever comes to it."""
    assert OPUS.bound_usd(PROMPT_BYTES) > 0.14 * CAP
    endpoint, at_once, held = Endpoint(), [], []
    with TeacherServer(endpoint) as server:
        write_files(tmp_path, server.base_url)
        for paid in kills:
            if paid:
                kill_when = partial(has_paid, tmp_path, paid)
            else:
                endpoint.answers.clear()
                kill_when = partial(has_asked, server, len(server.requests))
            at_once.append(replay(tmp_path, server, kill_when))
            endpoint.answers.set()
            with Ledger(tmp_path / "out" / "ledger.sqlite") as ledger:
                held.append(ledger.held_usd)
                assert ledger.num_answers >= paid
        at_once.append(replay(tmp_path, server))
    assert 0 < held[0] <= 0.05 * CAP, "before any call was paid"
    found = rows(tmp_path)
    lost, answered = ([key for key, status in found if status == wanted] for wanted in ("held", "paid"))
    assert len(answered) == len(set(answered)) == STATES == len(found) - len(lost)
    assert set(lost) <= set(answered), "what was lost was asked again, and nothing else"
    with Ledger(tmp_path / "out" / "ledger.sqlite") as ledger:
        assert ledger.num_answers == STATES
        assert 0 < ledger.held_usd <= 0.05 * CAP
        assert endpoint.billed_usd <= 1.001 * ledger.spent_usd <= CAP, "what is held is what such calls cost"
    assert [most > 1 for most in at_once] == [paid > 0 for paid in kills] + [True], "several at a time again, after every kill"
