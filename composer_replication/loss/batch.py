"""Collation of trajectories, hints and pairs into the tensors that `compose_loss` reads (its module docstring lists the keys).

`collate` never cuts a sequence: what does not fit has to be dealt with before, where it can be counted. The only tokens that
leave the loss are sampled tokens whose recorded log-prob is not finite; they leave weights and denominator together, and
`dropped_tokens` counts them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from composer_replication.loss.batch_keys import Batch
from composer_replication.loss.forward import padded_experts, sequence_logprobs
from composer_replication.policy_gradient import Objective, sequence_weights
from composer_replication.types import HintedTurn, Message, Pair, StopReason, Trajectory, Turn
from composer_replication.types.errors import ModelError
from composer_replication.types.routed_experts import UNKNOWN

HintReduction: TypeAlias = Literal["turn", "token"]


def collate(
    trajectories: Sequence[Trajectory],
    advantages: Sequence[float | None] | None,
    hints: Sequence[HintedTurn] = (),
    pairs: Sequence[Pair] = (),
    *,
    pad_id: int,
    objective: Objective = "dapo",
    max_tokens: int | None = None,
    hint_reduction: HintReduction = "token",
    device: torch.device | str = "cpu",
    token_advantages: Mapping[str, Sequence[Sequence[float]]] | None = None,
) -> Batch:
    """Build one batch with the streams and denominators of all three channels; row i is `trajectories[i]`.

    - `advantages`: one per trajectory; None (unscored) gives its tokens weight 0 and leaves it out of the denominator, while
      its hints still teach. `advantages=None` as a whole makes an imitation batch: no RL keys, cross-entropy on every
      sampled token.
    - `token_advantages`: by trajectory id, for each turn one number per sampled token that is added to the trajectory's advantage
      there; a trajectory that is not named has the same advantage everywhere.
    - `objective` and `max_tokens`: see `policy_gradient.sequence_weights`.
    - `hint_reduction`: the hint denominator is the number of hinted turns ("turn": the mean over turns of the SUM over a
      turn's tokens) or of compared tokens ("token").
    - `pairs`: weighted by confidence, divided by the tokens of their chosen answers, likewise weighted. A pair without a
      rejected answer is imitated and not compared. Reference log-probs are included when every pair has both.

    Raises ValueError on lengths that disagree, unknown or repeated trajectory ids, hints whose tokens do not stand where
    they say, empty continuations, and pairs of which only some have reference log-probs.
    """
    if advantages is not None and len(advantages) != len(trajectories):
        raise ValueError(f"{len(advantages)} advantages for {len(trajectories)} trajectories")
    batch: Batch = {}
    if trajectories:
        batch |= _rows(trajectories, advantages, token_advantages or {}, pad_id, objective, max_tokens)
    if hints:
        batch |= _hints(hints, trajectories, pad_id, hint_reduction)
    if pairs:
        batch |= _pairs(pairs, pad_id)
    return {key: value.to(device) for key, value in batch.items()}


# --- the parts of collate --------------------------------------------------------------------------------------------


def _rows(
    trajectories: Sequence[Trajectory],
    advantages: Sequence[float | None] | None,
    token_advantages: Mapping[str, Sequence[Sequence[float]]],
    pad_id: int,
    objective: Objective,
    max_tokens: int | None,
) -> Batch:
    ids = [trajectory.context_ids(len(trajectory.turns)) for trajectory in trajectories]
    input_ids, attention_mask = right_padded(ids, pad_id)
    response_mask = torch.zeros_like(input_ids)
    old_logprobs, added = torch.zeros(input_ids.shape), torch.zeros(input_ids.shape)
    for i, trajectory in enumerate(trajectories):
        if not trajectory.prompt_ids:
            raise ValueError(f"trajectory {trajectory.trajectory_id!r} has no prompt: its first token could not be predicted")
        more = token_advantages.get(trajectory.trajectory_id)
        for number, turn in enumerate(trajectory.turns):
            if len(turn.logprobs) != len(turn.action_ids):
                raise ValueError(
                    f"trajectory {trajectory.trajectory_id!r}, turn {number}: "
                    f"{len(turn.logprobs)} log-probs for {len(turn.action_ids)} sampled ids"
                )
            start = trajectory.action_start(number)
            where = slice(start, start + len(turn.action_ids))
            response_mask[i, where] = 1
            old_logprobs[i, where] = torch.tensor(turn.logprobs)
            if more is not None:
                added[i, where] = torch.tensor(more[number])
    batch = {"input_ids": input_ids, "attention_mask": attention_mask, "response_mask": response_mask}
    if any(trajectory.experts is not None for trajectory in trajectories):
        batch["routed_experts"] = _experts(trajectories, input_ids.shape[1])
    if advantages is None:
        batch["rlvr_weights"], batch["rlvr_denominator"] = sequence_weights(response_mask, "dapo")
        return batch
    finite = torch.isfinite(old_logprobs)
    scored = torch.tensor([advantage is not None for advantage in advantages])
    values = torch.tensor([0.0 if advantage is None else advantage for advantage in advantages])
    in_loss = (response_mask != 0) & scored[:, None] & finite
    weights, denominator = sequence_weights(in_loss, objective, max_tokens=max_tokens)
    return batch | {
        "advantages": (values[:, None] + added) * in_loss,
        "old_logprobs": torch.where(finite, old_logprobs, 0.0),
        "rlvr_weights": weights,
        "rlvr_denominator": denominator,
        "dropped_tokens": ((response_mask != 0) & scored[:, None] & ~finite).sum(),
    }


def _experts(trajectories: Sequence[Trajectory], width: int) -> Tensor:
    """Return int16 [B, width, L, K], `UNKNOWN` for tokens whose experts were not recorded. Raises ValueError."""
    known = [None if trajectory.experts is None else padded_experts(trajectory.experts, width) for trajectory in trajectories]
    shapes = {tuple(experts.shape[1:]) for experts in known if experts is not None}
    if len(shapes) > 1:
        raise ValueError(f"trajectories have experts of several models: {sorted(shapes)} layers and experts of a token")
    found = torch.full((len(known), width, *shapes.pop()), UNKNOWN, dtype=torch.int16)
    for row, experts in zip(found, known, strict=True):
        if experts is not None:
            row[:] = experts
    return found


def _hints(hints: Sequence[HintedTurn], trajectories: Sequence[Trajectory], pad_id: int, reduction: HintReduction) -> Batch:
    rows = {trajectory.trajectory_id: i for i, trajectory in enumerate(trajectories)}
    if len(rows) != len(trajectories):
        raise ValueError("two trajectories have the same trajectory_id, so a hint could belong to either")
    for hint in hints:
        _check_hint(hint, rows, trajectories)
    return hint_inputs(hints, rows, pad_id=pad_id, reduction=reduction)


def hint_inputs(hints: Sequence[HintedTurn], rows: Mapping[str, int], *, pad_id: int, reduction: HintReduction) -> Batch:
    """Return the hint channel's tensors, for trajectories that stand in the batch's `rows`. Raises ValueError on an unknown
    reduction."""
    widest = max(len(hint.action_ids) for hint in hints)
    offsets = torch.arange(widest)
    lengths = torch.tensor([[len(hint.action_ids)] for hint in hints])
    compared = offsets < lengths
    student_start = torch.tensor([[hint.student_start] for hint in hints])
    teacher_start = torch.tensor([[hint.teacher_start] for hint in hints])
    teacher_ids, teacher_mask = right_padded([hint.teacher_ids for hint in hints], pad_id)
    if reduction not in ("turn", "token"):
        raise ValueError(f"unknown hint_reduction {reduction!r}: expected 'turn' or 'token'")
    return {
        "ctx_teacher_input_ids": teacher_ids,
        "ctx_teacher_attention_mask": teacher_mask,
        "student_row": torch.tensor([rows[hint.trajectory_id] for hint in hints]),
        "student_response_idx": torch.where(compared, student_start + offsets, 0),
        "teacher_response_idx": torch.where(compared, teacher_start + offsets, 0),
        "sdpo_loss_mask": compared.float(),
        "hint_denominator": torch.tensor(float(len(hints))) if reduction == "turn" else lengths.sum().float(),
    }


def _check_hint(hint: HintedTurn, rows: Mapping[str, int], trajectories: Sequence[Trajectory]) -> None:
    where = f"hint for turn {hint.turn} of trajectory {hint.trajectory_id!r}"
    if hint.trajectory_id not in rows:
        raise ValueError(f"{where}: no such trajectory in the batch")
    if not hint.action_ids:
        raise ValueError(f"{where}: it compares no token")
    trajectory = trajectories[rows[hint.trajectory_id]]
    sequences = {
        "student": (trajectory.context_ids(len(trajectory.turns)), hint.student_start),
        "teacher": (hint.teacher_ids, hint.teacher_start),
    }
    for side, (ids, start) in sequences.items():
        if start < 1 or tuple(ids[start : start + len(hint.action_ids)]) != tuple(hint.action_ids):
            raise ValueError(f"{where}: its action ids do not stand at {side}_start={start} of the {side}'s sequence")


def _pairs(pairs: Sequence[Pair], pad_id: int) -> Batch:
    batch: Batch = {
        "dpo_weights": torch.tensor([pair.confidence for pair in pairs]),
        "replay_denominator": torch.tensor(math.fsum(pair.confidence * len(pair.chosen_ids) for pair in pairs)),
    }
    for pair in pairs:
        if not (pair.prompt_ids and pair.chosen_ids):
            raise ValueError(f"pair {pair.pair_id!r}: prompt and chosen must each have at least one token")
    batch |= _answers("chosen", pairs, [pair.chosen_ids for pair in pairs], pad_id)
    batch |= _answers("rejected", pairs, [pair.rejected_ids for pair in pairs], pad_id)
    unmatched = [pair for pair in pairs if pair.unmatched_ids]
    if unmatched:
        batch |= _answers("unmatched", unmatched, [pair.unmatched_ids for pair in unmatched], pad_id)
        batch["dpo_unmatched_ref_logprobs"] = torch.tensor([pair.ref_unmatched_logprob or 0.0 for pair in unmatched])
    batch |= _soft_targets(pairs, batch["dpo_chosen_input_ids"].shape[1])
    if not all(pair.rejected_ids for pair in pairs):
        batch["dpo_held"] = torch.tensor([not pair.rejected_ids for pair in pairs])
    references = {
        "chosen": [pair.ref_chosen_logprob for pair in pairs],
        "rejected": [pair.ref_rejected_logprob for pair in pairs],
    }
    if any(value is not None for side in references.values() for value in side):
        for side, values in references.items():
            batch[f"dpo_{side}_ref_logprobs"] = torch.tensor([math.nan if value is None else value for value in values])
    return batch


def _answers(side: str, pairs: Sequence[Pair], answers: Sequence[Sequence[int]], pad_id: int) -> Batch:
    """Return an answer for each pair on its prompt, padded on the right: the tensors of one side."""
    ids, attention_mask = right_padded([(*pair.prompt_ids, *answer) for pair, answer in zip(pairs, answers, strict=True)], pad_id)
    prompts = torch.tensor([[len(pair.prompt_ids)] for pair in pairs])
    return {
        f"dpo_{side}_input_ids": ids,
        f"dpo_{side}_attention_mask": attention_mask,
        f"dpo_{side}_response_mask": attention_mask * (torch.arange(ids.shape[1]) >= prompts),
    }


def _soft_targets(pairs: Sequence[Pair], width: int) -> Batch:
    """Return what teachers say of the chosen answers, [P, width, M, K]; nothing where no pair has any of it."""
    told = [
        (row, len(pair.prompt_ids), number, one)
        for row, pair in enumerate(pairs)
        for number, one in enumerate(pair.chosen_targets)
    ]
    if not told:
        return {}
    most = max(len(place) for *_, one in told for place in one.ids)
    ids = torch.zeros((len(pairs), width, max(len(pair.chosen_targets) for pair in pairs), most), dtype=torch.int64)
    logprobs = torch.full(ids.shape, -torch.inf)
    for row, start, number, one in told:
        if not len(one.ids) == len(one.logprobs) == len(pairs[row].chosen_ids):
            raise ValueError(
                f"pair {pairs[row].pair_id!r}: a teacher speaks of {len(one.ids)} tokens of a chosen answer of others"
            )
        for place, (tokens, likely) in enumerate(zip(one.ids, one.logprobs, strict=True), start=start):
            ids[row, place, number, : len(tokens)] = torch.tensor(tokens)
            logprobs[row, place, number, : len(tokens)] = torch.tensor(likely)
    return {"dpo_chosen_target_ids": ids, "dpo_chosen_target_logprobs": logprobs}


def right_padded(sequences: Sequence[Sequence[int]], pad_id: int) -> tuple[Tensor, Tensor]:
    """Return right-padded ids and attention mask, both int64 [rows, longest]."""
    ids = pad_sequence([torch.tensor(s, dtype=torch.int64) for s in sequences], batch_first=True, padding_value=pad_id)
    lengths = torch.tensor([[len(s)] for s in sequences])
    return ids, (torch.arange(ids.shape[1]) < lengths).long()


# --- a ready-made batch ----------------------------------------------------------------------------------------------

_QUESTION = "Add a function `clamp(x, low, high)` to utils.py."
_CHOSEN = "def clamp(x, low, high):\n    return max(low, min(x, high))"
_REJECTED = "def clamp(x, low, high):\n    return min(low, max(x, high))"
_HINT = "Hint: the result must never be below `low` or above `high`."


def build_batch(tokenizer: Any, device: torch.device | str = "cpu", *, model: nn.Module | None = None) -> Batch:
    """Build a small real batch with all three channels' inputs: one conversation, its hinted twin, and one preference pair.

    `tokenizer` is a Hugging Face tokenizer with a chat template and an EOS token. The first channel is cross-entropy on the
    assistant's answer. The pair's reference log-probs are those of `model` as it is now (evaluation mode, no gradient).
    Without a model they are those of the UNIFORM policy, -tokens * log(vocabulary size): a real reference, but one that
    anchors to nothing.

    Raises ModelError when the tokenizer has no chat template or no EOS token.
    """
    if getattr(tokenizer, "chat_template", None) is None or tokenizer.eos_token_id is None:
        raise ModelError(
            "build_batch needs a tokenizer with a chat template and an EOS token",
            fix="use an instruction-tuned model, or set tokenizer.chat_template",
        )
    pad_id = tokenizer.eos_token_id if tokenizer.pad_token_id is None else tokenizer.pad_token_id
    prompt, hinted = _prompt_ids(tokenizer, _QUESTION), _prompt_ids(tokenizer, f"{_QUESTION}\n{_HINT}")
    chosen, rejected = _answer_ids(tokenizer, _CHOSEN), _answer_ids(tokenizer, _REJECTED)
    messages: tuple[Message, ...] = ({"role": "user", "content": _QUESTION},)
    turn = Turn(action_ids=chosen, logprobs=(0.0,) * len(chosen), text=_CHOSEN)
    trajectory = Trajectory(
        trajectory_id="0/quickstart/0",
        task_id="quickstart",
        policy_version=0,
        messages=messages,
        tools=(),
        prompt_ids=prompt,
        turns=(turn,),
        stop_reason=StopReason.NO_TOOL_CALL,
        temperature=1.0,
        reward=1.0,
    )
    hint = HintedTurn(
        trajectory_id=trajectory.trajectory_id,
        turn=0,
        student_start=len(prompt),
        teacher_ids=hinted + chosen,
        teacher_start=len(hinted),
        action_ids=chosen,
    )
    pair = Pair(pair_id="quickstart", prompt_ids=prompt, chosen_ids=chosen, rejected_ids=rejected)
    batch = collate([trajectory], None, [hint], [pair], pad_id=pad_id, hint_reduction="token", device=device)
    batch["replay_denominator"] = torch.ones((), device=device)  # the mean over pairs, as in the papers
    batch["labels"] = torch.where(batch["response_mask"] != 0, batch["input_ids"], -100)
    for side in ("chosen", "rejected"):
        batch[f"dpo_{side}_ref_logprobs"] = _reference_logprobs(batch, side, model, len(tokenizer))
    return batch


def _prompt_ids(tokenizer: Any, question: str) -> tuple[int, ...]:
    text = tokenizer.apply_chat_template([{"role": "user", "content": question}], tokenize=False, add_generation_prompt=True)
    return tuple(tokenizer(text, add_special_tokens=False)["input_ids"])


def _answer_ids(tokenizer: Any, answer: str) -> tuple[int, ...]:
    return (*tokenizer(answer, add_special_tokens=False)["input_ids"], tokenizer.eos_token_id)


@torch.no_grad()
def _reference_logprobs(batch: Batch, side: str, model: nn.Module | None, vocabulary: int) -> Tensor:
    mask = batch[f"dpo_{side}_response_mask"]
    if model is None:
        return -mask.sum(-1).float() * math.log(vocabulary)
    training = model.training
    model.eval()
    logps = sequence_logprobs(model, batch[f"dpo_{side}_input_ids"], batch[f"dpo_{side}_attention_mask"], mask).sum(-1)
    model.train(training)
    return logps
