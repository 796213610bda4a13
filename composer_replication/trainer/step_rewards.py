"""Scores of a trained process reward model for every turn of a rollout (`[reward.prm]`)."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean

from transformers import PreTrainedModel

from composer_replication.config import RunConfig
from composer_replication.prm.data import encode, fit
from composer_replication.prm.model import limit_of, load_prm, score_by_turn
from composer_replication.tokens import ChatRenderer
from composer_replication.types import Trajectory
from composer_replication.types.errors import ConfigError


@dataclass(frozen=True, slots=True)
class StepScorer:
    """A scorer of the turns of the policy's own trajectories."""

    network: PreTrainedModel
    renderer: ChatRenderer
    """The policy's, whose tokens the model reads."""
    max_tokens: int
    """Turns that end further in a trajectory get no score, nor do those beyond the model's own limit."""
    _last: dict[str, list[float | None]] = field(default_factory=dict)
    """The scores of the last call, by trajectory: the curriculum and the rewards ask for those of the same step."""

    def __call__(self, trajectories: Sequence[Trajectory]) -> list[list[float | None]]:
        """Return the probability that each turn is good; None for a turn that sampled nothing or ends beyond the limit."""
        new = [t for t in trajectories if t.trajectory_id not in self._last]
        encoded = [example for t in new for example in encode(t, self.renderer)]
        examples, _ = fit(encoded, limit_of(self.network, self.max_tokens).tokens)
        scores = score_by_turn(self.network, examples, pad_id=int(self.renderer.tokenizer.pad_token_id))
        found = {t.trajectory_id: [scores.get((t.trajectory_id, turn)) for turn in range(len(t.turns))] for t in new}
        known = {**self._last, **found}
        self._last.clear()
        self._last.update({t.trajectory_id: known[t.trajectory_id] for t in trajectories})
        return [known[t.trajectory_id] for t in trajectories]


def mean_scores(trajectories: Sequence[Trajectory], rows: Sequence[Sequence[float | None]]) -> dict[str, float]:
    """Return the mean score of each trajectory's turns, by its id; without those of which no turn was scored."""
    known = {t.trajectory_id: [score for score in row if score is not None] for t, row in zip(trajectories, rows, strict=True)}
    return {name: fmean(scores) for name, scores in known.items() if scores}


def load_step_scorer(config: RunConfig, renderer: ChatRenderer) -> StepScorer:
    """Load the model of `reward.prm.path` for the policy that `renderer` is of.

    Raises:
        ConfigError: no path is given, or the model has another tokenizer or chat template than the policy.
        ModelError: it cannot be loaded, or is no process reward model.
    """
    path = config.reward.prm.path
    if path is None:
        raise ConfigError("reward.prm.path is missing", fix="name the folder `model` that `composer prm train` wrote")
    network, tokenizer = load_prm(str(path), device=config.model.device)
    policy = renderer.tokenizer
    if tokenizer.get_vocab() != policy.get_vocab() or tokenizer.chat_template != policy.chat_template:
        raise ConfigError(
            f"reward.prm.path: {path} has another tokenizer or chat template than the policy {config.model.path}",
            fix="train a process reward model from a model with the policy's tokenizer",
        )
    return StepScorer(network, renderer, config.rollout.context_tokens)


def prm_digest(config: RunConfig) -> dict[str, str]:
    """Return the digest of the process reward model that training depends on, by its name; empty where there is none."""
    path = config.reward.prm.path
    if path is None or not config.scores_turns:
        return {}
    digest = hashlib.sha256()
    for file in sorted(path.glob("*.safetensors")):
        with file.open("rb") as stream:
            digest.update(hashlib.file_digest(stream, "sha256").digest())
    return {"process reward model": digest.hexdigest()}
