"""The engine in this process: turns of several rollouts, whose log-probs are those that the learner finds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import get_args

import torch
from transformers import PreTrainedConfig

from composer_replication.config.model import Precision
from composer_replication.rollouts.protocol import Engine, Sample, SampleRequest
from composer_replication.rollouts.transformers_engine import TransformersEngine
from composer_replication.tokens import byte_level_tokenizer
from composer_replication.trainer.learning.learner import Learner
from gpu_checks import made
from gpu_checks.found import Found

MOST = {"float32": 1e-4, "mixed": 5e-2, "bfloat16": 5e-2}
"""Nats by which log-probs may differ in the mean over a turn's tokens: in bfloat16 a pass over a cache rounds otherwise."""
ROLLOUTS, SAMPLED = 6, 24
STOP = 0
PROMPTS = [tuple(range(40 + row, 60 + 3 * row)) for row in range(ROLLOUTS - 1)]
PROMPTS.append(PROMPTS[0])  # siblings read their prompt once
REPLY = tuple(range(7, 18))


def check(device: torch.device, folder: Path) -> Found:  # noqa: ARG001
    """Sample two turns of each rollout before and after an update, in each precision."""
    found, size = Found(), made.size_on(device)
    tokenizer = byte_level_tokenizer()
    for precision in (name for name in get_args(Precision) if name != "auto"):
        config = made.run_config(device, model={"precision": precision})
        model = made.make(config, like(size))
        batch = made.batch_for(model, size)
        learner = Learner(model, config)
        engine = TransformersEngine(learner.policy, tokenizer, stop_ids=[STOP])
        for when in ("at first", "after an update"):
            contexts = two_turns(engine, seed=0)
            apart = [distance(learner, prompt, sample) for prompt, sample in contexts]
            found.at_most(f"{precision}, {when}: log-probs", max(apart), MOST[precision])
            found.holds(f"{precision}, {when}: siblings differ", contexts[0][1].ids != contexts[ROLLOUTS - 1][1].ids)
            learner.update(batch)
            found.holds(f"{precision}, {when}: the update is seen", distance(learner, *contexts[0]) > max(apart))
            engine.reset()
    return found


def like(size: made.Size) -> PreTrainedConfig:
    """Return a Qwen3 whose head is apart from its embeddings: vLLM cannot reload a tied one on a CPU."""
    return made.qwen3(size, tie_word_embeddings=False)


def two_turns(engine: Engine, seed: int) -> list[tuple[tuple[int, ...], Sample]]:
    """Return each turn of each rollout with its context."""
    contexts: list[tuple[tuple[int, ...], Sample]] = []
    before: list[tuple[int, ...]] = [()] * ROLLOUTS
    for turn in range(2):
        new = PROMPTS if turn == 0 else [REPLY] * ROLLOUTS
        samples = engine.sample(_requests(new, seed + turn * ROLLOUTS), temperature=1.0)
        read = [one + added for one, added in zip(before, new, strict=True)]
        contexts += zip(read, samples, strict=True)
        before = [one + sample.ids for one, sample in zip(read, samples, strict=True)]
    return contexts


def _requests(new: Sequence[tuple[int, ...]], seed: int) -> list[SampleRequest]:
    return [SampleRequest(session=str(row), new_ids=ids, max_new_tokens=SAMPLED, seed=seed + row) for row, ids in enumerate(new)]


def distance(learner: Learner, context: Sequence[int], sample: Sample) -> float:
    """Return the mean distance in nats between a turn's log-probs and those that the learner finds."""
    ids = torch.tensor([[*context, *sample.ids]])
    wanted = (torch.arange(ids.shape[1]) >= len(context)).long()[None]
    own = learner.logprobs(ids, wanted)[0, len(context) :].cpu()
    return float((own - torch.tensor(sample.logprobs)).abs().mean())
