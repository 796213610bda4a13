"""Supervised training of the tiny policy and of its teachers on demonstrations; and the check that it can use a hint."""

from __future__ import annotations

import copy
import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from composer_replication.envs.coding import SYSTEM_PROMPT
from composer_replication.envs.oracle import call_turn
from composer_replication.envs.tools import CODING_TOOLS
from composer_replication.loss import compose_loss
from composer_replication.quickstart.language import HOUSE_TERMS, OPERATIONS, WORDS, modules
from composer_replication.quickstart.transcripts import demonstration, found, hint_text, instruction
from composer_replication.tokens import ChatRenderer
from composer_replication.types import Message

_IGNORED = -100
_ROWS_AT_ONCE = 4


@dataclass(frozen=True, slots=True)
class HintUse:
    """Mean probability of the right edit, over random meanings."""

    without: float
    with_hint: float


def imitate(
    model: nn.Module,
    renderer: ChatRenderer,
    *,
    steps: int,
    seed: int,
    meanings: Mapping[str, str] | None = None,
    batch_size: int = 16,
    learning_rate: float = 3e-3,
    on_step: Callable[[], None] | None = None,
    demonstrate: Callable[[random.Random, Mapping[str, str] | None], list[Message]] = demonstration,
) -> float:
    """Train with cross-entropy on the assistant's turns of fresh demonstrations; AdamW, warm-up, cosine decay. Returns the last
    loss.

    A step's gradient is formed in two threads, each with half of the transcripts and a copy of the model: on two cores that is
    nearly twice as fast, on a busy machine no slower than one thread (threads within an operation would wait for each other),
    and the sum is the same everywhere.

    Args:
        meanings: what the demonstrator knows of the house's terms (see `transcripts.demonstration`).
        demonstrate: makes a transcript.
    """
    rng = random.Random(f"{seed}/demonstrations")
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, weight_decay=0.01, betas=(0.9, 0.95))
    warmup = max(1, steps // 15)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda s: min(1.0, (s + 1) / warmup) * (0.05 + 0.475 * (1 + math.cos(math.pi * s / steps)))
    )
    model.train()
    twin, loss = copy.deepcopy(model), 0.0
    with ThreadPoolExecutor(1, initializer=torch.set_num_threads, initargs=(1,)) as other:
        for _ in range(steps):
            optimizer.zero_grad()
            batches = list(_batches(renderer, [demonstrate(rng, meanings) for _ in range(batch_size)]))
            half = other.submit(_backward, twin, batches[1::2])
            loss = _backward(model, batches[::2]) + half.result()
            _add_gradients(model, twin)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            twin.load_state_dict(model.state_dict())
            if on_step is not None:
                on_step()
    return loss


def _backward(model: nn.Module, batches: Sequence[dict[str, Tensor]]) -> float:
    """Form the gradient of the batches' sum, and return that."""
    loss = 0.0
    for batch in batches:
        part = compose_loss(model, batch).total
        part.backward()  # type: ignore[no-untyped-call]  # torch's own annotation is missing
        loss += float(part.detach())
    return loss


def _add_gradients(model: nn.Module, twin: nn.Module) -> None:
    """Move the twin's gradients over."""
    for ours, theirs in zip(model.parameters(), twin.parameters(), strict=True):
        if theirs.grad is not None and ours.grad is not None:
            ours.grad += theirs.grad
    twin.zero_grad()


@torch.no_grad()
def measure_hint_use(model: nn.Module, renderer: ChatRenderer, *, samples: int = 64, seed: int = 0) -> HintUse:
    """Measure the probability of the right edit without and with a hint, both about house terms of random meaning."""
    rng = random.Random(f"{seed}/hint use")
    model.eval()
    totals = {False: 0.0, True: 0.0}
    for _ in range(samples):
        module, term, word = rng.choice(modules()), rng.choice(HOUSE_TERMS), rng.choice(WORDS)
        line = rng.choice(module.lines)
        opening = [
            Message(role="system", content=SYSTEM_PROMPT),
            Message(role="user", content=instruction(module.path, "rule")),
        ]
        new = f"return {OPERATIONS[word]}({module.first}, {module.second})"
        edit = renderer.assistant_ids(call_turn("edit_file", path=module.path, old="raise NotImplementedError", new=new))
        for hinted in (False, True):
            context = list(renderer.prompt_ids(opening, CODING_TOOLS))
            context += renderer.assistant_ids(call_turn("search", pattern="NotImplementedError"))
            context += renderer.delta_ids([Message(role="tool", content=found(module, line, "rule", term))], ended=True)
            if hinted:
                seen = renderer.strip_generation_prompt(context)
                context = [*seen, *renderer.hint_ids(hint_text(term, word)), *renderer.generation_prompt_ids]
            logits = model(input_ids=torch.tensor([[*context, *edit]])).logits[0, len(context) - 1 : -1]
            chosen = logits.log_softmax(-1).gather(1, torch.tensor(edit)[:, None]).sum()
            totals[hinted] += float(chosen.exp()) / samples
    return HintUse(without=totals[False], with_hint=totals[True])


def _batches(renderer: ChatRenderer, transcripts: Sequence[list[Message]]) -> Iterator[dict[str, Tensor]]:
    """Yield transcripts of like length together, which leaves little padding; their losses add up to the mean over all."""
    rows = sorted((_encode(renderer, t) for t in transcripts), key=lambda row: len(row[0]))
    learnt = torch.tensor(float(sum(label != _IGNORED for _, labels in rows for label in labels)))
    for start in range(0, len(rows), _ROWS_AT_ONCE):
        some = rows[start : start + _ROWS_AT_ONCE]
        ids, labels = (
            pad_sequence([torch.tensor(row[i]) for row in some], batch_first=True, padding_value=value)
            for i, value in ((0, renderer.tokenizer.pad_token_id), (1, _IGNORED))
        )
        lengths = torch.tensor([[len(row)] for row, _ in some])
        mask = (torch.arange(ids.shape[1]) < lengths).long()
        yield {"input_ids": ids, "attention_mask": mask, "labels": labels, "rlvr_denominator": learnt}


def _encode(renderer: ChatRenderer, transcript: list[Message]) -> tuple[list[int], list[int]]:
    """Return token ids of a transcript exactly as a rollout would hold them, and labels on the assistant's turns."""
    start = next(i for i, m in enumerate(transcript) if m["role"] == "assistant")
    ids = list(renderer.prompt_ids(transcript[:start], CODING_TOOLS))
    labels = [_IGNORED] * len(ids)
    replies: list[Message] = []
    for message in transcript[start:]:
        if message["role"] != "assistant":
            replies.append(message)
            continue
        if replies:
            read = renderer.delta_ids(replies, ended=True)
            ids += read
            labels += [_IGNORED] * len(read)
            replies = []
        turn = renderer.assistant_ids(message)
        ids += turn
        labels += turn
    return ids, labels
