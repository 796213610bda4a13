"""A transcript as detectors read it: one step per call, with what the call was for and what became of it, worked out once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from composer_replication.actions.calls import canonical_call, too_deep
from composer_replication.actions.tool_effects import EffectKind, ToolEffect, classify_call
from composer_replication.hints.detectors.failure import refusal_of, shell_answer, shell_refusal
from composer_replication.hints.detectors.shell import ShellCommand, command_of, condensed
from composer_replication.types import Finding, StopReason, ToolCall, ToolResult
from composer_replication.types.transcript import Transcript

_BUDGETS = (StopReason.TURN_TOKENS, StopReason.TRAJECTORY_TOKENS, StopReason.CONTEXT_TOKENS)
_NOTHING = ToolEffect(kind=EffectKind.OTHER)


@dataclass(frozen=True, slots=True)
class CallStep:
    """One call and what it returned; one of the two may be missing in a log."""

    turn: int
    index: int
    """Place among all steps of the transcript."""
    call: ToolCall | None
    result: ToolResult | None
    effect: ToolEffect
    command: ShellCommand | None
    """The parsed command of a shell call."""
    content: str
    """The text shown; empty when there is no result."""
    exit_code: int | None
    refusal: str | None
    """The kind of error the environment reported (`failure.STATUSES`, or another status of a log), None for none."""
    signature: str
    """Equal for equal actions, and cheap: unequal ones may share it (`same_action` decides)."""

    @property
    def runs_tests(self) -> bool:
        return self.effect.kind is EffectKind.TEST or (self.command is not None and self.command.tests)

    @property
    def looks(self) -> bool:
        """True when the step certainly changed no file."""
        return self.effect.kind in (EffectKind.READ, EffectKind.SEARCH, EffectKind.LIST, EffectKind.TEST) or (
            self.command is not None and self.command.looks
        )

    @property
    def changes(self) -> bool:
        """True when the step has certainly changed files: an edit that was carried out, or a command whose environment reports
        changes."""
        if self.effect.kind is EffectKind.SHELL:
            return self.result is not None and bool(self.result.details.get("changed"))
        return self.effect.changes and self.refusal is None and (self.result is None or self.result.status == "ok")

    def finding(
        self,
        kind: str,
        evidence: Mapping[str, Any] | None = None,
        *,
        turn: int | None = None,
        span: tuple[int, int] | None = None,
        confidence: float = 1.0,
    ) -> Finding:
        """Make a finding about this step's turn, or an earlier one that it reveals. The evidence holds what a generator may need:
        the tool, its arguments, the environment's answer and its structured details."""
        call, result = self.call, self.result
        shared = {
            **({} if result is None else result.details),
            "tool": result.name if result is not None and result.name else "" if call is None else call.name,
            "arguments": dict(call.arguments) if call is not None else {},
            "error": call.error if call is not None else None,
            "observation": self.content,
            "revealed_by": self.turn,
        }
        at = self.turn if turn is None else turn
        return Finding(kind=kind, turn=at, span=span, evidence={**shared, **(evidence or {})}, confidence=confidence)


class Reading:
    """A transcript (it has all of `Transcript`) with its steps. Detectors get one, so that none parses a call again."""

    def __init__(self, transcript: Transcript) -> None:
        self.trajectory_id, self.task_id, self.reward = transcript.trajectory_id, transcript.task_id, transcript.reward
        self.messages, self.tools, self.turns = transcript.messages, transcript.tools, transcript.turns
        self.stop_reason: StopReason | None = getattr(transcript, "stop_reason", None)
        """Why it ended, which logs of other agents do not say."""
        self.steps: tuple[CallStep, ...] = tuple(_steps(transcript))

    @cached_property
    def instruction(self) -> str:
        """The instruction the agent was given, as far as the opening messages contain it."""
        return "\n".join(str(message.get("content") or "") for message in self.messages if message.get("role") == "user")

    @cached_property
    def tool_names(self) -> frozenset[str]:
        """Names of the tools the agent was given; empty when its log does not say."""
        functions = (tool.get("function") for tool in self.tools if isinstance(tool, dict))
        return frozenset(str(function.get("name", "")) for function in functions if isinstance(function, dict))

    @property
    def cut_turn(self) -> int | None:
        """The turn that a budget of tokens ended before it called a tool; None where there is none, or the log does not say."""
        cut = self.stop_reason in _BUDGETS and bool(self.turns) and not self.turns[-1].tool_calls
        return len(self.turns) - 1 if cut else None

    def steps_of(self, turn: int) -> list[CallStep]:
        """Return the steps of one turn, in order."""
        return [step for step in self.steps if step.turn == turn]


def _steps(transcript: Transcript) -> Iterator[CallStep]:
    index = 0
    for number, turn in enumerate(transcript.turns):
        left: dict[str, list[ToolResult]] = {}
        for result in turn.results:
            left.setdefault(result.call_id, []).append(result)
        for call in turn.tool_calls:
            answers = left.get(call.call_id)
            yield _step(number, index, call, answers.pop(0) if answers else None)
            index += 1
        for orphans in left.values():
            for result in orphans:
                yield _step(number, index, None, result)
                index += 1


def _step(turn: int, index: int, call: ToolCall | None, result: ToolResult | None) -> CallStep:
    effect = _NOTHING if call is None or call.error is not None else classify_call(call.name, call.arguments)
    if effect.kind is EffectKind.SHELL and effect.command.startswith("apply_patch"):
        effect = ToolEffect(kind=EffectKind.PATCH, content=effect.command)
    command, exit_code, content = None, None, "" if result is None else result.content
    if effect.kind is EffectKind.SHELL:
        command, refusal = command_of(effect.command), None
        if result is not None:
            content, exit_code = shell_answer(result)
            refusal = shell_refusal(result.status, content, command, exit_code)
    else:
        refusal = refusal_of(result, effect)
    return CallStep(turn, index, call, result, effect, command, content, exit_code, refusal, _signature(call, effect))


def _signature(call: ToolCall | None, effect: ToolEffect) -> str:
    if call is None or call.error is not None:
        return ""
    if effect.kind is EffectKind.SHELL:
        return f"{call.name}\0{effect.cwd}\0{condensed(effect.command)}"
    if effect.kind in (EffectKind.READ, EffectKind.LIST, EffectKind.SEARCH):
        return f"{call.name}\0{effect.path}\0{effect.pattern}\0{effect.lines}"
    return f"{call.name}\0{effect.path}\0{len(call.arguments)}"


def same_action(one: CallStep, other: CallStep) -> bool:
    """Return whether two steps are equal in canonical form (`actions.canonical_call`); an unreadable call equals none."""
    if one.call is None or other.call is None or not one.signature or one.signature != other.signature:
        return False
    mine, others = one.call.arguments, other.call.arguments
    try:
        if mine == others:
            return True
        if too_deep(dict(mine)) or too_deep(dict(others)):
            return False
        return canonical_call(one.call.name, mine) == canonical_call(other.call.name, others)
    except (RecursionError, TypeError, ValueError):  # arguments that are not JSON
        return False
