"""A teacher as a policy: a model behind an endpoint takes the turns of rollouts.

It is asked with messages, and rollouts are made of tokens. So its turns are recorded as a tokenizer at hand writes them: budgets
are counted in those tokens, and their log-probs are 0. Answers are in the ledger, and are not paid for again.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from composer_replication.config import TEACHER, TeacherConfig
from composer_replication.rollouts.agent_loop import derive_seed
from composer_replication.rollouts.protocol import NoSampleError, Sample, SampleRequest
from composer_replication.teachers import Ledger, Question, Teacher, TeacherAnswer, TeacherPool
from composer_replication.teachers.call import Failure
from composer_replication.tokens import ChatRenderer, assistant_message, parse_tool_calls
from composer_replication.types import Message, ToolCall, ToolSchema
from composer_replication.types.errors import ConfigError, TeacherError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_FOR_ALL = (Failure.BUDGET, Failure.LEFT_OUT, Failure.UNREACHABLE)
"""Failures that the next question would meet too."""


def teacher_as_policy(policy: str, teachers: Sequence[TeacherConfig], temperature: float, where: str) -> Teacher:
    """Return the teacher that the policy `teacher:NAME` is, which samples at `temperature` as other policies do, if it takes one.

    Args:
        where: the file that lists the teachers, for the error.

    Raises:
        ConfigError: none of them has that name.
    """
    name, known = policy.removeprefix(TEACHER), {teacher.name: teacher for teacher in teachers}
    if name not in known:
        named = ", ".join(known) or "there are none"
        raise ConfigError(f"no teacher {name!r} in {where}", fix=f"name one of its [[teachers]]: {named}")
    teacher = Teacher.of(known[name])
    if teacher.temperature == "endpoint":
        return teacher
    return teacher.model_copy(update={"temperature": temperature})


class RememberingRenderer(ChatRenderer):
    """A renderer that knows which messages the ids stand for that it has made, but for what a template leaves out of them: which
    call a result answers."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._asked: dict[tuple[int, ...], tuple[tuple[Message, ...], tuple[ToolSchema, ...]]] = {}
        super().__init__(tokenizer)

    def prompt_ids(self, messages: Sequence[Message], tools: Sequence[ToolSchema] = ()) -> tuple[int, ...]:
        """Render as `ChatRenderer.prompt_ids`, and remember."""
        return self._remembered(super().prompt_ids(messages, tools), messages, tools)

    def delta_ids(self, messages: Sequence[Message], *, ended: bool) -> tuple[int, ...]:
        """Render as `ChatRenderer.delta_ids`, and remember."""
        return self._remembered(super().delta_ids(messages, ended=ended), messages, ())

    def messages_of(self, ids: tuple[int, ...]) -> tuple[tuple[Message, ...], tuple[ToolSchema, ...]]:
        """Return the messages that became these ids, and the tools that were listed. Raises KeyError for ids of others."""
        return self._asked[ids]

    def _remembered(self, ids: tuple[int, ...], messages: Sequence[Message], tools: Sequence[ToolSchema]) -> tuple[int, ...]:
        self._asked[ids] = tuple(messages), tuple(tools)
        return ids


@dataclass(slots=True)
class TeacherTalk:
    """One rollout, as the endpoint reads it."""

    tools: tuple[ToolSchema, ...]
    messages: list[Message] = field(default_factory=list)
    turns: int = 0
    calls: tuple[ToolCall, ...] = ()
    """Of the last turn."""

    def hear(self, messages: Sequence[Message]) -> None:
        """Take what came after the last turn: its results, in the order of its calls, and whatever else."""
        results = iter(self.calls)
        for message in messages:
            call = next(results, None) if message["role"] == "tool" else None
            self.messages.append(message if call is None else Message(**{**message, "tool_call_id": call.call_id}))


