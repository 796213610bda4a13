"""OpenAI-compatible endpoint through which the agent program of another framework asks a rollout for its model's turns.

The rollout owns the tokens: it is handed what the program adds to the conversation, renders that behind the token ids sampled so
far, and answers with what it samples next. So only programs that append can be trained on. One that rewrites what was said before
(a summary in the place of old turns, a second conversation) is refused. The sampling options of its requests are ignored, because
the run file decides, and usage is reported as 0.
"""

from __future__ import annotations

import asyncio
import json
import queue
import time
from collections.abc import Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from aiohttp import web

from composer_replication.integrations.seeds import encodable
from composer_replication.tokens import assistant_message
from composer_replication.types import Message, ToolCall, ToolSchema
from composer_replication.types.errors import SandboxError
from composer_replication.types.wire import message_from_wire, message_to_wire

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

_MOST_BYTES = 64 << 20
"""Largest request in bytes; the sender is a program of this run."""
_APPEND_ONLY = (
    "train on programs that only append to one conversation: switch off compaction, retries and sub-agents in env.options.env"
)
Completion = dict[str, Any]
"""One choice of a chat completion: `{"index", "message", "finish_reason"}`."""


@dataclass(frozen=True, slots=True)
class _Request:
    """The program's request for a turn."""

    messages: list[dict[str, Any]]
    tools: tuple[ToolSchema, ...]
    reply: asyncio.Future[Completion]


@dataclass(slots=True)
class Conversation:
    """One conversation between a program, which asks in the endpoint's event loop, and a rollout, which answers in its thread."""

    loop: asyncio.AbstractEventLoop
    tools: tuple[ToolSchema, ...] = ()
    """The tools of the first request."""
    _events: queue.SimpleQueue[_Request | None] = field(default_factory=queue.SimpleQueue)
    _open: set[asyncio.Future[Completion]] = field(default_factory=set)
    """Replies that the program waits for."""
    _over: bool = False
    _pending: _Request | None = None
    """The request that the next `answer` settles."""
    _seen: list[tuple[Any, ...]] = field(default_factory=list)
    """The identity of every message so far; the program has to repeat them."""

    # --- in the event loop ------------------------------------------------------------------------------------------------

    async def ask(self, body: Mapping[str, Any]) -> Completion | None:
        """Wait for the rollout's turn on a request of the form of `/chat/completions`; None refuses it."""
        if self._over:
            return None
        request = _Request(list(body["messages"]), _tools(body), asyncio.get_running_loop().create_future())
        self._open.add(request.reply)
        request.reply.add_done_callback(self._open.discard)
        self._events.put(request)
        return await request.reply

    def close(self) -> None:
        """End the conversation: turns that the program waits for are empty, and those it asks for later are refused."""
        self._over = True
        for reply in list(self._open):
            _settle(reply, {"index": 0, "message": {"role": "assistant", "content": ""}, "finish_reason": "stop"})

    def end(self) -> None:
        """Close the conversation, and tell the rollout that the program will ask no more."""
        self.close()
        self._events.put(None)

    # --- in the rollout's thread ------------------------------------------------------------------------------------------

    def opening(self, timeout_s: float) -> tuple[Message, ...] | None:
        """Return the messages of the first request, or None when the program ends without one. Raises as `added` does."""
        added = self.added(timeout_s)
        self.tools = self._pending.tools if self._pending is not None else ()
        return added

    def added(self, timeout_s: float) -> tuple[Message, ...] | None:
        """Return what the program adds to the conversation with its next request, or None when it asks no more.

        Raises:
            SandboxError: it neither asks nor ends within `timeout_s`, or it asks for something else than the next turn.
        """
        request = self._next(timeout_s)
        if request is None:
            return None
        self._pending = request
        try:
            return self._new_messages(request)
        except (KeyError, TypeError, ValueError) as error:
            raise SandboxError(
                f"the agent's program sent something that is no chat completion request: {error!r}", fix=_APPEND_ONLY
            ) from error

    def _next(self, timeout_s: float) -> _Request | None:
        """Return the next request that the program still waits for; None when it asks no more."""
        end = time.monotonic() + timeout_s
        while True:
            try:
                request = self._events.get(timeout=max(0.0, end - time.monotonic()))
            except queue.Empty:
                raise SandboxError(
                    f"the agent's program neither asked for a turn nor ended in {timeout_s:g} s",
                    fix="raise env.options.timeout_s",
                ) from None
            if request is None or not request.reply.cancelled():
                return request

    def _new_messages(self, request: _Request) -> tuple[Message, ...]:
        began = bool(self._seen)
        messages = [message_from_wire(message) for message in request.messages]
        identities = [_identity(message) for message in messages]
        if identities[: len(self._seen)] != self._seen:
            raise SandboxError("the agent's program rewrote the conversation, or began a second one", fix=_APPEND_ONLY)
        if began and request.tools != self.tools:
            raise SandboxError("the agent's program changed its tools during the conversation", fix=_APPEND_ONLY)
        added = messages[len(self._seen) :]
        if began and not added:
            raise SandboxError("the agent's program asked for the same turn again", fix=_APPEND_ONLY)
        if began and any(message["role"] == "assistant" for message in added):
            raise SandboxError("the agent's program added an assistant message that the policy did not write", fix=_APPEND_ONLY)
        self._seen = identities
        return tuple(added)

    def answer(self, text: str, calls: tuple[ToolCall, ...], *, finished: bool) -> None:
        """Answer the pending request with a turn. Raises SandboxError when the program has hung up, and would never see it."""
        assert self._pending is not None, "no turn was asked for"
        if self._pending.reply.done():
            raise SandboxError(
                "the agent's program hung up before the policy answered",
                fix="remove its time limits: they include the time that the policy takes to sample",
            )
        message = message_to_wire(cast(Message, encodable(assistant_message(text, calls))))
        self._seen.append(_identity(message_from_wire(message)))
        reason = "length" if not finished else "tool_calls" if calls else "stop"
        choice = {"index": 0, "message": message, "finish_reason": reason}
        self.loop.call_soon_threadsafe(_settle, self._pending.reply, choice)


