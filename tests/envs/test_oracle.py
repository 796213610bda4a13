from __future__ import annotations

import asyncio
import random
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from composer_replication.envs import CODING_TOOLS, CodingEnv, noop_script, oracle_script
from composer_replication.envs.oracle import _edits
from composer_replication.rollouts.collect import collect_groups
from composer_replication.rollouts.protocol import Budgets
from composer_replication.rollouts.scripted import RandomEngine, ScriptedEngine
from composer_replication.sandbox.grading.grade import GradeCache
from composer_replication.tokens import ChatRenderer, byte_level_tokenizer
from composer_replication.types import StopReason
from composer_replication.types.errors import TaskError

RENDERER = ChatRenderer(byte_level_tokenizer())
BUDGETS = Budgets(turn_tokens=4000, trajectory_tokens=20_000, context_tokens=40_000, max_turns=12)


def collect(task, sandbox, engine, group_size):
    cache = GradeCache()
    (group,) = asyncio.run(
        collect_groups(
            [task],
            make_env=lambda t: CodingEnv(t, sandbox=sandbox, python=Path(sys.executable), grade_cache=cache),
            engine=engine,
            renderer=RENDERER,
            budgets=BUDGETS,
            group_size=group_size,
            seed=0,
            step=0,
            temperature=1.0,
            policy_version=0,
        )
    )
    return group.trajectories


def test_oracle_is_one_and_noop_is_zero_through_the_whole_loop(task, sandbox):
    script = oracle_script(task)
    assert [m["tool_calls"][0]["function"]["name"] for m in script] == ["edit_file", "edit_file", "submit"]
    (solved,) = collect(task, sandbox, ScriptedEngine(RENDERER, lambda _: script), 1)
    assert (solved.reward, solved.stop_reason) == (1.0, StopReason.SUBMITTED)
    assert [r.status for t in solved.turns for r in t.results] == ["ok"] * 3
    (idle,) = collect(task, sandbox, ScriptedEngine(RENDERER, lambda _: noop_script()), 1)
    assert (idle.reward, len(idle.turns)) == (0.0, 1)


def test_noise_is_survived_and_never_rewarded(task, sandbox):
    engine = RandomEngine(RENDERER, tools=CODING_TOOLS, words=["shop/basket.py", "tests/test_basket.py", "total", "raise"])
    trajectories = collect(task, sandbox, engine, 40)
    assert all(t.reward == 0.0 for t in trajectories)
    statuses = {r.status for t in trajectories for turn in t.turns for r in turn.results}
    assert statuses >= {"ok", "malformed_call", "unknown_tool", "invalid_arguments", "path_not_found", "path_not_editable"}


def test_new_files_and_hopeless_edits_are_written_whole(task):
    gold = {"shop/extra.py": b"y = 1\n", "shop/basket.py": b"def other(): pass\n"}
    script = oracle_script(replace(task, gold=gold))
    assert [m["tool_calls"][0]["function"]["arguments"].get("path") for m in script][-2:] == ["shop/extra.py", None]
    with pytest.raises(TaskError, match="not UTF-8"):
        oracle_script(replace(task, gold={"shop/basket.py": b"\xff"}))


LINES = st.lists(st.sampled_from(["a\n", "b\n", "    return 1\n", "\n", "c\r\n", "d\x0c"]), max_size=14)


@settings(max_examples=300)
@given(LINES, LINES, st.integers(0, 9))
def test_edits_restore_any_text_or_are_given_up(before, after, seed):
    rng = random.Random(seed)
    mixed = [line for line in before if rng.random() < 0.8] + after[:2]
    for old_text, new_text in (("".join(before), "".join(after)), ("".join(before), "".join(mixed))):
        edits = _edits(old_text, new_text)
        text = old_text
        for old, new in edits or []:
            assert text.count(old) == 1
            text = text.replace(old, new)
        assert edits is None or text == new_text


def test_edits_are_small_where_a_line_is_unique():
    text = "".join(f"line {i}\n" for i in range(50))
    edits = _edits(text, text.replace("line 7\n", "seven\n").replace("line 30\n", "line 30\nthirty and a half\n"))
    assert edits is not None
    assert sum(len(old) for old, _ in edits) < 40
