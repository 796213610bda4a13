"""The code of the user guide's section 4, character for character, with local endpoints in place of OpenRouter."""

from __future__ import annotations

import ast
import asyncio
import inspect
import json
import typing
from typing import TypedDict

import pytest
from teacher_server import Reply, TeacherServer, question_text

import composer_replication
from composer_replication.replaysim.recipe import DEFAULT_RECIPE, load_recipe

GUIDE_4A = """
import asyncio
from composer_replication import (
    DEFAULT_TEACHERS, replay_trace, extract_dpo_pairs,
)

# Trace must be a list[TraceState]; see composer_replication/teacher_replay.py
# for the exact TypedDict shape. Each state holds a chat-messages prefix +
# the student's actual action at that step.
states = [...]  # your frozen agentic trace; see spike 001 for a 50-step example

teacher_actions = asyncio.run(
    replay_trace(
        states=states,
        teachers=DEFAULT_TEACHERS,        # claude-opus-4.7 + gpt-5 + deepseek-v4-pro
        max_total_usd=10.0,               # hard ceiling (spike 001 measured $0.98/trace mean)
    )
)
"""
GUIDE_4B = """
pairs = extract_dpo_pairs(
    states=states,
    teacher_actions=teacher_actions,
    agreement_threshold=2,         # at least 2/3 teachers must agree on the chosen action
)
"""
GUIDE_4B_SHAPE = """
class DPOPair(TypedDict):
    state_id: str
    state_messages: list[dict]      # conversation context
    chosen: str                     # teacher-consensus action
    rejected: str                   # student action
    n_teachers_agreeing: int
"""
GUIDE_4C = """
from composer_replication.replaysim import DJNormalizer

normalizer = DJNormalizer()  # uses recipes/replaysim/default.yaml
normalized = normalizer.normalize(pairs)
# → list[NormalizedDPOPair]
"""
GUIDE_4D = """
{"id": "state-000", "task": "Fix the failing test in tests/test_auth.py::test_login_with_email", ...}
{"id": "state-001", "task": "Add rate-limiting middleware to the Flask app", ...}
{"id": "state-002", "task": "Refactor the parse_config function — it's 200 lines and has 3 responsibilities", ...}
"""
GUIDE_4E = """
from composer_replication.replaysim import replay_and_normalize_trace

teacher_actions, normalized_pairs = await replay_and_normalize_trace(
    states=states,
    teachers=DEFAULT_TEACHERS,
    agreement_threshold=2,
    max_total_usd=10.0,
)
"""

TASKS = {line["id"]: line["task"] for line in map(json.loads, GUIDE_4D.replace(", ...}", "}").strip().split("\n"))}
BETTER = {
    "state-000": "(c) Read the login handler and the failing test before editing anything",
    "state-001": "(c) Check the schema of the existing middleware chain first",
    "state-002": "(c) Write characterization tests for parse_config before refactoring it",
}
STUDENT = "(a) Start editing the code right away"


