"""Ask the run's scoring teachers, once before an arm begins, what they find likely in the places of chosen answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from composer_replication.config import RunConfig
from composer_replication.rollouts.serving import PromptScorer
from composer_replication.trainer.teacher_kl import open_scorer, scoring_teachers
from composer_replication.types import Pair
from composer_replication.types.signals import TokenTargets


def open_soft_scorers(config: RunConfig, tokenizer: Any) -> list[PromptScorer]:
    """Return the clients of the teachers with `scores_tokens`, checked; none where the run asks for no soft targets.

    Raises:
        ConfigError: a key is missing, or a teacher's tokenizer is another one.
        ModelError: a server cannot be reached, or gives no log-probs of so many tokens.
    """
    replay = config.loss.replay
    found = [open_scorer(teacher) for teacher in scoring_teachers(config)] if replay.soft_targets > 0 else []
    for scorer in found:
        scorer.check(tokenizer, replay.soft_top_k)
    return found


def with_soft_targets(pairs: Sequence[Pair], scorers: Sequence[PromptScorer], count: int) -> list[Pair]:
    """Return the pairs with the `count` tokens that each scorer's model finds likeliest in the places of their chosen answers.
    Turns that are held have none: what is said there is the policy's own.

    Raises:
        ModelError: a server cannot be reached or gives no log-probs.
    """
    places = [place for place, pair in enumerate(pairs) if pair.rejected_ids]
    sequences = [(*pairs[place].prompt_ids, *pairs[place].chosen_ids) for place in places]
    answers = [len(pairs[place].chosen_ids) for place in places]
    found = list(pairs)
    for scorer in scorers if places else ():
        for place, told in zip(places, scorer.likeliest(sequences, count, answers), strict=True):
            found[place] = replace(found[place], chosen_targets=(*found[place].chosen_targets, _targets(told)))
    return found


def _targets(places: Sequence[dict[int, float]]) -> TokenTargets:
    return TokenTargets(ids=tuple(tuple(place) for place in places), logprobs=tuple(tuple(place.values()) for place in places))
