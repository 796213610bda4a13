"""A hint that does not move the self-teacher in the right direction is dropped and counted."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch
from world import World, finish

from composer_replication.config import load_config
from composer_replication.hints import insert_hints
from composer_replication.loss.forward.models import load_policy
from composer_replication.observe import RunDir
from composer_replication.tokens import ChatRenderer
from composer_replication.trainer.hint_filter import USELESS, SelectedHints, only_useful, teacher_logprobs
from composer_replication.trainer.learning.learner import Learner
from composer_replication.types import Hint, StopReason, Trajectory, Turn


@pytest.fixture
def learner(run_file: Path) -> Learner:
    config = load_config(run_file, ["--loss.hint.self_teacher", "frozen", "--optimizer.micro_batch_tokens", "100"])
    policy, _ = load_policy(config.model)
    return Learner(policy, config)


def attempt(renderer: ChatRenderer, sibling: int, text: str, reward: float) -> Trajectory:
    messages = ({"role": "user", "content": "Fix it."},)
    ids = (*renderer.template.encode(text), renderer.end_of_turn_id)
    turn = Turn(action_ids=ids, logprobs=(-1.0,) * len(ids), text=text)
    return Trajectory(
        trajectory_id=f"0/t/{sibling}",
        task_id="t",
        policy_version=0,
        messages=messages,
        tools=(),
        prompt_ids=renderer.prompt_ids(messages, ()),
        turns=(turn,),
        stop_reason=StopReason.NO_TOOL_CALL,
        temperature=1.0,
        reward=reward,
    )


def told(trajectory: Trajectory, renderer: ChatRenderer, text: str) -> SelectedHints:
    hint = Hint(trajectory_id=trajectory.trajectory_id, turn=0, kind="k", text=text, source="s")
    return SelectedHints(insert_hints([trajectory], [hint], renderer).hinted, (hint,), ())


def test_log_probs_are_those_of_each_sequence_alone(learner: Learner):
    questions = [((5, 6, 7), (8, 9)), ((5,), (6,)), ((9, 8, 7, 6, 5), (4, 3, 2))]
    model = learner.policy.eval()
    for (context, action), score in zip(questions, teacher_logprobs(learner, questions), strict=True):
        with torch.no_grad():
            logits = model(torch.tensor([[*context, *action]])).logits.log_softmax(-1)[0]
        expected = sum(float(logits[len(context) + i - 1, token]) for i, token in enumerate(action))
        assert score == pytest.approx(expected, abs=1e-3)


def test_a_hint_helps_when_the_bad_action_falls_or_the_better_one_rises(learner: Learner, monkeypatch: pytest.MonkeyPatch):
    renderer = ChatRenderer(load_policy(learner.config.model)[1])
    bad, good = attempt(renderer, 0, "bad", 0.0), attempt(renderer, 1, "good", 1.0)
    for scores, others, kept in (
        ([-2.0, -1.0], [bad], True),
        ([-1.0, -2.0], [bad], False),
        ([-1.0, -1.0], [bad], False),
        ([-1.0, -2.0, -1.0, -3.0], [bad, good], True),
        ([-1.0, -2.0, -3.0, -1.0], [bad, good], False),
    ):
        asked = []

        def answer(_, questions, asked=asked, scores=scores):
            asked.extend(questions)
            return scores

        monkeypatch.setattr("composer_replication.trainer.hint_filter.teacher_logprobs", answer)
        found = only_useful(told(bad, renderer, "Hint: be good."), others, learner)
        assert (len(found.hinted), len(found.hints), [h.dropped for h in found.dropped]) == (kept, kept, [USELESS] * (not kept))
        actions = [bad.turns[0].action_ids] * 2 + ([good.turns[0].action_ids] * 2 if good in others else [])
        assert [action for _, action in asked] == actions
        assert [len(context) > len(bad.prompt_ids) for context, _ in asked] == [True, False] * (len(asked) // 2)


def test_what_was_dropped_stays_dropped(learner: Learner):
    renderer = ChatRenderer(load_policy(learner.config.model)[1])
    bad = attempt(renderer, 0, "bad", 0.0)
    before = dataclasses.replace(
        told(bad, renderer, "Hint."), dropped=(Hint(trajectory_id="x", turn=0, kind="k", text="", source="", dropped="why"),)
    )
    after = only_useful(before, [bad], learner)
    assert after.dropped[0].dropped == "why"
    assert len(after.hints) + len(after.dropped) == 2


@pytest.mark.slow
def test_a_run_with_the_gate_records_what_it_dropped(run_file: Path, world: World, tmp_path: Path):
    finish("train", str(run_file), "--loss.hint.useful_only", "true", "--loss.replay.weight", "0", cwd=tmp_path)
    (path,) = (tmp_path / "runs").iterdir()
    run = RunDir(path)
    rows = [hint for arm in run.arms() for step in run.steps(arm) for hint in run.read_hints(arm, step)]
    metrics = [line.values for line in run.read_metrics() if "hint/turns" in line.values]
    assert sum(values["hint/turns"] for values in metrics) == sum(hint.dropped is None for hint in rows)
    assert sum(values["hint/dropped"] for values in metrics) == sum(hint.dropped is not None for hint in rows)
