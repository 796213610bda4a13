"""The plain data that walks through the system, in the order it walks.

`TaskSpec -> Trajectory -> (advantages, hints, pairs) -> batch -> LossComponents -> new policy version`

No torch here, and nothing that needs it: token ids are tuples of ints and log-probs tuples of floats (natural logarithm).
Every class is frozen and JSON-serialisable through `to_json` / `from_json`, so that what a run writes can be read back exactly.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NotRequired, Required, TypeAlias, TypedDict

from composer_replication.hidden_checks import HiddenChecks, hidden_checks_from_json

__all__ = [
    "Deletion",
    "Finding",
    "GradeReport",
    "Group",
    "Hint",
    "HintedTurn",
    "Message",
    "Outcome",
    "Pair",
    "Reward",
    "StopReason",
    "TaskSpec",
    "ToolCall",
    "ToolResult",
    "ToolSchema",
    "Trajectory",
    "Turn",
    "Unscored",
    "grade_from_json",
    "reward_from_json",
    "task_spec_from_json",
    "to_json",
    "trajectory_from_json",
]


class Message(TypedDict, total=False):
    """One chat message in the OpenAI form that Hugging Face chat templates read."""

    role: Required[str]
    """`system`, `user`, `assistant` or `tool`."""
    content: Required[str]
    tool_calls: NotRequired[list[dict[str, Any]]]
    """Assistant only: `{"id", "type": "function", "function": {"name", "arguments": dict}}`."""
    tool_call_id: NotRequired[str]
    name: NotRequired[str]


ToolSchema: TypeAlias = dict[str, Any]
"""A tool in the OpenAI form: `{"type": "function", "function": {"name", "description", "parameters": JSON Schema}}`."""


# --- tasks -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Deletion:
    """One function or method whose body was removed; its name and signature stay."""

    path: str
    """POSIX path relative to the repository root."""
    qualname: str
    """Dotted name inside the module, e.g. `Basket.total`."""
    lines: int
    """Number of source lines removed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSpec:
    """A feature-deletion task: a repository without a feature, and the tests that come back with it."""

    task_id: str
    source: str
    """Where the repository came from: a folder, `pypi:NAME==VERSION` or a git URL with its commit."""
    source_digest: str
    """SHA-256 over the pristine tree (paths and contents), so that two builds can be told apart."""
    instruction: str
    """What the agent is asked to do."""
    deleted: tuple[Deletion, ...]
    fail_to_pass: tuple[str, ...]
    """Pytest node ids that fail in the task's tree and pass with the gold code."""
    pass_to_pass: tuple[str, ...]
    """Pytest node ids that pass in both; breaking one costs the reward."""
    editable: tuple[str, ...]
    """The allow list: glob patterns of source files that grading copies from a workspace. Never tests, never configuration."""
    python_path: tuple[str, ...] = (".",)
    """Folders, relative to the root, put on `sys.path` for the tests."""
    test_timeout_s: float = 60.0
    """Wall-clock limit of one run of all the task's tests."""
    hidden: HiddenChecks = field(default_factory=HiddenChecks)
    """What grading asks besides; never shown to the agent."""
    impossible: bool = False
    """A visible test contradicts itself: no work is rewarded, and passing is a cheat alarm. Never shown to the agent."""


class Outcome(StrEnum):
    """What became of one expected test id. Only `PASSED` counts as passed."""

    PASSED = "passed"
    FAILED = "failed"
    ERROR = "error"
    """Failed in setup, teardown or collection."""
    SKIPPED = "skipped"
    XFAILED = "xfailed"
    XPASSED = "xpassed"
    MISSING = "missing"
    """The run ended without an outcome for this id."""


@dataclass(frozen=True, slots=True)
class Unscored:
    """The reward could not be determined, through no fault of the agent. Never a zero, never in a group's baseline."""

    reason: str


Reward: TypeAlias = float | Unscored


@dataclass(frozen=True, slots=True, kw_only=True)
class GradeReport:
    """The grader's verdict on one workspace."""

    reward: Reward
    """1.0 when every expected test passed and every hidden check held, else 0.0; `Unscored` after an infrastructure fault."""
    outcomes: Mapping[str, Outcome]
    """Outcome per expected test id (fail-to-pass, then pass-to-pass)."""
    reasons: tuple[str, ...] = ()
    """Why the reward is not 1: one sentence each, most important first."""
    rejected: tuple[str, ...] = ()
    """Changed workspace paths that were not copied in: the allow list does not name them, or they are not regular files."""
    isolation: str = ""
    """One line naming the sandbox that ran the tests and its limits."""
    wall_s: float = 0.0
    cached: bool = False
    """True when an identical tree of the same task had been graded before and that verdict was reused."""
    hidden_broken: tuple[int, ...] = ()
    """Numbers of the hidden checks that did not hold: the calls, counted from 0, then the anti-tests."""
    alarm: bool = False
    """Every visible test of an impossible task passed."""


