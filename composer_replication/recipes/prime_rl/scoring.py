"""Additions of the orchestrator to rollouts: hints at error turns, and pairs with the weights of their tokens.

Log-probs come from `Score`, a prefill of PRIME-RL's inference server; nothing of PRIME-RL or verifiers is imported here.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import TypeAlias

from transformers import AutoTokenizer

from composer_replication.config import RunConfig
from composer_replication.hints import HintContext
from composer_replication.observe.files import replace_file
from composer_replication.recipes.prime_rl.signed_advantages import SignedPair, signed_advantages
from composer_replication.tasks.folders import load_tasks
from composer_replication.tokens import ChatRenderer
from composer_replication.trainer.hint_filter import SelectedHints
from composer_replication.trainer.pairs.pairs_file import file_pairs
from composer_replication.trainer.signals import HintSources, SignalMaker
from composer_replication.types import Pair, Trajectory
from composer_replication.types.errors import ConfigError

Score: TypeAlias = Callable[[list[int]], Awaitable[list[float]]]
"""Token ids to the log-prob of each given those before it; of the first, 0."""

REFERENCES = "pair_references.json"
_AT_ONCE = 32
"""Prefills in flight while the reference reads the pairs."""


@dataclass(slots=True)
class Pairs:
    """The pairs of `loss.replay.pairs`, and their log-probs under the reference."""

    config: RunConfig
    pairs: tuple[Pair, ...]
    folder: Path
    """Where the reference's log-probs are kept."""
    references: tuple[tuple[float, float], ...] = ()
    _reading: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def tokens_per_token(self) -> float:
        """Number of answer tokens with a weight for each that the replay channel divides by.

        The trainer divides by the tokens of both answers where the replay channel divides by those of the chosen ones, weighted
        by confidence; this times the weight makes up for it: exactly where a batch's pairs are as long as the file's on average,
        and over all batches together.
        """
        compares = self.config.loss.replay.compares
        counted = sum(len(pair.chosen_ids) + compares * len(pair.rejected_ids) for pair in self.pairs)
        return counted / sum(pair.confidence * len(pair.chosen_ids) for pair in self.pairs)

    async def read_references(self, score: Score) -> None:
        """Score every pair once with the reference: the scores are kept in `folder`, where a resumed run reads them.

        `score` must be the policy that the run starts from.
        """
        async with self._reading:
            if self.references or not self.config.loss.replay.has_reference:
                return
            ids = [[pair.prompt_ids, pair.chosen_ids, pair.rejected_ids] for pair in self.pairs]
            digest = hashlib.sha256(json.dumps([self.config.model.path, ids]).encode()).hexdigest()
            path = self.folder / REFERENCES
            kept = json.loads(path.read_text()) if path.is_file() else {}
            if kept.get("digest") != digest:
                gate = asyncio.Semaphore(_AT_ONCE)
                sums = await asyncio.gather(*(self._sums(pair, score, gate) for pair in self.pairs))
                kept = {"digest": digest, "references": sums}
                replace_file(path, json.dumps(kept).encode())
            self.references = tuple((chosen, rejected) for chosen, rejected in kept["references"])

    def weigh(self, number: int, chosen: Sequence[float], rejected: Sequence[float]) -> SignedPair:
        """Weigh pair `number` of the file, whose answers' tokens have these log-probs under the policy.

        Raises ValueError before `read_references`, where the loss has a reference.
        """
        reference = self.references[number] if self.references else None
        replay = self.config.loss.replay
        return signed_advantages(chosen, rejected, replay, confidence=self.pairs[number].confidence, reference=reference)

    @staticmethod
    async def _sums(pair: Pair, score: Score, gate: asyncio.Semaphore) -> tuple[float, float]:
        async with gate:
            start = len(pair.prompt_ids)
            sides = [await score([*pair.prompt_ids, *answer]) for answer in (pair.chosen_ids, pair.rejected_ids)]
            return sum(sides[0][start:]), sum(sides[1][start:])


def hint_maker(config: RunConfig) -> SignalMaker | None:
    """Return the maker of a run's hints; None when the channel is off. Raises TaskError and ModelError."""
    if config.loss.hint.weight == 0:
        return None
    return SignalMaker(
        config=config,
        sources=HintSources.of(config.loss.hint, load_tasks(config.tasks.folder)),
        renderer=_renderer(config),
        context_window=config.rollout.context_tokens - 1,  # a prefill is asked for one token more
    )


def select_hints(maker: SignalMaker, trajectories: Sequence[Trajectory]) -> SelectedHints:
    """Return the hints of siblings, each in the context of the tools that its agent was offered."""
    known, tools = maker.sources.contexts, {t.task_id: t.tools for t in trajectories}
    contexts = {name: replace(known.get(name, HintContext()), tools=offered) for name, offered in tools.items()}
    return replace(maker, sources=replace(maker.sources, contexts=contexts)).select_hints(0, trajectories)


@lru_cache(maxsize=4)
def _opened(run: str, folder: Path) -> Pairs:
    config = RunConfig.model_validate_json(run)
    found = file_pairs(config, _renderer(config), config.rollout.context_tokens)
    if found is None:
        raise ConfigError("loss.replay.weight is above 0 and loss.replay.pairs names no file", fix="name one, or set it to 0")
    return Pairs(config, found.pairs, folder)


def shared_pairs(config: RunConfig, folder: Path) -> Pairs:
    """Return the pairs of a run in the policy's tokens, read once per process: every source of a run has a separate algorithm.

    Raises:
        ConfigError: the file has no pair for this policy, or there is no file.
        ModelError: the policy's tokenizer cannot render them.
    """
    return _opened(config.model_dump_json(), folder)


def _renderer(config: RunConfig) -> ChatRenderer:
    return ChatRenderer(AutoTokenizer.from_pretrained(config.model.path, trust_remote_code=False))