@asynccontextmanager
async def serve_conversations(conversations: Mapping[str, Conversation]) -> AsyncIterator[str]:
    """Serve `URL/NAME/v1/chat/completions` for every conversation by name, on the loopback interface; yield the URL."""

    async def complete(request: web.Request) -> web.StreamResponse:
        conversation = conversations.get(request.match_info["name"])
        if conversation is None:
            return _error(404, "there is no such conversation")
        body = await request.json()
        choice = await conversation.ask(body)
        if choice is None:
            return _error(400, "the rollout is over")
        head = {"id": "chatcmpl-rollout", "created": 0, "model": body.get("model", "policy")}
        usage = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}
        if not body.get("stream"):
            return web.json_response(head | {"object": "chat.completion", "choices": [choice], "usage": usage})
        return web.Response(body=_as_events(head, choice, usage), content_type="text/event-stream")

    async def models(_: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": "policy", "object": "model"}]})

    application = web.Application(client_max_size=_MOST_BYTES)
    application.router.add_post("/{name}/v1/chat/completions", complete)
    application.router.add_get("/{name}/v1/models", models)
    runner = web.AppRunner(application, access_log=None, handler_cancellation=True)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        host, port = runner.addresses[0][:2]
        yield f"http://{host}:{port}"
    finally:
        await runner.cleanup()


def _settle(reply: asyncio.Future[Completion], choice: Completion) -> None:
    """Set a reply in its event loop, unless the program has hung up."""
    if not reply.done():
        reply.set_result(choice)


def _as_events(head: Mapping[str, Any], choice: Completion, usage: Mapping[str, int]) -> bytes:
    """Return a completion as the server-sent events of a stream."""
    delta = dict(choice["message"])
    if "tool_calls" in delta:
        delta["tool_calls"] = [{**call, "index": index} for index, call in enumerate(delta["tool_calls"])]
    head = {**head, "object": "chat.completion.chunk"}
    chunks = [
        head | {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]},
        head | {"choices": [{"index": 0, "delta": {}, "finish_reason": choice["finish_reason"]}]},
        head | {"choices": [], "usage": usage},
    ]
    return b"".join(b"data: " + json.dumps(chunk).encode() + b"\n\n" for chunk in chunks) + b"data: [DONE]\n\n"


def _error(status: int, message: str) -> web.Response:
    return web.json_response({"error": {"message": message, "type": "invalid_request_error"}}, status=status)


def _tools(body: Mapping[str, Any]) -> tuple[ToolSchema, ...]:
    kept = ("name", "description", "parameters")
    return tuple(
        {"type": "function", "function": {key: tool["function"][key] for key in kept if key in tool["function"]}}
        for tool in body.get("tools") or ()
    )


def _identity(message: Message) -> tuple[Any, ...]:
    """Return what must be equal in two copies of a message. Programs may change the rest (empty content, order of keys)."""
    calls = [(call["id"], call["function"]) for call in message.get("tool_calls") or ()]
    return message["role"], message["content"].strip(), message.get("tool_call_id"), calls