# --- rollouts --------------------------------------------------------------------------------------------------------


class StopReason(StrEnum):
    """Why a trajectory ended. Each budget has its own name, and nothing is cut silently."""

    SUBMITTED = "submitted"
    """The agent called `submit`."""
    NO_TOOL_CALL = "no_tool_call"
    """The agent ended a turn without calling a tool."""
    MAX_TURNS = "max_turns"
    TURN_TOKENS = "turn_tokens"
    """One turn reached its token budget before its end-of-turn token."""
    TRAJECTORY_TOKENS = "trajectory_tokens"
    """The sampled tokens of all turns reached their budget."""
    CONTEXT_TOKENS = "context_tokens"
    """Prompt, turns and observations together no longer fit the context budget."""
    INFRASTRUCTURE = "infrastructure"
    """The environment broke or the rollout took too long; the trajectory is `Unscored`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """One tool call as parsed from a turn's text."""

    call_id: str
    name: str
    """Empty when the markup could not be parsed."""
    arguments: Mapping[str, Any]
    error: str | None = None
    """Why the call could not be parsed (bad JSON, no name), or None."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolResult:
    """What the environment answered to one tool call."""

    call_id: str
    name: str
    content: str
    """The text shown to the policy. Deterministic (no durations, no temporary paths), but for what a command of its own says."""
    status: str = "ok"
    """`ok`, or the kind of error: `malformed_call`, `unknown_tool`, `invalid_arguments`, `path_not_found`, `path_not_editable`,
    `edit_not_applied`, `tests_failed`, `command_failed`, `timeout`, `out_of_memory`."""
    details: Mapping[str, Any] = field(default_factory=dict)
    """Structured evidence for detectors, e.g. `{"failed": [ids], "passed": [ids]}`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One model call and the environment's reply.

    The policy's context before this turn is `prompt_ids` plus `action_ids + observation_ids` of every earlier turn.
    """

    action_ids: tuple[int, ...]
    """Exactly what the policy sampled, end-of-turn token included when it was sampled. Never re-encoded."""
    logprobs: tuple[float, ...]
    """Log-prob of each sampled id under the distribution it was drawn from (after temperature), same length as `action_ids`."""
    text: str
    """`action_ids` decoded, for reading only."""
    tool_calls: tuple[ToolCall, ...] = ()
    results: tuple[ToolResult, ...] = ()
    observation_ids: tuple[int, ...] = ()
    """The rendered reply up to and including the next generation prompt; empty after the last turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trajectory:
    """The record of one rollout."""

    trajectory_id: str
    """`step/task/sibling`, unique among those of one arm and step. Step -1 is any evaluation, -2 the frozen traces."""
    task_id: str
    policy_version: int
    """Number of optimizer steps behind the weights that sampled it."""
    messages: tuple[Message, ...]
    """The opening messages (system, user)."""
    tools: tuple[ToolSchema, ...]
    prompt_ids: tuple[int, ...]
    """`messages` and `tools` rendered, generation prompt included."""
    turns: tuple[Turn, ...]
    stop_reason: StopReason
    temperature: float
    reward: Reward
    grade: GradeReport | None = None
    arm: str = ""

    def context_ids(self, turn: int) -> tuple[int, ...]:
        """The exact token ids the policy had seen when it sampled turn `turn` (0-based); `len(turns)` gives everything."""
        ids = list(self.prompt_ids)
        for earlier in self.turns[:turn]:
            ids.extend(earlier.action_ids)
            ids.extend(earlier.observation_ids)
        return tuple(ids)

    def action_start(self, turn: int) -> int:
        """Position of the first sampled token of turn `turn` in the whole sequence."""
        return len(self.prompt_ids) + sum(len(t.action_ids) + len(t.observation_ids) for t in self.turns[:turn])

    def num_sampled_tokens(self) -> int:
        """Tokens the policy sampled, all turns together."""
        return sum(len(t.action_ids) for t in self.turns)


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Siblings: several trajectories of one task from one policy version. The unit of a GRPO baseline."""

    group_id: str
    task_id: str
    trajectories: tuple[Trajectory, ...]


# --- the hint and replay channels ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A detector's claim that one turn went wrong."""

    kind: str
    """`unknown_tool`, `malformed_call`, `invalid_arguments`, `edit_not_applied`, `tests_failed`, ..."""
    turn: int
    """0-based index of the turn that went wrong (for failing tests: the edit, not the test run that revealed it)."""
    span: tuple[int, int] | None = None
    """Characters of the call's argument that `evidence["argument"]` names, else of the turn's text; None for the whole turn."""
    evidence: Mapping[str, Any] = field(default_factory=dict)
    confidence: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Hint:
    """What to tell the self-teacher just before an error turn or, with the reason in `dropped`, what is not told."""

    trajectory_id: str
    turn: int
    kind: str
    """The finding's kind."""
    text: str
    source: str
    """Who wrote it: `template`, `environment`, `documentation`, ..."""
    dropped: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HintedTurn:
    """An error turn aligned under two contexts: the student's true one and the self-teacher's with the hint in it.

    The compared tokens are `action_ids`; they stand at `student_start` in the trajectory's own sequence and at `teacher_start`
    in `teacher_ids`. Position p is predicted by the logits at p - 1 in both.
    """

    trajectory_id: str
    turn: int
    student_start: int
    teacher_ids: tuple[int, ...]
    """The self-teacher's context followed by the turn's action ids."""
    teacher_start: int
    action_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """A preference pair in token ids: two continuations of one exact context."""

    pair_id: str
    prompt_ids: tuple[int, ...]
    chosen_ids: tuple[int, ...]
    rejected_ids: tuple[int, ...]
    confidence: float = 1.0
    """Weight of the pair in the loss, in (0, 1]."""
    ref_chosen_logprob: float | None = None
    """Sum of log-probs of `chosen_ids` under the reference policy; None until computed."""
    ref_rejected_logprob: float | None = None


