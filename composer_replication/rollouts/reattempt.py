"""A second attempt from a turn that went wrong, made with a hint and recorded without it."""

from __future__ import annotations

from dataclasses import replace

from composer_replication.rollouts.agent_loop import FAULTS, Rollout
from composer_replication.rollouts.protocol import Budgets, Env, SampleRequest
from composer_replication.tokens import ChatRenderer
from composer_replication.types import HintedTurn, StopReason, Trajectory
from composer_replication.types.errors import SandboxError

AGAIN = "again"
"""Last part of the name of a second attempt."""


class Reattempt(Rollout):
    """A rollout that goes on from a turn of another one. The policy reads a hint before that turn, and the record is that of an
    attempt without one. It is `Unscored` when a call of an earlier turn does not
    end as it did the first time.

    Args:
        failed: the trajectory to go on from.
        hinted: its turn, in both contexts.
        env: a fresh episode of the same task whose every move is a `step`: the calls of earlier turns are made in it again.
        seed, context_tokens: as in `Rollout`.
        switch: the setting of a run file without which there are no re-attempts, e.g. `sft.reattempts = false`.
    """

    def __init__(
        self,
        failed: Trajectory,
        hinted: HintedTurn,
        env: Env,
        renderer: ChatRenderer,
        budgets: Budgets,
        *,
        seed: int,
        context_tokens: int,
        switch: str,
    ) -> None:
        name = f"{failed.trajectory_id}/{AGAIN}"
        super().__init__(name, env, renderer, budgets, seed=seed, context_tokens=context_tokens)
        self._failed = failed
        self._hinted = hinted
        self._switch = switch

    def begin(self) -> None:
        """Bring the env to where it stood before the turn."""
        earlier = self._failed.turns[: self._hinted.turn]
        try:
            self.env.reset()
            for turn in earlier:
                for call, known in zip(turn.tool_calls, turn.results, strict=False):
                    if self.env.step(call).status != known.status:
                        raise SandboxError(
                            f"the call {call.name} did not end as it did the first time: make the task's tests and commands "
                            f"repeatable, or set {self._switch}"
                        )
        except FAULTS as error:
            self._break(error)
            return
        self._messages, self._prompt_ids = self._failed.messages, self._failed.prompt_ids
        self._turns = list(earlier)
        self._context = self._hinted.teacher_start
        self.sampled = sum(len(turn.action_ids) for turn in earlier)
        if self._context >= self._context_tokens:
            self._stop = StopReason.CONTEXT_TOKENS

    def request(self) -> SampleRequest:
        """Request the next turn; the first one after the hint."""
        asked = super().request()
        if len(self._turns) > self._hinted.turn:
            return asked
        return replace(asked, new_ids=self._hinted.teacher_ids[: self._hinted.teacher_start])
