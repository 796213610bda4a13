"""The schema of files read back: our own traces and trajectories, and what `atif_write` puts into ATIF files.

A file of ours may have been edited, cut or made up. It is held against these models once, where it is read, so that states,
detectors and writers get what the types of `transcript` and `types` promise.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, ValidationError

from composer_replication.traces.source import UnreadableError

_Model = TypeVar("_Model", bound=BaseModel)
_Place = Annotated[int, Field(ge=0)]
_Object = dict[str, Any]


class _LenientRecord(BaseModel):
    """Unknown fields are kept."""

    model_config = ConfigDict(strict=True, extra="allow", allow_inf_nan=False)


class _Closed(_LenientRecord):
    model_config = ConfigDict(extra="forbid")


class _FunctionRecord(_LenientRecord):
    name: str
    arguments: _Object | str


class _WireCall(_LenientRecord):
    id: str
    function: _FunctionRecord


class MessageShape(_LenientRecord):
    """`types.Message`."""

    role: str
    content: str
    tool_calls: list[_WireCall] = []
    tool_call_id: str = ""
    name: str = ""


class _CallRecord(_Closed):
    call_id: str
    name: str
    arguments: _Object
    error: str | None = None


class AtifResult(_Closed):
    """A result without its content, which ATIF has a field for."""

    call_id: str
    name: str
    status: str
    details: _Object


class _Result(AtifResult):
    content: str
    status: str = "ok"
    details: _Object = {}


class _Unscored(_Closed):
    unscored: str


class _TurnDetails(_LenientRecord):
    raw_arguments: dict[str, str] = {}
    scripts: dict[str, str] = {}


def _kind(step: Any) -> str:
    return "span" if isinstance(step, list) else "message"


_Step = Annotated[
    Annotated[tuple[_Place, _Place], Tag("span"), Field(strict=False)] | Annotated[MessageShape, Tag("message")],
    Discriminator(_kind),
]


class _TraceTurn(_LenientRecord):
    context: list[_Step]
    text: str
    tool_calls: list[_CallRecord]
    results: list[_Result]
    reasoning: str | None
    details: _TurnDetails


class TraceShape(_LenientRecord):
    """A line of `traces.jsonl`."""

    trajectory_id: str
    format: str
    messages: list[MessageShape]
    turns: list[_TraceTurn]
    tools: list[_Object]
    task_id: str
    agent: str
    model: str
    reward: float | _Unscored | None
    details: _Object


class _Turn(_LenientRecord):
    action_ids: list[int]
    logprobs: list[float]
    text: str
    tool_calls: list[_CallRecord]
    results: list[_Result]
    observation_ids: list[int]


class TrajectoryShape(_LenientRecord):
    """A line of a run's trajectories."""

    trajectory_id: str
    task_id: str
    policy_version: int
    messages: list[MessageShape]
    tools: list[_Object]
    prompt_ids: list[int]
    turns: list[_Turn]
    stop_reason: str
    temperature: float
    reward: float | _Unscored
    grade: _Object | None
    arm: str = ""


class AtifCall(_Closed):
    """Why a call could not be read, and what its arguments were."""

    error: str | None = None
    raw: str | None = None


class AtifStep(_LenientRecord):
    """The details and context of a turn, or the message of another step."""

    details: _TurnDetails = _TurnDetails()
    context: list[_Step] | None = None
    message: MessageShape | None = None


class AtifTrace(_LenientRecord):
    """Facts about the whole trace that ATIF has no field for."""

    format: str = ""
    task_id: str = ""
    agent: str = ""
    model: str = ""
    reward: float | _Unscored | None = None
    details: _Object = {}
    messages: list[MessageShape] | None = None


def check(shape: type[_Model], data: Mapping[str, Any]) -> None:
    """Check the shape of data. Raises UnreadableError, which names the first field that is not as `shape` has it."""
    try:
        shape.model_validate(data)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise UnreadableError(f"{where}: {first['msg'].lower()}"[:200]) from error
