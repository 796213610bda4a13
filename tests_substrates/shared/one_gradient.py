"""One policy, one batch with all three channels on: every substrate must find the gradient that `compose_loss` finds.

The batch is made from trajectories, hinted turns and pairs of random tokens, so that an adapter can take them at whatever stage
its framework wants them. Rows differ in length, one trajectory is unscored, one hint is in it, and the recorded log-probs lie off
the policy's own, so that some ratios are clipped. To import it, put this folder on the path, never the one above: folders there
have the names of frameworks.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from composer_replication.config import HintConfig, LossConfig, ReplayConfig, RlvrConfig
from composer_replication.distillation import make_self_teacher
from composer_replication.loss import compose_loss, sequence_logprobs
from composer_replication.loss.batch import collate
from composer_replication.loss.batch_keys import Batch
from composer_replication.loss.forward.models import save_policy
from composer_replication.quickstart.policy import tiny_model, tiny_tokenizer
from composer_replication.types import Group, HintedTurn, Pair, StopReason, Trajectory, Turn

LOSS = LossConfig(
    rlvr=RlvrConfig(objective="dapo", epsilon_low=0.2, epsilon_high=0.28),
    hint=HintConfig(weight=0.7, form="jsd", beta=0.5),
    replay=ReplayConfig(weight=0.4, variant="dpo", dpo_beta=0.3),
)
"""What all substrates are asked to compute."""


@dataclass(frozen=True)
class Case:
    """The policy in float32 and what a step gives it to learn."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerFast
    groups: list[Group]
    """Two tasks with two siblings each; trajectories in this order are the rows of the batch."""
    advantages: list[float | None]
    hinted: list[HintedTurn]
    pairs: list[Pair]

    @property
    def trajectories(self) -> list[Trajectory]:
        return [t for group in self.groups for t in group.trajectories]

    @property
    def batch(self) -> Batch:
        """All three channels with their weight streams and denominators."""
        pad = int(self.tokenizer.pad_token_id)
        return collate(self.trajectories, self.advantages, self.hinted, self.pairs, pad_id=pad, objective="dapo")

    def save(self, folder: Path) -> Path:
        """The policy as a folder that `from_pretrained` reads."""
        save_policy(self.model, self.tokenizer, folder)
        return folder


def case(seed: int = 0) -> Case:
    """Always the same for the same seed."""
    tokenizer = tiny_tokenizer()
    model = tiny_model(tokenizer, seed, hidden=32, layers=2)
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(seed)
        for parameter in model.parameters():  # at its usual start every distribution is nearly uniform
            parameter.add_(0.15 * torch.randn_like(parameter))
    rng = random.Random(seed)

    def ids(low: int, high: int) -> tuple[int, ...]:
        return tuple(rng.randrange(8, len(tokenizer)) for _ in range(rng.randint(low, high)))

    groups = [
        Group(group_id=f"1/{task}", task_id=task, trajectories=tuple(_trajectory(f"1/{task}/{i}", task, ids) for i in range(2)))
        for task in ("one", "other")
    ]
    groups = [_recorded(group, model, rng) for group in groups]
    trajectories = [t for group in groups for t in group.trajectories]
    hinted = [_hint(trajectories[1], 1, ids(3, 5)), _hint(trajectories[2], 0, ids(2, 4))]
    pairs = [
        Pair(
            pair_id=f"pair-{i}",
            prompt_ids=ids(4, 9),
            chosen_ids=ids(2, 6),
            rejected_ids=ids(2, 6),
            confidence=(0.5, 1.0)[i],
            ref_chosen_logprob=rng.uniform(-40.0, -20.0),
            ref_rejected_logprob=rng.uniform(-40.0, -20.0),
        )
        for i in range(2)
    ]
    return Case(model, tokenizer, groups, [0.8, -1.1, None, 0.6], hinted, pairs)


def local_gradient(case: Case) -> dict[str, Tensor]:
    """Return the gradient of `compose_loss` by parameter name: whole batch at once, `LOSS`, frozen self-teacher."""
    case.model.zero_grad()
    teacher = make_self_teacher("frozen", case.model)
    compose_loss(case.model, case.batch, LOSS, self_teacher=teacher, strict=True).total.backward()
    found = gradient_of(case.model)
    case.model.zero_grad()
    return found


def gradient_of(model: nn.Module) -> dict[str, Tensor]:
    """Clones of what has accumulated, by parameter name."""
    return {name: p.grad.detach().clone() for name, p in model.named_parameters() if p.grad is not None}


def relative_error(found: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> float:
    """||found - expected|| / ||expected|| over all parameters. Raises ValueError when they are not the same parameters."""
    if found.keys() != expected.keys():
        raise ValueError(f"different parameters: {sorted(found.keys() ^ expected.keys())}")
    off = sum(float((found[name].double() - value.double()).square().sum()) for name, value in expected.items())
    size = sum(float(value.double().square().sum()) for value in expected.values())
    return float((off / size) ** 0.5)


def _trajectory(name: str, task: str, ids: Callable[[int, int], tuple[int, ...]]) -> Trajectory:
    turns = []
    for number in range(2):
        action = ids(3, 7)
        turns.append(
            Turn(action_ids=action, logprobs=(0.0,) * len(action), text="", observation_ids=ids(2, 5) if number == 0 else ())
        )
    return Trajectory(
        trajectory_id=name,
        task_id=task,
        policy_version=0,
        messages=(),
        tools=(),
        prompt_ids=ids(5, 10),
        turns=tuple(turns),
        stop_reason=StopReason.SUBMITTED,
        temperature=1.0,
        reward=0.0,
    )


def _recorded(group: Group, model: PreTrainedModel, rng: random.Random) -> Group:
    """With the policy's own log-probs, moved by up to 0.4 nats."""
    made = []
    for trajectory in group.trajectories:
        ids = torch.tensor([trajectory.context_ids(len(trajectory.turns))])
        with torch.no_grad():
            own = sequence_logprobs(model, ids, torch.ones_like(ids), torch.ones_like(ids).index_fill_(1, torch.tensor([0]), 0))[
                0
            ]
        turns = []
        for number, turn in enumerate(trajectory.turns):
            start = trajectory.action_start(number)
            logprobs = tuple(float(own[start + i]) + rng.uniform(-0.4, 0.4) for i in range(len(turn.action_ids)))
            turns.append(Turn(action_ids=turn.action_ids, logprobs=logprobs, text="", observation_ids=turn.observation_ids))
        made.append(replace(trajectory, turns=tuple(turns)))
    return replace(group, trajectories=tuple(made))


def _hint(trajectory: Trajectory, turn: int, hint: tuple[int, ...]) -> HintedTurn:
    action = trajectory.turns[turn].action_ids
    context = trajectory.context_ids(turn) + hint
    return HintedTurn(
        trajectory_id=trajectory.trajectory_id,
        turn=turn,
        student_start=trajectory.action_start(turn),
        teacher_ids=context + action,
        teacher_start=len(context),
        action_ids=action,
    )
