"""A replay that is killed again and again leaves little of its budget behind, and asks nothing twice that was answered."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time

import pytest
from teacher_server import Reply, TeacherServer

from composer_replication.teachers import Ledger

COMPOSER = "import sys; from composer_replication.cli import main; sys.argv[0] = 'composer'; main()"
STATES, PROMPT_BYTES, CAP, KILLS = 120, 20_000, 5.0, 3
BYTES_PER_TOKEN, ANSWER_TOKENS = 3.5, 300


def files(folder, url):
    lines = []
    for i in range(STATES):
        messages = [{"role": "user", "content": f"{i} " + "x" * PROMPT_BYTES}]
        lines.append(json.dumps({"state_id": f"s{i}", "messages": messages, "student_action": "stop"}) + "\n")
    (folder / "states.jsonl").write_text("".join(lines))
    (folder / "teachers.toml").write_text(
        f'[[teachers]]\nname = "opus"\nmodel = "opus"\nbase_url = "{url}"\napi_key_env = ""\nmax_concurrency = 16\n'
        "usd_per_million_input = 5.0\nusd_per_million_output = 25.0\n"
    )


def command(folder):
    words = ["replay", "states.jsonl", "--teachers", "teachers.toml", "--out", "out", "--max-usd", f"{CAP}"]
    return subprocess.Popen(
        [sys.executable, "-c", COMPOSER, *words], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )


@pytest.mark.slow
def test_three_kills_strand_at_most_a_twentieth_of_the_cap(tmp_path):
    """At the bounds, one for each byte of the prompt and the longest answer, one call in flight would be 4 % of the cap."""

    def answer(body, _number):
        tokens = round(len(json.dumps(body["messages"])) / BYTES_PER_TOKEN)
        return Reply(
            content="run the tests", prompt_tokens=tokens, completion_tokens=ANSWER_TOKENS, before=lambda: time.sleep(0.05)
        )

    with TeacherServer(answer) as server:
        files(tmp_path, server.base_url)
        for kill in range(KILLS):
            with command(tmp_path) as process:
                while len(server.answered) < (kill + 1) * STATES // (KILLS + 1):
                    assert process.poll() is None, process.communicate()[0]
                    time.sleep(0.01)
                os.kill(process.pid, signal.SIGKILL)
                process.communicate()
        with command(tmp_path) as process:
            said = process.communicate()[0].decode()
        assert process.returncode == 0, said
    with Ledger(tmp_path / "out" / "ledger.sqlite") as ledger:
        assert ledger.num_answers == STATES
        assert 0 < ledger.held_usd <= 0.05 * CAP
        assert ledger.spent_usd <= CAP
    rows = sqlite3.connect(tmp_path / "out" / "ledger.sqlite").execute("SELECT key, status, usd, most FROM calls").fetchall()
    held = [row for row in rows if row[1] == "held"]
    paid = {row[0] for row in rows if row[1] == "paid"}
    assert len(rows) == STATES + len(held)
    assert {row[0] for row in held} <= paid, "what was lost was asked again, and nothing else"
    assert all(usd <= most for _, _, usd, most in held)
    billed = max(usd for _, status, usd, _ in rows if status == "paid")
    assert sum(usd for _, _, usd, _ in held) >= 0.9 * billed * len(held), "what is held is what such calls cost"
