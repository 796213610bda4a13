"""A policy whose weights a test changes, and what the tests of serving engines ask for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from composer_replication.loss.forward import sequence_logprobs
from composer_replication.loss.forward.models import save_policy
from composer_replication.rollouts.protocol import SampleRequest


@dataclass
class Policy:
    """A `PolicySource`."""

    model: Any
    tokenizer: Any
    version: int = 0
    is_adapter: bool = False

    def save(self, folder: Path) -> None:
        save_policy(self.model, self.tokenizer, folder)

    def make_room(self) -> None:
        """Nothing is kept."""

    @torch.no_grad()
    def logprobs(self, prompt: Sequence[int], ids: Sequence[int], temperature: float = 1.0) -> list[float]:
        rows = torch.tensor([[*prompt, *ids]])
        wanted = torch.zeros_like(rows)
        wanted[:, len(prompt) :] = 1
        scores: list[float] = sequence_logprobs(self.model, rows, None, wanted, temperature)[0, len(prompt) :].tolist()
        return scores


def ask(ids: Sequence[int], *names: str, tokens: int = 12, seed: int = 0) -> list[SampleRequest]:
    """One turn for each session, the first with this seed."""
    return [SampleRequest(session=n, new_ids=tuple(ids), max_new_tokens=tokens, seed=seed + i) for i, n in enumerate(names)]


def unlike(one: Sequence[float], other: Sequence[float]) -> float:
    """The largest difference."""
    return max(abs(a - b) for a, b in zip(one, other, strict=True))
