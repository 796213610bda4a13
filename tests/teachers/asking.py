"""Teachers behind a loopback server, and questions for them."""

from __future__ import annotations

import asyncio

from composer_replication.teachers import Ledger, Question, Teacher, TeacherPool


def teacher(server, name="t", **changes):
    """One that costs at most a dollar a call: 100 tokens at a cent each."""
    fields = {
        "usd_per_million_input": 0.0,
        "usd_per_million_output": 10_000.0,
        "api_key_env": None,
        "max_retries": 0,
        "max_tokens": 100,
    }
    url = server if isinstance(server, str) else server.base_url
    return Teacher(**{"name": name, "model": f"model-{name}", "base_url": url, **fields, **changes})


def questions(n, **extra):
    return [Question(question_id=f"q{i}", messages=[{"role": "user", "content": f"say {i}"}], **extra) for i in range(n)]


def ask(teachers, asked, *, ledger=None, cap=None, on_answer=None):
    async def run():
        async with TeacherPool(teachers, ledger=ledger or Ledger(), max_total_usd=cap) as pool:
            return await pool.ask(asked, on_answer=on_answer)

    return asyncio.run(run())