def run(code, names):
    """Execute a snippet as the guide shows it, a top-level `await` too, on `names`."""
    compiled = compile(code, "guide", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    waiting = eval(compiled, names)
    if inspect.iscoroutine(waiting):
        asyncio.run(waiting)


@pytest.fixture
def endpoint(monkeypatch):
    """Teachers agree with one another, in different dress, except deepseek on the first state."""
    by_task = {task: BETTER[name] for name, task in TASKS.items()}

    def answer(body, number):
        text = by_task[question_text(body)]
        if "deepseek" in body["model"] and "login" in text:
            return Reply(content="(b) Delete the test", cost=0.002)
        return Reply(content=f"**{text}**" if "gpt" in body["model"] else f"{text}.", cost=0.002)

    with TeacherServer(answer) as server:
        local = tuple(t.model_copy(update={"base_url": server.base_url}) for t in composer_replication.DEFAULT_TEACHERS)
        monkeypatch.setattr("composer_replication.teacher_replay.DEFAULT_TEACHERS", local)
        monkeypatch.setenv("OPENROUTER_API_KEY", "sk-local")
        yield server


@pytest.fixture
def states():
    return [
        {"state_id": name, "messages": [{"role": "user", "content": task}], "student_action": STUDENT}
        for name, task in TASKS.items()
    ]


@pytest.fixture
def replayed(endpoint, states):
    """The names that the snippet of 4a leaves behind; the states stand where it has three dots."""
    assert "states = [...]" in GUIDE_4A
    names = {"given": states}
    run(GUIDE_4A.replace("[...]", "[*given]"), names)
    return names


def test_4a(replayed):
    answers = replayed["teacher_actions"]
    assert [(a.question_id, a.teacher) for a in answers] == [
        (state, teacher.name) for state in TASKS for teacher in composer_replication.DEFAULT_TEACHERS
    ]
    assert [t.name for t in composer_replication.DEFAULT_TEACHERS] == ["claude-opus-4.7", "gpt-5", "deepseek-v4-pro"]
    assert sum(a.usd for a in answers) == pytest.approx(0.018)
    assert all(a.latency_s > 0 for a in answers)


def test_4b(replayed):
    run(GUIDE_4B, replayed)
    pairs = replayed["pairs"]
    assert [(p["state_id"], p["n_teachers_agreeing"], p["rejected"]) for p in pairs] == [
        (name, agreeing, STUDENT) for name, agreeing in zip(TASKS, (2, 3, 3), strict=True)
    ]
    assert all("(c)" in p["chosen"] for p in pairs)


def test_4b_shape():
    names = {"TypedDict": TypedDict}
    run(GUIDE_4B_SHAPE, names)
    guide, ours = (typing.get_type_hints(shape) for shape in (names["DPOPair"], composer_replication.DPOPair))
    assert list(guide) == list(ours)
    assert {key: typing.get_origin(of) or of for key, of in guide.items()} == {
        key: typing.get_origin(of) or of for key, of in ours.items()
    }


def test_4c_recipe():
    """The four operators of the guide's list, in its order and with its numbers."""
    listed = [(operator.name, operator.text_key, dict(operator.parameters)) for operator in load_recipe(DEFAULT_RECIPE)]
    both = [
        ("text_length_filter", {"min_len": 8, "max_len": 32000}),
        ("words_num_filter", {"min_num": 2, "max_num": 4096}),
        ("special_characters_filter", {"max_ratio": 0.5}),
    ]
    filters = [(name, field, limits) for name, limits in both for field in ("chosen", "rejected")]
    assert listed == [*filters, ("document_deduplicator", "chosen", {"lowercase": True, "ignore_non_character": True})]
    assert str(DEFAULT_RECIPE).endswith("composer_replication/recipes/replaysim/default.yaml")


def test_4c_and_4d_three_states_pass_unchanged(replayed):
    run(GUIDE_4B + GUIDE_4C, replayed)
    pairs, normalized = replayed["pairs"], replayed["normalized"]
    assert [{key: n[key] for key in p} for n, p in zip(normalized, pairs, strict=True)] == pairs
    assert [(n["chosen_messages"], n["rejected_messages"]) for n in normalized] == [
        ([{"role": "assistant", "content": p["chosen"]}], [{"role": "assistant", "content": STUDENT}]) for p in pairs
    ]
    assert replayed["normalizer"].report.dropped_by == (None, None, None)


def test_4e(endpoint, states):
    names = {"states": states, "DEFAULT_TEACHERS": composer_replication.DEFAULT_TEACHERS}
    run(GUIDE_4E, names)
    assert (len(names["teacher_actions"]), [p["state_id"] for p in names["normalized_pairs"]]) == (9, list(TASKS))


def test_4e_sync_sibling(endpoint, states):
    from composer_replication.replaysim import replay_and_normalize_trace_sync

    actions, pairs = replay_and_normalize_trace_sync(
        states=states, teachers=composer_replication.DEFAULT_TEACHERS, agreement_threshold=3, max_total_usd=10.0
    )
    assert (len(actions), [p["state_id"] for p in pairs]) == (9, ["state-001", "state-002"])
