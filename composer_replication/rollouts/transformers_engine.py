"""Samples turns in this process from any Hugging Face causal language model."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, cast

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers.cache_utils import Cache, DynamicCache, DynamicLayer

from composer_replication.loss.forward import (
    arguments_of,
    cache_argument,
    caches_attention_only,
    compute_dtype,
    evaluating,
    forward,
    raw_experts,
    replays_routers,
    routing,
    why_plain,
)
from composer_replication.loss.forward.models import window_of
from composer_replication.loss.micro_batches import passes
from composer_replication.rollouts.kv_cache import Session, merge_caches, split_cache
from composer_replication.rollouts.protocol import Sample, SampleRequest
from composer_replication.rollouts.sampling import draw, uniforms
from composer_replication.tokens.template import ChatTemplate
from composer_replication.types.errors import ModelError

if TYPE_CHECKING:
    from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase

_log = logging.getLogger(__name__)

PREFILL_TOKENS = 8192
"""Tokens, padding among them, that one pass over what is new to the sessions reads at most: it holds the activations of all."""


class TransformersEngine:
    """An `Engine` over a causal LM whose sessions keep their keys and values between turns.

    A call merges its sessions into one left-padded batch, reads only what is new to each, and decodes all rows together; finished
    rows leave the batch once they are half of it. Equal prompts of new sessions (siblings) are read once. Each request draws from
    its own generator, so a sample depends on the rest of its batch only through rounding, and the same batch with the same
    seeds gives the same bits.

    The experts that each token goes through are recorded where the model was loaded with `model.router_replay`.

    The weights are the trainer's own: after an optimizer step call `reset`, because cached keys belong to the weights they were
    computed with.

    Args:
        stop_ids: tokens that end a turn; by default those of the generation config and the tokenizer, and the chat template's
            end-of-turn token where the tokenizer has one.

    Raises:
        ModelError: the model is not decoder-only, has no attention layer or no transformers cache, or no token ends a turn.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        *,
        device: str | torch.device | None = None,
        stop_ids: Sequence[int] | None = None,
    ) -> None:
        module = cast("torch.nn.Module", model)
        self.model = module if device is None else module.to(device)
        self._model_config = model.config
        self._config: Any = model.config.get_text_config(decoder=True)
        if model.config.is_encoder_decoder:
            raise ModelError(f"{type(model).__name__} is an encoder-decoder model", fix="use a decoder-only language model")
        if not any(isinstance(layer, DynamicLayer) for layer in DynamicCache(config=model.config).layers):
            raise ModelError(
                f"{type(model).__name__} has no attention layer, so the padding of a batch would change what its rows read",
                fix="use a model with attention layers",
            )
        self._accepts = arguments_of(module)
        self._cache_name = cache_argument(module)
        plain = caches_attention_only(model.config) and "position_ids" in self._accepts
        self.cache_mode: Literal["session", "recompute"] = "session" if plain else "recompute"
        """`session`: caches live as long as their session. `recompute`: the model's cache is not plain attention (a sliding
        window, a recurrent state), so each turn reads its whole context again."""
        if not plain:
            _log.warning("%s caches more than attention: every turn reads its whole context again", type(model).__name__)
        stops = stop_ids_of(model.generation_config, tokenizer) if stop_ids is None else stop_ids
        if not stops:
            raise ModelError("no token ends a turn", fix="set `tokenizer.eos_token` or pass stop_ids")
        self._stop = torch.tensor(sorted(set(stops)), device=self.device)
        self._sessions: dict[str, Session] = {}
        self._records = replays_routers(module)

    @property
    def context_window(self) -> int:
        return window_of(self._model_config)

    def close(self, sessions: Sequence[str]) -> None:
        for name in sessions:
            self._sessions.pop(name, None)

    def reset(self) -> None:
        """Forget every session. To be called after each change of the weights."""
        self._sessions.clear()

    def rest(self) -> None:
        """Do nothing: sessions that are closed hold no memory."""

    def end(self) -> None:
        """Forget every session, for good."""
        self._sessions.clear()

    def sample(self, requests: Sequence[SampleRequest], *, temperature: float) -> list[Sample]:
        """Sample one turn for every request, in order.

        Raises:
            ModelError: a context leaves the model's window, the model's output is not finite, the device is out of memory, or
                such an error has ended an earlier call with one of the sessions.
        """
        if not requests:
            return []
        try:
            with evaluating(self.model):
                return self._sample(requests, temperature)
        except torch.OutOfMemoryError as error:
            raise ModelError(
                f"the device ran out of memory while sampling {len(requests)} turns at once: {error}",
                fix="lower rollout.max_rollouts, or raise rollout.cohorts: both may change when you --resume",
            ) from error

    # --- one call ---------------------------------------------------------------------------------------------------------

    def _sample(self, requests: Sequence[SampleRequest], temperature: float) -> list[Sample]:
        sessions = [self._sessions.get(r.session, Session()) for r in requests]
        feeds = [s.pending + r.new_ids for s, r in zip(sessions, requests, strict=True)]
        self._check(requests, sessions, feeds)
        for request, session in zip(requests, sessions, strict=True):
            if session.layers:
                self._sessions[request.session] = _LOST  # until its new state is known: the batch takes the old one apart
        unique, rows = _distinct(sessions, feeds)
        most = max(request.max_new_tokens for request in requests)
        batch = self._prefill(*self._read_ahead([sessions[i] for i in unique], [feeds[i] for i in unique]), most)
        if len(unique) < len(requests):
            batch.select(torch.tensor(rows, device=self.device))
            batch.rows = torch.arange(len(rows), device=self.device)
        experts: dict[int, Tensor] = {}
        ids, logprobs = self._decode(batch, requests, feeds, temperature, experts)
        if not bool(torch.isfinite(logprobs).all()):
            raise ModelError(
                "the model's log-probs are not finite, so nothing can be sampled from it",
                fix="lower the learning rate, or load the model in float32 or bfloat16 instead of float16",
            )
        stops = set(self._stop.tolist())
        drawn = [[i for i in row if i >= 0] for row in ids.tolist()]
        return [
            Sample(
                ids=tuple(row),
                logprobs=tuple(lps[: len(row)]),
                finished=row[-1] in stops,
                experts=raw_experts(experts[number]) if number in experts else None,
            )
            for number, (row, lps) in enumerate(zip(drawn, logprobs.tolist(), strict=True))
        ]

    def _check(self, requests: Sequence[SampleRequest], sessions: Sequence[Session], feeds: Sequence[Sequence[int]]) -> None:
        for request, session, feed in zip(requests, sessions, feeds, strict=True):
            if session is _LOST:
                raise ModelError(f"session {request.session!r} was lost by a call that failed", fix="begin a new one")
            if not feed or request.max_new_tokens < 1:
                raise ValueError(f"session {request.session!r} has nothing to read or nothing to sample")
            needed = session.length + len(feed) + request.max_new_tokens
            if needed > self.context_window:
                raise ModelError(
                    f"session {request.session!r} may need {needed} positions and the model has {self.context_window}",
                    fix="lower rollout.context_tokens",
                )

    def _read_ahead(self, sessions: list[Session], feeds: list[tuple[int, ...]]) -> tuple[list[Session], list[tuple[int, ...]]]:
        """Read all new ids but the last of each session in passes of at most `PREFILL_TOKENS`, where one pass would be larger."""
        if self.cache_mode == "recompute" or len(feeds) * max(map(len, feeds)) <= PREFILL_TOKENS:
            return sessions, feeds
        for some in passes([len(feed) - 1 for feed in feeds], PREFILL_TOKENS):
            columns = max(1, PREFILL_TOKENS // len(some))
            for start in range(0, max(len(feeds[i]) - 1 for i in some), columns):
                pieces = {i: piece for i in some if (piece := feeds[i][:-1][start : start + columns])}
                batch = self._prefill([sessions[i] for i in pieces], list(pieces.values()), 0)
                split = split_cache(batch.cache, batch.rows, batch.mask, last=True)
                for row, (i, layers) in enumerate(zip(pieces, split, strict=True)):
                    read = torch.cat(batch.experts, dim=1)[row][batch.mask[row]] if batch.experts else None
                    sessions[i] = Session(length=len(layers[0][0]), layers=layers, experts=read)
        return sessions, [feed[-1:] for feed in feeds]

    def _prefill(self, sessions: Sequence[Session], feeds: Sequence[Sequence[int]], most: int) -> _Batch:
        """Read each session's new ids; columns are `[cached positions | new ids]`, each part left-padded. `most` more tokens will
        be sampled at most."""
        device, count = self.device, len(feeds)
        past, width = max(s.length for s in sessions), max(map(len, feeds))
        lengths = torch.tensor([s.length for s in sessions], device=device)[:, None]
        padding = torch.tensor([width - len(f) for f in feeds], device=device)[:, None]
        ids = torch.tensor([[0] * (width - len(f)) + list(f) for f in feeds], device=device)
        offset = torch.arange(width, device=device)[None] - padding
        mask = torch.cat([torch.arange(past, device=device)[None] >= past - lengths, offset >= 0], dim=1)
        if self.cache_mode == "session":
            cache = merge_caches(sessions, self._config.num_hidden_layers, most=past + width + most)
        else:
            cache = DynamicCache(config=self._model_config)
        logits, experts = self._forward(ids, mask, lengths + offset.clamp(min=0), cache)
        lengths = lengths[:, 0] + width - padding[:, 0]
        batch = _Batch(cache, mask, logits, lengths, torch.arange(count, device=device))
        if experts is not None:
            none = experts[0, :0]
            known = [none if session.experts is None else session.experts for session in sessions]
            batch.experts = [pad_sequence(known, True, 0.0, "left"), experts]
        return batch

    def _decode(
        self,
        batch: _Batch,
        requests: Sequence[SampleRequest],
        feeds: Sequence[tuple[int, ...]],
        temperature: float,
        experts: dict[int, Tensor],
    ) -> tuple[Tensor, Tensor]:
        """Sample ids `[B, N]`, -1 after a row's end, with their log-probs; the sessions are updated on the way, and `experts` by
        request."""
        device, most = self.device, max(r.max_new_tokens for r in requests)
        limits = torch.tensor([r.max_new_tokens for r in requests], device=device)
        uniform = uniforms([r.seed for r in requests], most, device)
        ids = torch.full((len(requests), most), -1, device=device)
        logprobs = torch.zeros((len(requests), most), device=device)
        alive = torch.ones(len(requests), dtype=torch.bool, device=device)
        for step in range(most):
            rows = batch.rows
            token, logprob = draw(batch.logits, uniform[rows, step], temperature)
            ids[rows, step] = token.where(alive, -1)
            logprobs[rows, step] = logprob.where(alive, 0.0)
            alive = alive & (token[:, None] != self._stop).all(1) & (limits[rows] > step + 1)
            living = int(alive.sum())
            if living == 0:
                break
            if 2 * living <= len(rows):
                self._remember(batch, (~alive).nonzero()[:, 0], ids, requests, feeds, experts)
                kept = alive.nonzero()[:, 0]
                batch.select(kept)
                token, alive = token[kept], alive[kept]
            batch.mask = torch.nn.functional.pad(batch.mask, (0, 1), value=True)
            positions = batch.lengths.clamp(max=self.context_window - 1)[:, None]  # rows that have ended may run on past it
            batch.logits, chosen = self._forward(token[:, None], batch.mask, positions, batch.cache)
            batch.lengths = batch.lengths + 1
            batch.experts += [] if chosen is None else [chosen]
        self._remember(batch, torch.arange(len(batch.rows), device=device), ids, requests, feeds, experts)
        return ids, logprobs

    def _remember(
        self,
        batch: _Batch,
        which: Tensor,
        ids: Tensor,
        requests: Sequence[SampleRequest],
        feeds: Sequence[tuple[int, ...]],
        experts: dict[int, Tensor],
    ) -> None:
        """Keep the sessions of the batch rows `which`, without what was sampled after their turn had ended, and their experts by
        request."""
        rows = batch.rows[which].tolist()
        drawn = [[i for i in row if i >= 0] for row in ids[rows].tolist()]
        keep = batch.mask[which]
        decoded = keep.shape[1] - batch.prefilled
        sampled_columns = torch.tensor([len(d) - 1 for d in drawn], device=self.device)[:, None]
        keep[:, batch.prefilled :] = torch.arange(decoded, device=self.device)[None] < sampled_columns
        if batch.experts:
            chosen = torch.split(torch.cat(batch.experts, dim=1)[which][keep], keep.sum(1).tolist())
            experts.update(zip(rows, chosen, strict=True))
        if self.cache_mode == "recompute":
            for row, sampled in zip(rows, drawn, strict=True):
                self._sessions[requests[row].session] = Session(pending=(*feeds[row], *sampled))
            return
        split = split_cache(batch.cache, which, keep, last=len(which) == len(batch.rows))
        for row, sampled, layers in zip(rows, drawn, split, strict=True):
            self._sessions[requests[row].session] = Session(
                length=len(layers[0][0]),
                pending=(sampled[-1],),
                layers=layers,
                experts=experts[row].clone() if row in experts else None,
            )

    def _forward(self, ids: Tensor, mask: Tensor, positions: Tensor, cache: Cache) -> tuple[Tensor, Tensor | None]:
        """Return logits `[B, V]` after the last column, and the experts `[B, T, L, K]` of all columns where they are recorded."""
        if not self._records:
            return self._logits(ids, mask, positions, cache), None
        with routing() as seen:
            logits = self._logits(ids, mask, positions, cache)
        experts = seen.experts()
        return logits, experts.reshape(*ids.shape, *experts.shape[1:])

    def _logits(self, ids: Tensor, mask: Tensor, positions: Tensor, cache: Cache) -> Tensor:
        """Return logits `[B, V]` after the last column. Where autocast would round them they are formed as the losses form them,
        so that the log-probs of what is sampled are those that the trainer finds."""
        if compute_dtype(self.model) is not None and "position_ids" in self._accepts and why_plain(self.model) is None:
            return forward(self.model, ids, mask, position_ids=positions, cache=cache).last_logits()
        inputs: dict[str, Any] = {"input_ids": ids, "attention_mask": mask, self._cache_name: cache, "use_cache": True}
        if "position_ids" in self._accepts:
            inputs["position_ids"] = positions
        if "logits_to_keep" in self._accepts:
            inputs["logits_to_keep"] = 1
        logits: Tensor = self.model(**inputs).logits
        return logits[:, -1]

    @property
    def device(self) -> torch.device:
        """The device of the model's weights."""
        return next(self.model.parameters()).device


_LOST = Session()
"""The state of a session whose call has not returned."""


class _Batch:
    """The rows being decoded."""

    def __init__(self, cache: Cache, mask: Tensor, logits: Tensor, lengths: Tensor, rows: Tensor) -> None:
        self.cache: Any = cache  # transformers annotates `reorder_cache` with a legacy alias no tensor matches
        self.mask = mask
        """Which cache columns hold a position of the row, bool `[B, columns]`."""
        self.logits = logits
        self.lengths = lengths
        """Positions read so far, `[B]`: the position of the next token."""
        self.rows = rows
        """Which request each row answers, `[B]`."""
        self.prefilled = mask.shape[1]
        self.experts: list[Tensor] = []
        """The experts of the columns, `[B, some columns, L, K]` each; none where they are not recorded."""

    def select(self, index: Tensor) -> None:
        """Take these rows, in this order; a row may be taken several times."""
        self.cache.reorder_cache(index)
        self.mask, self.logits, self.lengths = self.mask[index], self.logits[index], self.lengths[index]
        self.rows = self.rows[index]
        self.experts = [experts[index] for experts in self.experts]


def _distinct(sessions: Sequence[Session], feeds: Sequence[tuple[int, ...]]) -> tuple[list[int], list[int]]:
    """Return the indices of the requests to prefill, and for every request its place among them: new sessions with equal ids
    share one."""
    unique: list[int] = []
    place: dict[tuple[int, ...], int] = {}
    rows = []
    for i, (session, feed) in enumerate(zip(sessions, feeds, strict=True)):
        shared = place.get(feed) if session.length == 0 else None
        if shared is None:
            shared = len(unique)
            unique.append(i)
            if session.length == 0:
                place[feed] = shared
        rows.append(shared)
    return unique, rows


def stop_ids_of(generation: GenerationConfig | None, tokenizer: PreTrainedTokenizerBase) -> set[int]:
    """Return tokens that end a turn: those of a model's generation config, the tokenizer's, and the chat template's end of a
    turn."""
    configured = getattr(generation, "eos_token_id", None)
    stops = set(configured if isinstance(configured, list) else [configured]) | {tokenizer.eos_token_id}
    if getattr(tokenizer, "chat_template", None) is not None:
        stops.add(ChatTemplate(tokenizer).end_of_turn_id)
    return {s for s in stops if isinstance(s, int)}