class TeacherEngine:
    """An `AsyncEngine` that asks the one teacher of a pool for each turn.

    Rollouts of a task are draws of their own in the ledger, by the seed and the last part of their names. An answer that is
    longer than the budget of a turn is cut, as a policy's is, and one that the endpoint has cut off is not finished.
    """

    context_window = 1 << 30

    def __init__(self, pool: TeacherPool, renderer: RememberingRenderer, seed: int) -> None:
        self.renderer = renderer
        """Writes the prompts and the turns."""
        self._pool = pool
        self._seed = seed
        self._open: dict[str, TeacherTalk] = {}

    @property
    def spent_usd(self) -> float:
        """All that the ledger has paid or holds, in US dollars."""
        return self._pool.ledger.spent_usd

    async def prepare(self) -> None:
        """Do nothing: there are no weights to load."""

    async def sample_one(self, request: SampleRequest, *, temperature: float) -> Sample:
        """Ask for one turn; the temperature is the teacher's.

        Raises:
            NoSampleError: the endpoint refused this question, did not answer it, or kept its answer back.
            TeacherError, BudgetExceededError: it can answer no other one either.
        """
        del temperature
        messages, tools = self.renderer.messages_of(request.new_ids)
        talk = self._open.setdefault(request.session, TeacherTalk(tools))
        talk.hear(messages)
        answer = await self._answer(request.session, talk)
        if answer.finish_reason == "content_filter":
            raise NoSampleError(f"{answer.teacher}: the endpoint kept its answer back (content_filter)")
        ids = self.renderer.assistant_ids(assistant_message(_with_unread_calls(answer), answer.tool_calls))
        whole = ids if answer.finish_reason != "length" else ids[:-1]  # without the token that ends a turn
        kept = whole[: request.max_new_tokens]
        content, talk.calls = parse_tool_calls(self.renderer.decode(kept), turn=talk.turns)
        talk.messages.append(assistant_message(content, talk.calls))
        talk.turns += 1
        return Sample(ids=kept, logprobs=(0.0,) * len(kept), finished=kept == ids)

    def sample(self, requests: Sequence[SampleRequest], *, temperature: float) -> list[Sample]:
        """Ask for the turns of several sessions, all at the same time. Raises as `sample_one`."""

        async def all_of_them() -> list[Sample]:
            return await asyncio.gather(*(self.sample_one(request, temperature=temperature) for request in requests))

        return asyncio.run(all_of_them())

    def close(self, sessions: Sequence[str]) -> None:
        """Forget sessions; unknown names are ignored."""
        for name in sessions:
            self._open.pop(name, None)

    def reset(self) -> None:
        """Forget every session."""
        self._open.clear()

    def rest(self) -> None:
        """Do nothing: no device is taken."""

    def end(self) -> None:
        """Do nothing: the pool is closed by whoever opened it."""

    async def _answer(self, session: str, talk: TeacherTalk) -> TeacherAnswer:
        question = Question(
            question_id=f"{session}/{talk.turns}",
            messages=list(talk.messages),
            tools=talk.tools,
            sample=derive_seed(self._seed, int(session.rpartition("/")[2])),
            trace=session,
            step=talk.turns,
        )
        answers: list[TeacherAnswer] = []
        try:
            await self._pool.ask([question], on_answer=answers.append)
        except TeacherError as error:
            if answers and answers[0].failure not in _FOR_ALL:
                raise NoSampleError(f"{answers[0].teacher} did not answer: {answers[0].error}") from error
            raise
        return answers[0]


@asynccontextmanager
async def open_teacher(
    teacher: Teacher, *, model: str, ledger: Path, max_total_usd: float, seed: int
) -> AsyncIterator[TeacherEngine]:
    """Open a teacher as the engine of rollouts: they are recorded as the chat template of a model writes them.

    Args:
        model: folder or Hugging Face id of that model, of which the tokenizer is read.
        ledger: file that keeps the answers and what they cost.
        max_total_usd: cap on all that the ledger has paid or holds, in US dollars.
        seed: tells draws of the same question apart.

    Raises:
        ConfigError, StorageError: as `TeacherPool` and `Ledger`.
        ModelError: the tokenizer cannot be loaded.
    """
    from composer_replication.loss.forward.models import load_tokenizer  # imports torch, which takes seconds

    renderer = RememberingRenderer(load_tokenizer(model)[0])
    with Ledger(ledger) as book:
        async with TeacherPool([teacher], ledger=book, max_total_usd=max_total_usd) as pool:
            yield TeacherEngine(pool, renderer, seed)


def _with_unread_calls(answer: TeacherAnswer) -> str:
    """Return what an answer says beside its calls, with those that could not be read as a policy would have written them: the
    environment says what is wrong with them."""
    unread = [
        f'<tool_call>\n{{"name": {json.dumps(call.name)}, "arguments": {answer.unread[call.call_id]}}}\n</tool_call>'
        for call in answer.tool_calls
        if call.error is not None and call.call_id in answer.unread
    ]
    return "\n".join([*([answer.content] if answer.content else []), *unread])
