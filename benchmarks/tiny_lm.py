"""What the benchmarks of replicas train: a model of bytes with some 170,000 parameters, on the sources of the standard library.

Every method sees the same text: step `s` of seed `k` has one global batch, of which replica `r` of `N` takes every N-th sequence.
"""

from __future__ import annotations

import math
import os
from functools import cache
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from composer_replication.trainer.learning.muon import make_muon

H = 15
"""Inner steps between two synchronisations of the same parameters."""
STREAMED = {"fragments": 3, "delay": 4}
"""A round of a third of the model every 5 steps, on its way during 4 of them."""
VOCABULARY, CONTEXT = 128, 64
_HELD_OUT = 10
"""One file in so many is for validation."""
_SEQUENCES = 512


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.before_attention, self.before_feed = nn.RMSNorm(width), nn.RMSNorm(width)
        self.mix = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.up = nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(4 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """[batch, time, width] to the same."""
        q, k, v = self.mix(self.before_attention(x)).unflatten(-1, (3, -1, 32)).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.before_feed(x))))


class TinyLM(nn.Module):
    """A decoder over bytes, in heads of 32."""

    def __init__(self, seed: int, width: int = 64, depth: int = 3) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.tokens, self.positions = nn.Embedding(VOCABULARY, width), nn.Embedding(CONTEXT, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(depth))
        self.norm, self.head = nn.RMSNorm(width), nn.Linear(width, VOCABULARY, bias=False)
        with torch.no_grad():
            for matrix in (self.tokens.weight, self.positions.weight, self.head.weight):
                matrix.normal_(0.0, 0.02)
            for block in self.blocks:
                for into in (block.out, block.down):
                    into.weight /= math.sqrt(2 * depth)

    def loss(self, text: Tensor) -> Tensor:
        """Mean cross-entropy in nats a byte of [batch, CONTEXT + 1]."""
        x = self.tokens(text[:, :-1]) + self.positions.weight
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), text[:, 1:].flatten())


@cache
def corpus(held_out: bool) -> Tensor:
    """[bytes], of 7 bits each."""
    files = sorted(Path(os.__file__).parent.glob("*.py"))
    kept = [file for number, file in enumerate(files) if (number % _HELD_OUT == 0) == held_out]
    return torch.frombuffer(bytearray(b"".join(file.read_bytes() for file in kept)), dtype=torch.uint8).clamp(max=127).long()


def sequences(text: Tensor, count: int, seed: int) -> Tensor:
    """[count, CONTEXT + 1] from random places."""
    starts = torch.randint(len(text) - CONTEXT, (count, 1), generator=torch.Generator().manual_seed(seed))
    return text[starts + torch.arange(CONTEXT + 1)]


def share(seed: int, step: int, size: int, rank: int = 0, replicas: int = 1) -> Tensor:
    """The sequences of a replica in the global batch of a step."""
    return sequences(corpus(False), size, 1_000_000 * seed + step)[rank::replicas]


@torch.no_grad()
def validation_loss(model: TinyLM) -> float:
    """Nats a byte, of the same held-out sequences always."""
    return model.loss(sequences(corpus(True), _SEQUENCES, 0)).item()


def optimizer_of(kind: str, model: nn.Module, lr: float) -> torch.optim.Optimizer:
    if kind == "muon":
        return make_muon(model, lr=lr)
    return torch.optim.AdamW(model.parameters(), lr=lr, betas=(0.9, 0.99), weight_decay=0.0)


def rate(peak: float, step: int, steps: int) -> float:
    """Learning rate of a step, from 0: up over the first tenth, then down along a cosine to a tenth of the peak."""
    warm = max(1, steps // 10)
    if step < warm:
        return peak * (step + 1) / warm
    return peak * (0.55 + 0.45 * math.cos(math.pi * (step - warm) / max(1, steps - warm)))


def train_step(model: TinyLM, optimizer: torch.optim.Optimizer, text: Tensor, lr: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = lr
    optimizer.zero_grad()
    model.loss(text).backward()
    optimizer.step()
