"""The entropy of the policy over its own actions, against float64 logits of the whole sequence."""

from __future__ import annotations

import pytest
import torch

from composer_replication.loss.forward import action_entropies
from composer_replication.types import StopReason, Trajectory, Turn


def rollout(name, turns, *, temperature=1.0):
    return Trajectory(
        trajectory_id=name,
        task_id="t",
        policy_version=0,
        messages=(),
        tools=(),
        prompt_ids=(5, 6, 7),
        turns=tuple(Turn(action_ids=tuple(a), logprobs=(-1.0,) * len(a), text="", observation_ids=tuple(o)) for a, o in turns),
        stop_reason=StopReason.SUBMITTED,
        temperature=temperature,
        reward=0.0,
    )


@pytest.mark.parametrize("temperature", [1.0, 0.6, 0.0])
def test_means_are_those_of_whole_logits_in_float64(temperature, new_model):
    model = new_model(3, dtype=torch.float32, tied=False)
    model.train()
    given = [
        rollout("a", [((10, 11, 12, 13), (20, 21)), ((), (22,)), ((30,), ())], temperature=temperature),
        rollout("b", [((40, 41), ())], temperature=temperature),
        rollout("c", [((), ())], temperature=temperature),
    ]
    found = action_entropies(model, given)
    assert model.training
    exact = new_model(3, dtype=torch.float32, tied=False).double().eval()
    assert list(found) == ["a", "b", "c"]
    assert found["c"] == [None]
    for trajectory in given[:2]:
        whole = torch.tensor([trajectory.context_ids(len(trajectory.turns))])
        with torch.no_grad():
            logprobs = torch.log_softmax(exact(input_ids=whole).logits[0] / (temperature or 1.0), -1)
        entropy = -(logprobs.exp() * logprobs).sum(-1)
        for i, turn in enumerate(trajectory.turns):
            start, length = trajectory.action_start(i), len(turn.action_ids)
            if length:
                assert found[trajectory.trajectory_id][i] == pytest.approx(
                    float(entropy[start - 1 : start - 1 + length].mean()), rel=1e-5
                )
            else:
                assert found[trajectory.trajectory_id][i] is None