# --- JSON ------------------------------------------------------------------------------------------------------------


def to_json(value: Any) -> Any:
    """Plain JSON data of any class of this module; `Unscored` becomes `{"unscored": reason}`."""
    if isinstance(value, Unscored):
        return {"unscored": value.reason}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: to_json(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(k): to_json(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [to_json(v) for v in value]
    if isinstance(value, StrEnum):
        return value.value
    return value


def reward_from_json(value: Any) -> Reward:
    """Inverse of `to_json` for a reward."""
    return Unscored(value["unscored"]) if isinstance(value, dict) else float(value)


def task_spec_from_json(data: Mapping[str, Any]) -> TaskSpec:
    """Inverse of `to_json` for a `TaskSpec`. Raises KeyError or TypeError on a record of another shape."""
    tuples = {k: tuple(data[k]) for k in ("fail_to_pass", "pass_to_pass", "editable", "python_path")}
    deleted = tuple(Deletion(**d) for d in data["deleted"])
    return TaskSpec(**{**data, **tuples, "deleted": deleted, "hidden": hidden_checks_from_json(data["hidden"])})


def grade_from_json(data: Mapping[str, Any]) -> GradeReport:
    """Inverse of `to_json` for a `GradeReport`."""
    return GradeReport(
        **{
            **data,
            "reward": reward_from_json(data["reward"]),
            "outcomes": {k: Outcome(v) for k, v in data["outcomes"].items()},
            "reasons": tuple(data["reasons"]),
            "rejected": tuple(data["rejected"]),
            "hidden_broken": tuple(data.get("hidden_broken", ())),
        }
    )


def trajectory_from_json(data: Mapping[str, Any]) -> Trajectory:
    """Inverse of `to_json` for a `Trajectory`."""
    turns = tuple(
        Turn(
            action_ids=tuple(t["action_ids"]),
            logprobs=tuple(t["logprobs"]),
            text=t["text"],
            tool_calls=tuple(ToolCall(**c) for c in t["tool_calls"]),
            results=tuple(ToolResult(**r) for r in t["results"]),
            observation_ids=tuple(t["observation_ids"]),
        )
        for t in data["turns"]
    )
    return Trajectory(
        **{
            **data,
            "messages": tuple(data["messages"]),
            "tools": tuple(data["tools"]),
            "prompt_ids": tuple(data["prompt_ids"]),
            "turns": turns,
            "stop_reason": StopReason(data["stop_reason"]),
            "reward": reward_from_json(data["reward"]),
            "grade": None if data["grade"] is None else grade_from_json(data["grade"]),
        }
    )
