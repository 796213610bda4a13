"""Hints and pairs as columns of verl's batches.

An agent loop's `extra_fields` travel with its row through TransferQueue into the engine's micro-batches as they are; ours
have one entry, `composer`. There the tensors that `channels` reads are made of them by the same `collate` as everywhere.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from pydantic import TypeAdapter
from torch import Tensor

from composer_replication.loss.batch import collate
from composer_replication.loss.batch_keys import Batch
from composer_replication.types import HintedTurn, Pair, StopReason, Trajectory, Turn, Unscored, to_json

COLUMN = "composer"
"""Our entry in `extra_fields`."""


@dataclass(frozen=True, slots=True)
class Row:
    """Our part of a row of verl's batch."""

    trajectory_id: str
    hints: tuple[HintedTurn, ...] = ()
    pairs: tuple[Pair, ...] = ()


_ROWS = TypeAdapter(Row)


def pack(row: Row) -> dict[str, Any]:
    """Return plain data for `extra_fields`."""
    return {COLUMN: to_json(row)}


def rows_of(data: Any) -> list[Row]:
    """Return our rows of a TensorDict, in its order. Raises KeyError on a batch of another agent loop.

    verl fills up a batch with copies of other rows that have no turns; ours of those are empty.
    """
    found = []
    for number, (fields, turns) in enumerate(zip(_plain(data["extra_fields"]), _plain(data["num_turns"]), strict=True)):
        found.append(_ROWS.validate_python(fields[COLUMN]) if int(turns) else Row(f"padding/{number}"))
    return found


def tokens_of(trajectory: Trajectory) -> tuple[list[int], list[int], list[float]]:
    """Return ids, mask and log-probs of everything after the prompt.

    A token without a finite log-prob is not trained on, nor is any token of a trajectory without a verdict.
    """
    scored = not isinstance(trajectory.reward, Unscored)
    ids: list[int] = []
    mask: list[int] = []
    logprobs: list[float] = []
    for turn in trajectory.turns:
        finite = [math.isfinite(logprob) for logprob in turn.logprobs]
        ids += [*turn.action_ids, *turn.observation_ids]
        mask += [int(scored and known) for known in finite] + [0] * len(turn.observation_ids)
        logprobs += [p if known else 0.0 for p, known in zip(turn.logprobs, finite, strict=True)]
        logprobs += [0.0] * len(turn.observation_ids)
    return ids, mask, logprobs


def hint_batch(input_ids: Sequence[Tensor], rows: Sequence[Row], pad_id: int, device: torch.device) -> Batch:
    """Return the hint channel's tensors of a micro-batch with these sequences, unpadded [T] each; without denominator.

    Every row is there, in the batch's order, so that positions are those of the student's forward pass.
    """
    sequences = [_sequence(number, ids, row) for number, (ids, row) in enumerate(zip(input_ids, rows, strict=True))]
    hints = [
        dataclasses.replace(hint, trajectory_id=sequences[number].trajectory_id)
        for number, row in enumerate(rows)
        for hint in row.hints
    ]
    batch = collate(sequences, [None] * len(sequences), hints, pad_id=pad_id, device=device)
    batch.pop("hint_denominator", None)
    return batch


def _sequence(number: int, ids: Tensor, row: Row) -> Trajectory:
    """Return the row's tokens as one long turn; which of them were sampled does not matter here."""
    tokens = tuple(ids.tolist())
    turn = Turn(action_ids=tokens[1:], logprobs=(0.0,) * (len(tokens) - 1), text="")
    return Trajectory(
        trajectory_id=f"{number}/{row.trajectory_id}",
        task_id="",
        policy_version=0,
        messages=(),
        tools=(),
        prompt_ids=tokens[:1],
        turns=(turn,),
        stop_reason=StopReason.NO_TOOL_CALL,
        temperature=1.0,
        reward=Unscored("not read"),
    )


def _plain(column: Any) -> list[Any]:
    """Return a column of a TensorDict as a list."""
    return list(column.tolist() if hasattr(column, "tolist") else column)
