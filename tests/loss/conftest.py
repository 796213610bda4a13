"""A tiny random Qwen3 and a byte-level tokenizer with a ChatML template: real Hugging Face classes, nothing downloaded."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from composer_replication.types import HintedTurn, Pair, StopReason, Trajectory, Turn

sys.path.insert(0, str(Path(__file__).parent))  # for ranks.py, which processes of their own import too

from exact_norms import with_exact_norms

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SPECIAL = ["<|pad|>", "<|im_start|>", "<|im_end|>"]


def make_tokenizer() -> PreTrainedTokenizerFast:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {token: i for i, token in enumerate(SPECIAL + alphabet)}
    core = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    core.add_special_tokens(SPECIAL)
    return PreTrainedTokenizerFast(
        tokenizer_object=core, pad_token="<|pad|>", eos_token="<|im_end|>", chat_template=CHATML, model_max_length=4096
    )


def make_model(
    seed: int = 0, *, vocab_size: int = 259, dtype: torch.dtype = torch.float32, tied: bool = True, layers: int = 2
) -> Qwen3ForCausalLM:
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=vocab_size,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=layers,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        max_position_embeddings=1024,
        tie_word_embeddings=tied,
        initializer_range=0.3,
    )
    model = Qwen3ForCausalLM(config).to(dtype)
    return with_exact_norms(model) if dtype == torch.float64 else model


@pytest.fixture(scope="session")
def tokenizer() -> PreTrainedTokenizerFast:
    return make_tokenizer()


@pytest.fixture
def model() -> Qwen3ForCausalLM:
    """A fresh float32 model over the tokenizer's vocabulary."""
    return make_model()


@pytest.fixture(scope="session")
def new_model() -> Callable[..., Qwen3ForCausalLM]:
    """Factory: `new_model(seed, vocab_size=..., dtype=..., tied=...)`."""
    return make_model


# --- hand-made data --------------------------------------------------------------------------------------------------


class Maker:
    """Random trajectories, hints and pairs over the tiny vocabulary, reproducible from one seed."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)

    def ids(self, low: int, high: int) -> tuple[int, ...]:
        return tuple(self.rng.randrange(3, 259) for _ in range(self.rng.randint(low, high)))

    def trajectory(self, name: str, turns: int = 2, reward: float = 1.0) -> Trajectory:
        made = []
        for i in range(turns):
            action = self.ids(2, 5)
            logprobs = tuple(self.rng.uniform(-7.0, -4.0) for _ in action)
            observation = self.ids(1, 4) if i < turns - 1 else ()
            made.append(Turn(action_ids=action, logprobs=logprobs, text="", observation_ids=observation))
        return Trajectory(
            trajectory_id=name,
            task_id="task",
            policy_version=0,
            messages=(),
            tools=(),
            prompt_ids=self.ids(2, 6),
            turns=tuple(made),
            stop_reason=StopReason.SUBMITTED,
            temperature=1.0,
            reward=reward,
        )

    def hint(self, trajectory: Trajectory, turn: int) -> HintedTurn:
        action = trajectory.turns[turn].action_ids
        context = trajectory.context_ids(turn) + self.ids(2, 4)
        return HintedTurn(
            trajectory_id=trajectory.trajectory_id,
            turn=turn,
            student_start=trajectory.action_start(turn),
            teacher_ids=context + action,
            teacher_start=len(context),
            action_ids=action,
        )

    def pair(self, name: str, *, reference: bool = True) -> Pair:
        known = {"ref_chosen_logprob": self.rng.uniform(-30, -10), "ref_rejected_logprob": self.rng.uniform(-30, -10)}
        return Pair(
            pair_id=name,
            prompt_ids=self.ids(2, 5),
            chosen_ids=self.ids(1, 5),
            rejected_ids=self.ids(1, 5),
            confidence=self.rng.choice([0.25, 0.5, 1.0]),
            **(known if reference else {}),
        )

    def everything(self) -> tuple[list[Trajectory], list[float | None], list[HintedTurn], list[Pair]]:
        """Five trajectories (one unscored), three hinted turns (one of them in the unscored trajectory), three pairs."""
        trajectories = [self.trajectory(f"t{i}", turns=1 + i % 3) for i in range(5)]
        advantages: list[float | None] = [0.7, -1.2, None, 0.0, 1.1]
        hints = [self.hint(trajectories[1], 1), self.hint(trajectories[2], 0), self.hint(trajectories[1], 0)]
        return trajectories, advantages, hints, [self.pair(f"p{i}") for i in range(3)]


@pytest.fixture(scope="session")
def new_maker() -> Callable[[int], Maker]:
    """Factory: `new_maker(seed)`."""
    return Maker
