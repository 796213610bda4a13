"""The warm start's demonstrations look exactly like rollouts: every observation is what the real tools answer."""

from __future__ import annotations

import random
import re
import sys
from pathlib import Path

import pytest

from composer_replication.envs.coding import CodingEnv
from composer_replication.envs.oracle import call_turn
from composer_replication.hints import DocumentationHint, HintContext
from composer_replication.quickstart.language import GLOSSARY, HOUSE_TERMS, OPERATIONS, WORDS, modules, project_path
from composer_replication.quickstart.teachers import TEACHERS, knowledge
from composer_replication.quickstart.transcripts import EDITED, demonstration, found, hint_text, instruction
from composer_replication.sandbox import open_sandbox
from composer_replication.tasks.build import BuildOptions, build_tasks
from composer_replication.tasks.folders import load_tasks
from composer_replication.tasks.store import Task
from composer_replication.types import Finding, StopReason, ToolCall, Trajectory, Turn

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Task:
    out = tmp_path_factory.mktemp("built")
    build_tasks(str(project_path("harbour")), out, BuildOptions(trivial=True, packages=("harbour/cargo.py",), max_tasks=1))
    return load_tasks(out)[0]


def tool_call(message: dict[str, object]) -> ToolCall:
    function = message["tool_calls"][0]["function"]  # type: ignore[index]
    return ToolCall(call_id="c", name=function["name"], arguments=function["arguments"])


def test_observations_are_the_real_ones(task: Task) -> None:
    deleted = task.spec.deleted[0]
    module = next(m for m in modules() if m.path == deleted.path)
    source = (project_path("harbour") / deleted.path).read_text().splitlines()
    line = next(i for i, text in enumerate(source, 1) if text.startswith(f"def {deleted.qualname}("))
    term = re.findall(r"The (\w+) of", source[line])[0]
    env = CodingEnv(task, sandbox=open_sandbox(), python=Path(sys.executable))
    opening = env.reset()
    assert opening[1]["content"] == instruction(deleted.path, deleted.qualname)
    seen = env.step(tool_call(call_turn("search", pattern="NotImplementedError")))
    assert seen.content == found(module, line, deleted.qualname, term)
    right = OPERATIONS[GLOSSARY[term]]
    wrong = next(op for op in OPERATIONS.values() if op != right)
    for operation in (wrong, right):
        env.reset()
        old = "raise NotImplementedError"
        new = f"return {operation}({module.first}, {module.second})"
        assert env.step(tool_call(call_turn("edit_file", path=module.path, old=old, new=new))).content == EDITED.format(
            path=module.path
        )
        answer = env.step(tool_call(call_turn("run_tests"))).content
        if operation == wrong:
            assert re.fullmatch(rf"1 failed, 7 passed\ntest_{deleted.qualname}: assert -?\d+ == -?\d+.*", answer), answer
        else:
            assert answer == "8 passed"
    assert env.grade().reward == 1.0


def test_hint_is_what_the_documentation_gives(task: Task) -> None:
    deleted = task.spec.deleted[0]
    env = CodingEnv(task, sandbox=open_sandbox(), python=Path(sys.executable))
    messages = env.reset()
    search = tool_call(call_turn("search", pattern="NotImplementedError"))
    result = env.step(search)
    turn = Turn(action_ids=(1,), logprobs=(0.0,), text="", tool_calls=(search,), results=(result,), observation_ids=(2,))
    trajectory = Trajectory(
        trajectory_id="t", task_id=task.spec.task_id, policy_version=0, messages=messages, tools=env.tools, prompt_ids=(1,),
        turns=(turn, turn), stop_reason=StopReason.SUBMITTED, temperature=1.0, reward=0.0,
    )  # fmt: skip
    term = re.findall(r"The (\w+) of", result.content)[0]
    context = HintContext(tools=env.tools, documentation=task.docs(), instruction=task.spec.instruction)
    text = DocumentationHint().generate(Finding(kind="tests_failed", turn=1), trajectory, context)
    assert text == hint_text(term, GLOSSARY[term])
    assert deleted.qualname not in (text or "")


def test_house_terms_carry_no_information() -> None:
    """Over many demonstrations without a hint, a house term goes with every operation about equally often."""
    rng = random.Random(1)
    counts: dict[str, dict[str, int]] = {t: dict.fromkeys(OPERATIONS.values(), 0) for t in HOUSE_TERMS}
    for _ in range(12000):
        messages = demonstration(rng)
        if any("Hint:" in m["content"] for m in messages):
            continue
        text = next(m["content"] for m in messages if m["role"] == "tool")
        term = re.findall(r"The (\w+) of", text)[0]
        if term in counts:
            edit = next(m for m in messages if m.get("tool_calls") and m["tool_calls"][0]["function"]["name"] == "edit_file")
            operation = edit["tool_calls"][0]["function"]["arguments"]["new"].split()[1].split("(")[0]
            counts[term][operation] += 1
    for term, found_counts in counts.items():
        share = max(found_counts.values()) / sum(found_counts.values())
        assert share < 0.25, (term, found_counts)


def test_teachers_err_on_different_terms() -> None:
    mistakes = [{t for t in HOUSE_TERMS if knowledge(name)[t] != GLOSSARY[t]} for name in TEACHERS]
    assert [len(m) for m in mistakes] == [1, 1, 1]
    assert len(set.union(*mistakes)) == 3
    assert all(word in WORDS for name in TEACHERS for word in knowledge(name).values())
