"""Sampled tokens per second of multi-turn rollouts: the engine, whose sessions keep their caches, against `model.generate`,
which reads the whole conversation again at every turn. Same tiny model, same prompts, same number of sampled tokens."""

from __future__ import annotations

from typing import Any

import torch
from measuring import emit, interleave, ratio
from torch import Tensor
from transformers import Qwen3Config, Qwen3ForCausalLM

from composer_replication.rollouts.protocol import SampleRequest
from composer_replication.rollouts.transformers_engine import TransformersEngine
from composer_replication.tokens import byte_level_tokenizer

ROLLOUTS, TURNS = 16, 6
PROMPT, OBSERVATION, SAMPLED = 300, 100, 24
VOCABULARY, NEVER = 512, 999_999
REPEATS = 5


def tiny_model() -> Qwen3ForCausalLM:
    """An untrained policy of the embedded default's kind; what it says does not matter here."""
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=128,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        intermediate_size=256,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
    )
    model = Qwen3ForCausalLM(config)
    model.train(False)
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = 0
    return model


def conversation() -> tuple[Tensor, Tensor]:
    """The prompts `[R, PROMPT]` and the environment's replies `[TURNS, R, OBSERVATION]`, distinct for every rollout."""
    generator = torch.Generator().manual_seed(1)
    prompts = torch.randint(1, VOCABULARY, (ROLLOUTS, PROMPT), generator=generator)
    return prompts, torch.randint(1, VOCABULARY, (TURNS, ROLLOUTS, OBSERVATION), generator=generator)


def main() -> None:
    """Measure and print."""
    torch.set_num_threads(1)
    model: Any = tiny_model()  # the annotations of `generate` do not fit the models that have it
    prompts, replies = conversation()
    engine = TransformersEngine(model, byte_level_tokenizer(), stop_ids=[NEVER])

    def with_engine() -> None:
        engine.reset()
        new = prompts
        for turn in range(TURNS):
            requests = [
                SampleRequest(session=str(row), new_ids=tuple(ids), max_new_tokens=SAMPLED, seed=turn * ROLLOUTS + row)
                for row, ids in enumerate(new.tolist())
            ]
            samples = engine.sample(requests, temperature=1.0)
            if any(len(sample.ids) != SAMPLED for sample in samples):
                raise RuntimeError("a turn was cut short: the comparison would be unequal")
            new = replies[turn]

    def with_generate() -> None:
        context = prompts
        for turn in range(TURNS):
            with torch.no_grad():
                context = model.generate(
                    context, attention_mask=torch.ones_like(context), max_new_tokens=SAMPLED, do_sample=True, top_k=0
                )
            context = torch.cat([context, replies[turn]], dim=1)

    samples = interleave({"engine": with_engine, "generate": with_generate}, REPEATS)
    tokens = ROLLOUTS * TURNS * SAMPLED
    figures: dict[str, dict[str, float]] = {}
    for name, measured in samples.items():
        figures[name] = measured.figures()
        figures[name]["tokens_per_s"] = round(1e3 * tokens / figures[name]["wall_ms_p50"], 1)
        print(f"{name:10s} {figures[name]}")
    shape = {"rollouts": ROLLOUTS, "turns": TURNS, "sampled_per_turn": SAMPLED, "parameters": model.num_parameters()}
    emit("rollout", {**figures, "generate_over_engine": ratio(samples, "generate", "engine"), **shape})


if __name__ == "__main__":
    main()
