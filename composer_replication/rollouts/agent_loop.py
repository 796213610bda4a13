"""One trajectory in the making: token-in, token-out, turn by turn, until a stop reason."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from typing import TypedDict, Unpack

from composer_replication.rollouts.protocol import Budgets, ClosableEnv, Env, Sample, SampleRequest, TextEnv, TurnEnv
from composer_replication.tokens import ChatRenderer, parse_tool_calls
from composer_replication.types import GradeReport, Message, Reward, StopReason, ToolCall, ToolResult, Trajectory, Turn, Unscored
from composer_replication.types.errors import SandboxError
from composer_replication.types.plain_text import visible
from composer_replication.types.routed_experts import RawExperts

_BY_THE_WORKSPACE = (OSError, UnicodeError, RecursionError, MemoryError, OverflowError)
"""What code raises that meets a workspace with odder names, or larger or deeper data, than it was made for. A policy can bring
that about, so it ends one rollout, without a reward, and not the run. Any other exception is a bug, and ends the run."""
_LONGEST_FAULT = 1000
"""Characters of the reason that a trajectory keeps."""
FAULTS = (SandboxError, *_BY_THE_WORKSPACE)
"""Exceptions that end one rollout, without a reward, and leave the others alone."""


def derive_seed(*parts: int | str) -> int:
    """Derive a number in [0, 2**63) from every part and nothing else (SHA-256 of their JSON)."""
    digest = hashlib.sha256(json.dumps(parts).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


class RecordFields(TypedDict):
    """Fields shared by every trajectory of a collection."""

    policy_version: int
    temperature: float
    arm: str


class Rollout:
    """Drives one env with one engine session: `begin`, then `request` and `act` while `live`, then `finish`.

    `abandon` ends it at any time. `begin`, `act` and `finish` may block on the env. They may run in any thread, one at a time.
    What the policy sampled is appended as it is; only the env's replies are rendered.

    Args:
        seed: start of every turn's seed: run seed, step, task and sibling hashed together.
        context_tokens: the context budget, already capped at the engine's window.
    """

    def __init__(
        self, trajectory_id: str, env: Env, renderer: ChatRenderer, budgets: Budgets, *, seed: int, context_tokens: int
    ) -> None:
        self.trajectory_id = trajectory_id
        self.env = env
        self._renderer = renderer
        self._budgets = budgets
        self._seed = seed
        self._context_tokens = context_tokens
        self._messages: tuple[Message, ...] = ()
        self._prompt_ids: tuple[int, ...] = ()
        self._turns: list[Turn] = []
        self._experts: RawExperts | None = None
        self._stop: StopReason | None = None
        self._fault = ""
        self._context = 0
        self.sampled = 0
        """Tokens sampled so far."""

    @property
    def live(self) -> bool:
        """True when another turn will be sampled."""
        return self._stop is None

    def begin(self) -> None:
        """Reset the env and render the opening."""
        try:
            self._messages = self.env.reset()
        except FAULTS as error:
            self._break(error)
            return
        self._prompt_ids = self._renderer.prompt_ids(self._messages, self.env.tools)
        self._context = len(self._prompt_ids)
        if self._context >= self._context_tokens:
            self._stop = StopReason.CONTEXT_TOKENS

    def request(self) -> SampleRequest:
        """Request the next turn, with as many tokens as all budgets leave."""
        return SampleRequest(
            session=self.trajectory_id,
            new_ids=self._turns[-1].observation_ids if self._turns else self._prompt_ids,
            max_new_tokens=min(left for _, left in self._left()),
            seed=derive_seed(self._seed, len(self._turns)),
        )

    def act(self, sample: Sample) -> None:
        """Record a sampled turn and, when it is complete, carry out its tool calls."""
        exhausted = min(self._left(), key=lambda budget: budget[1])[0]
        text = self._renderer.decode(sample.ids)
        _, calls = parse_tool_calls(text, turn=len(self._turns))
        self._context += len(sample.ids)
        self.sampled += len(sample.ids)
        self._experts = sample.experts
        results: tuple[ToolResult, ...] = ()
        replies: list[Message] = []
        if isinstance(self.env, TurnEnv):
            results, replies = self._hand_over(self.env, sample, calls)
            if not sample.finished and self._stop is not StopReason.INFRASTRUCTURE:
                self._stop = exhausted
        elif not sample.finished:
            self._say(self._renderer.visible_text(sample.ids))  # graded as far as it came, and not answered
            self._stop = self._stop if self._stop is StopReason.INFRASTRUCTURE else exhausted
        elif calls:
            results = self._carry_out(calls)
            replies = [Message(role="tool", content=r.content, tool_call_id=r.call_id, name=r.name) for r in results]
        else:
            replies = self._say(self._renderer.visible_text(sample.ids))
        observation = self._observe(sample.ids, replies) if self.live else ()
        self._context += len(observation)
        self._turns.append(
            Turn(
                action_ids=sample.ids,
                logprobs=sample.logprobs,
                text=text,
                tool_calls=calls,
                results=results,
                observation_ids=observation,
            )
        )

    def finish(self, **about: Unpack[RecordFields]) -> Trajectory:
        """Grade what the agent left behind and return the record. A broken sandbox makes it `Unscored`, never a zero."""
        if self._stop is None:
            raise ValueError(f"{self.trajectory_id} is still live")
        grade, reward = self._grade()
        return self._record(self._stop, tuple(self._turns), reward, grade, about)

    def abandon(self, reason: str, **about: Unpack[RecordFields]) -> Trajectory:
        """Return the record of the turns so far, `Unscored`. A call still running in a thread no longer changes it."""
        turns = tuple(self._turns)
        if turns:
            turns = (*turns[:-1], replace(turns[-1], observation_ids=()))
        return self._record(StopReason.INFRASTRUCTURE, turns, Unscored(reason), None, about)

    def close(self) -> None:
        """Free what the env holds. Safe in any thread, also while a call is running in another."""
        if isinstance(self.env, ClosableEnv):
            self.env.close()

    # --- inside -----------------------------------------------------------------------------------------------------------

    def _record(
        self, stop: StopReason, turns: tuple[Turn, ...], reward: Reward, grade: GradeReport | None, about: RecordFields
    ) -> Trajectory:
        return Trajectory(
            trajectory_id=self.trajectory_id,
            task_id=self.env.task_id,
            messages=self._messages,
            tools=self.env.tools,
            prompt_ids=self._prompt_ids,
            turns=turns,
            stop_reason=stop,
            reward=reward,
            grade=grade,
            experts=None if self._experts is None else self._experts.written(),
            **about,
        )

    def _left(self) -> list[tuple[StopReason, int]]:
        """Return what each budget leaves for the next turn; on a tie the first is named."""
        return [
            (StopReason.TURN_TOKENS, self._budgets.turn_tokens),
            (StopReason.TRAJECTORY_TOKENS, self._budgets.trajectory_tokens - self.sampled),
            (StopReason.CONTEXT_TOKENS, self._context_tokens - self._context),
        ]

    def _carry_out(self, calls: tuple[ToolCall, ...]) -> tuple[ToolResult, ...]:
        results: list[ToolResult] = []
        try:
            for call in calls:
                results.append(self.env.step(call))
                if self.env.done:
                    self._stop = StopReason.SUBMITTED
                    break
        except FAULTS as error:
            self._break(error)
        return tuple(results)

    def _say(self, text: str) -> list[Message]:
        """Hand a turn without a tool call to an env that listens; any other takes it for the end."""
        reply = None
        if isinstance(self.env, TextEnv):
            try:
                reply = self.env.say(text)
            except FAULTS as error:
                self._break(error)
                return []
        if reply is None:
            self._stop = StopReason.SUBMITTED if isinstance(self.env, TextEnv) else StopReason.NO_TOOL_CALL
            return []
        return [reply]

    def _hand_over(
        self, env: TurnEnv, sample: Sample, calls: tuple[ToolCall, ...]
    ) -> tuple[tuple[ToolResult, ...], list[Message]]:
        """Hand a whole turn to the program that carries it out, and return the results of its calls and all replies."""
        usable = tuple(call for call in calls if call.error is None)
        visible = self._renderer.visible_text(sample.ids)
        said = parse_tool_calls(visible, turn=len(self._turns))[0] if usable else visible
        try:
            replies = env.take(said, usable, finished=sample.finished)
        except FAULTS as error:
            self._break(error)
            return (), []
        if self.env.done:
            self._stop = StopReason.SUBMITTED
        names = {call.call_id: call.name for call in calls}
        answers = [(reply.get("tool_call_id", ""), reply) for reply in replies if reply["role"] == "tool"]
        results = tuple(ToolResult(call_id=i, name=names.get(i, ""), content=reply["content"]) for i, reply in answers)
        return results, list(replies)

    def _observe(self, action_ids: tuple[int, ...], replies: list[Message]) -> tuple[int, ...]:
        """Render the replies, or return nothing when no budget is left to answer them."""
        if len(self._turns) + 1 >= self._budgets.max_turns:
            self._stop = StopReason.MAX_TURNS
        elif self.sampled >= self._budgets.trajectory_tokens:
            self._stop = StopReason.TRAJECTORY_TOKENS
        else:
            ids = self._renderer.delta_ids(replies, ended=action_ids[-1] == self._renderer.end_of_turn_id)
            if self._context + len(ids) < self._context_tokens:
                return ids
            self._stop = StopReason.CONTEXT_TOKENS
        return ()

    def _break(self, error: Exception) -> None:
        what = error.message if isinstance(error, SandboxError) else f"the environment failed: {type(error).__name__}: {error}"
        self._stop, self._fault = StopReason.INFRASTRUCTURE, visible(what)[:_LONGEST_FAULT]

    def _grade(self) -> tuple[GradeReport | None, Reward]:
        if self._stop is StopReason.INFRASTRUCTURE:
            return None, Unscored(self._fault)
        try:
            grade = self.env.grade()
        except FAULTS as error:
            self._break(error)
            return None, Unscored(self._fault)
        return grade, grade.reward
