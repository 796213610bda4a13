"""What the run's scoring teachers find likely in the places of chosen answers, asked once before an arm begins."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from composer_replication.config import RunConfig
from composer_replication.teachers import Teacher
from composer_replication.trainer.teacher_kl import open_scorer
from composer_replication.types import Pair
from composer_replication.types.signals import TokenTargets


def with_soft_targets(pairs: Sequence[Pair], config: RunConfig, tokenizer: Any) -> list[Pair]:
    """Return the pairs with what each teacher with `scores_tokens` says of the tokens of their chosen answers. Turns that are
    held have none: what is said there is the policy's own.

    Raises:
        ConfigError: a key is missing, or a teacher's tokenizer is another one.
        ModelError: a server cannot be reached or gives no log-probs.
    """
    replay = config.loss.replay
    places = [place for place, pair in enumerate(pairs) if pair.rejected_ids]
    if replay.soft_targets == 0 or not places:
        return list(pairs)
    servers = [open_scorer(Teacher.of(teacher)) for teacher in config.teachers if teacher.scores_tokens]
    for server in servers:
        server.check(tokenizer)
    sequences = [(*pairs[place].prompt_ids, *pairs[place].chosen_ids) for place in places]
    told = [server.likeliest(sequences, replay.soft_top_k) for server in servers]
    found = list(pairs)
    for place, *of_teachers in zip(places, *told, strict=True):
        answer = len(pairs[place].chosen_ids)
        found[place] = replace(pairs[place], chosen_targets=tuple(_targets(one[-answer:]) for one in of_teachers))
    return found


def _targets(places: Sequence[dict[int, float]]) -> TokenTargets:
    return TokenTargets(ids=tuple(tuple(place) for place in places), logprobs=tuple(tuple(place.values()) for place in places))
