"""The plain data that flows through the system, in the order it is produced.

`TaskSpec -> Trajectory -> (advantages, hints, pairs) -> batch -> LossComponents -> new policy version`

No torch here, and nothing that needs it: token ids are tuples of ints and log-probs tuples of floats (natural logarithm).
Every class is frozen and JSON-serialisable through `to_json` / `from_json`, so that what a run writes can be read back exactly.
"""

from __future__ import annotations

from composer_replication.types.grade import GradeReport, Outcome, Reward, Unscored, cause_of
from composer_replication.types.messages import Message, ToolCall, ToolResult, ToolSchema
from composer_replication.types.plain_json import from_json, reward_from_json, to_json
from composer_replication.types.signals import Finding, Hint, HintedTurn, Pair
from composer_replication.types.task import Deletion, InstructionStyle, TaskSpec
from composer_replication.types.trajectory import Group, StopReason, Trajectory, Turn

__all__ = [
    "Deletion",
    "Finding",
    "GradeReport",
    "Group",
    "Hint",
    "HintedTurn",
    "InstructionStyle",
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
    "cause_of",
    "from_json",
    "reward_from_json",
    "to_json",
]
