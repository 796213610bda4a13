"""On-policy distillation: what the run's teachers think of every token that the policy sampled.

The policy's gradient on advantages log p(teachers) - log p(policy) descends KL(policy || teachers), with an estimate from the
sampled token alone (GKD's reverse KL, arXiv:2306.13649; MiniLLM, arXiv:2306.08543). Several teachers are one distribution, the
mean of theirs, which at a sampled token is the mean of their probabilities: no other token has to be known.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from composer_replication.config import RunConfig
from composer_replication.rollouts.serving import PromptScorer
from composer_replication.teachers import Teacher
from composer_replication.types import Trajectory


@dataclass(frozen=True, slots=True)
class TeacherScorer:
    """The servers of the teachers that score tokens."""

    servers: Sequence[PromptScorer]

    @classmethod
    def of(cls, config: RunConfig, tokenizer: Any) -> TeacherScorer:
        """Open the teachers with `scores_tokens`, and check that they have the policy's tokens.

        Raises:
            ConfigError: a key is missing, or a tokenizer is another one.
            ModelError: a server cannot be reached or gives no log-probs.
        """
        servers = [open_scorer(teacher) for teacher in scoring_teachers(config)]
        for server in servers:
            server.check(tokenizer)
        return cls(servers)

    def __call__(self, trajectories: Sequence[Trajectory]) -> list[list[list[float]]]:
        """Return, for each turn of each trajectory, the log of the teachers' mean probability of each sampled token, in nats."""
        sequences = [trajectory.context_ids(len(trajectory.turns)) for trajectory in trajectories]
        scored = [server.logprobs(sequences) for server in self.servers]
        return [
            _of_turns(trajectory, [mean_of_probabilities(of_token) for of_token in zip(*each, strict=True)])
            for trajectory, *each in zip(trajectories, *scored, strict=True)
        ]


def scoring_teachers(config: RunConfig) -> list[Teacher]:
    """Return the teachers that a run asks about tokens; none where neither `reward.teacher_kl_weight` nor
    `loss.replay.soft_targets` asks anything."""
    replay = config.loss.replay
    if config.reward.teacher_kl_weight == 0 and (replay.weight == 0 or replay.soft_targets == 0):
        return []
    return [Teacher.of(teacher) for teacher in config.teachers if teacher.scores_tokens]


def mean_of_probabilities(logprobs: Sequence[float]) -> float:
    """Return the log of the mean of exp(logprobs); NaN where one of them is not known."""
    if any(math.isnan(one) for one in logprobs):
        return math.nan
    most = max(logprobs)
    return most + math.log(math.fsum(math.exp(one - most) for one in logprobs) / len(logprobs))


def _of_turns(trajectory: Trajectory, scores: Sequence[float]) -> list[list[float]]:
    """Cut the sampled tokens' scores out of those of a whole sequence, which begin at its second token."""
    starts = [trajectory.action_start(number) - 1 for number in range(len(trajectory.turns))]
    return [list(scores[start : start + len(turn.action_ids)]) for start, turn in zip(starts, trajectory.turns, strict=True)]


def open_scorer(teacher: Teacher) -> PromptScorer:
    """Return the client of a teacher's server. Raises ConfigError where its key is missing."""
    return PromptScorer(
        teacher.base_url, teacher.model, key=teacher.key(), at_once=teacher.max_concurrency, timeout_s=teacher.timeout_s
    )
