"""Checks of the answers of verl's rollout server."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from composer_replication.rollouts.protocol import Sample
from composer_replication.types.errors import BackendError, ModelError


def sample_of(
    ids: Sequence[int], logprobs: Sequence[float] | None, reason: str | None, *, most: int, room: int, ends: Collection[int]
) -> Sample:
    """Return the sampled turn.

    Args:
        reason: why it ended, as verl's `TokenOutput.stop_reason` says it.
        most: tokens that were asked for.
        room: positions that were left for it in the context: servers keep one of them.
        ends: tokens that end a turn.

    Raises:
        ModelError: it was broken off, is shorter or longer than asked for, or has no log-prob for every token.
    """
    fix = "see verl.log; ask a server that nothing aborts, with the policy's own tokenizer and generation_config.json"
    if reason in ("abort", "aborted") or not ids:
        raise ModelError(f"verl's rollout server broke a turn off after {len(ids)} tokens ({reason})", fix=fix)
    if logprobs is None or len(logprobs) != len(ids):
        known = 0 if logprobs is None else len(logprobs)
        raise ModelError(f"verl's rollout server answered with {len(ids)} tokens and {known} log-probs", fix=fix)
    ended = ids[-1] in ends
    if len(ids) > most or not (ended or len(ids) >= min(most, room - 1)):
        said = "with one" if ended else "without one"
        raise ModelError(f"verl's rollout server answered with {len(ids)} of {most} tokens, {said} that ends a turn", fix=fix)
    return Sample(ids=tuple(ids), logprobs=tuple(logprobs), finished=ended)


def check_versions(versions: Iterable[int | None], *, expected: int, step: int) -> None:
    """Compare the versions of the weights that sampled the turns of a step, as verl's servers name them, with the step's.

    Raises:
        BackendError: a turn was sampled with other weights, or with such as the server cannot name.
    """
    for version in versions:
        if version != expected:
            named = "weights that it cannot name" if version is None else f"the weights of step {version}"
            raise BackendError(
                f"step {step}: verl's rollout server sampled with {named}, not with those of step {expected}",
                fix='leave trainer.v1.trainer_mode as it is, "sync": the weights are sent before each step',
            )
