"""The code of the user guide's section 4, word for word, with local endpoints in place of OpenRouter."""

from __future__ import annotations

import asyncio
import dataclasses
import typing

import pytest
from teacher_server import Reply, TeacherServer, question_text

import composer_replication

TASKS = {
    "state-000": "Fix the failing test in tests/test_auth.py::test_login_with_email",
    "state-001": "Add rate-limiting middleware to the Flask app",
    "state-002": "Refactor the parse_config function — it's 200 lines and has 3 responsibilities",
}
BETTER = {
    "state-000": "(c) Read the login handler and the failing test before editing anything",
    "state-001": "(c) Check the schema of the existing middleware chain first",
    "state-002": "(c) Write characterization tests for parse_config before refactoring it",
}
STUDENT = "(a) Start editing the code right away"


@pytest.fixture
def endpoint(monkeypatch):
    """Teachers agree, in different dress, except deepseek on the first state."""
    by_task = {task: BETTER[name] for name, task in TASKS.items()}

    def answer(body, number):
        text = by_task[question_text(body)]
        if "deepseek" in body["model"] and "login" in text:
            return Reply(content="(b) Delete the test", cost=0.002)
        return Reply(content=f"**{text}**" if "gpt" in body["model"] else f"{text}.", cost=0.002)

    with TeacherServer(answer) as server:
        local = tuple(dataclasses.replace(t, base_url=server.base_url) for t in composer_replication.DEFAULT_TEACHERS)
        monkeypatch.setattr("composer_replication.teacher_replay.DEFAULT_TEACHERS", local)
        monkeypatch.setenv("OPENROUTER_API_KEY", "sk-local")
        yield server


@pytest.fixture
def states():
    return [
        {"state_id": name, "messages": [{"role": "user", "content": task}], "student_action": STUDENT}
        for name, task in TASKS.items()
    ]


def test_4a_to_4c(endpoint, states):
    from composer_replication import DEFAULT_TEACHERS, extract_dpo_pairs, replay_trace

    teacher_actions = asyncio.run(
        replay_trace(
            states=states,
            teachers=DEFAULT_TEACHERS,
            max_total_usd=10.0,
        )
    )
    assert len(teacher_actions) == 9
    assert sum(a.usd for a in teacher_actions) == pytest.approx(0.018)
    assert all(a.latency_s > 0 for a in teacher_actions)

    pairs = extract_dpo_pairs(
        states=states,
        teacher_actions=teacher_actions,
        agreement_threshold=2,
    )
    assert [set(p) for p in pairs] == [{"state_id", "state_messages", "chosen", "rejected", "n_teachers_agreeing"}] * 3
    assert [p["n_teachers_agreeing"] for p in pairs] == [2, 3, 3]
    assert [p["rejected"] for p in pairs] == [STUDENT] * 3

    from composer_replication.replaysim import DJNormalizer

    normalizer = DJNormalizer()
    normalized = normalizer.normalize(pairs)
    assert [{k: n[k] for k in p} for n, p in zip(normalized, pairs, strict=True)] == pairs
    assert normalizer.report.dropped == dict.fromkeys(normalizer.report.dropped, 0)


def test_dpo_pair_is_the_guides():
    assert typing.get_type_hints(composer_replication.DPOPair) == {
        "state_id": str,
        "state_messages": list[dict[str, typing.Any]],
        "chosen": str,
        "rejected": str,
        "n_teachers_agreeing": int,
    }


def test_4e_one_liner(endpoint, states):
    from composer_replication import DEFAULT_TEACHERS
    from composer_replication.replaysim import replay_and_normalize_trace

    async def main():
        teacher_actions, normalized_pairs = await replay_and_normalize_trace(
            states=states,
            teachers=DEFAULT_TEACHERS,
            agreement_threshold=2,
            max_total_usd=10.0,
        )
        return teacher_actions, normalized_pairs

    actions, pairs = asyncio.run(main())
    assert (len(actions), [p["state_id"] for p in pairs]) == (9, list(TASKS))


def test_sync_sibling(endpoint, states):
    from composer_replication import DEFAULT_TEACHERS
    from composer_replication.replaysim.normalize import replay_and_normalize_trace_sync

    actions, pairs = replay_and_normalize_trace_sync(
        states=states, teachers=DEFAULT_TEACHERS, agreement_threshold=3, max_total_usd=10.0
    )
    assert (len(actions), [p["state_id"] for p in pairs]) == (9, ["state-001", "state-002"])
