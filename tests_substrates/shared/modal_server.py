"""A server that speaks Modal's protocol, as much of it as sandboxes need, and runs their commands as processes here."""

from __future__ import annotations

import asyncio
import base64
import json
import socket
import threading
import time
import types
from typing import Any

import grpclib
import grpclib.const
import grpclib.server
from containers import Container
from modal_proto import api_grpc, api_pb2

TOKEN = ("ak-of-the-tests", "as-of-the-tests")
_RESULT = api_pb2.GenericResult


class ModalServer:
    """Serves in a thread of its own; `url` is its address."""

    def __init__(self) -> None:
        self.sandboxes: dict[str, Container] = {}
        self.requests: list[tuple[str, Any]] = []
        """Every request that was understood, by the name of its procedure."""
        self.out_of_order = False
        """Answer nothing but errors."""
        self._secrets: dict[str, dict[str, str]] = {}
        self._loop = asyncio.new_event_loop()
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self._thread = threading.Thread(target=self._loop.run_forever, name="modal-server", daemon=True)
        self._thread.start()
        self._server = asyncio.run_coroutine_threadsafe(self._begin(), self._loop).result()

    def asked(self, procedure: str) -> list[Any]:
        return [request for name, request in self.requests if name == procedure]

    def close(self) -> None:
        for sandbox in self.sandboxes.values():
            sandbox.close()
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _begin(self) -> grpclib.server.Server:
        base = api_grpc.ModalClientBase
        service = type("Service", (base,), dict.fromkeys(base.__abstractmethods__, lambda *_: None))()
        mapping = {}
        for path, handler in service.__mapping__().items():
            answer = types.MethodType(self._answer(path.rpartition("/")[2], handler.reply_type), service)
            mapping[path] = grpclib.const.Handler(answer, handler.cardinality, handler.request_type, handler.reply_type)
        service.__mapping__ = lambda: mapping
        server = grpclib.server.Server([service])
        await server.start(sock=self._socket)
        return server

    async def _end(self) -> None:
        self._server.close()
        await self._server.wait_closed()

    def _answer(self, procedure: str, reply_type: type) -> Any:
        async def answer(_service: Any, stream: Any) -> None:
            request = await stream.recv_message()
            given = (stream.metadata.get("x-modal-token-id"), stream.metadata.get("x-modal-token-secret"))
            if given != TOKEN:
                raise grpclib.GRPCError(grpclib.Status.UNAUTHENTICATED, "Token ID not found")
            if self.out_of_order:
                raise grpclib.GRPCError(grpclib.Status.FAILED_PRECONDITION, "the data center is on fire")
            self.requests.append((procedure, request))
            reply = reply_type()
            if (fill := getattr(self, f"_{procedure}", None)) is not None:
                await fill(request, reply)
            await stream.send_message(reply)

        return answer

    async def _AuthTokenGet(self, _request: Any, reply: Any) -> None:
        parts = ({"alg": "none"}, {"exp": int(time.time()) + 3600})
        reply.token = ".".join(
            [*(base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=").decode() for part in parts), "x"]
        )

    async def _AppGetOrCreate(self, request: Any, reply: Any) -> None:
        reply.app_id = f"ap-{request.app_name}"

    async def _EnvironmentGetOrCreate(self, _request: Any, reply: Any) -> None:
        reply.environment_id = "en-1"
        reply.metadata.name = "main"
        reply.metadata.settings.image_builder_version = "2025.06"

    async def _ImageGetOrCreate(self, _request: Any, reply: Any) -> None:
        reply.image_id = f"im-{len(self.asked('ImageGetOrCreate'))}"
        reply.result.status = _RESULT.GENERIC_STATUS_SUCCESS

    async def _SecretGetOrCreate(self, request: Any, reply: Any) -> None:
        reply.secret_id = f"st-{len(self._secrets)}"
        self._secrets[reply.secret_id] = dict(request.env_dict)

    async def _SandboxCreate(self, request: Any, reply: Any) -> None:
        environment = {name: value for key in request.definition.secret_ids for name, value in self._secrets[key].items()}
        reply.sandbox_id = self._begin_sandbox("sb-" + "A" * 20 + f"{len(self.sandboxes):02}", request.definition, environment)

    async def _SandboxCreateV2(self, request: Any, reply: Any) -> None:
        environment: dict[str, str] = {}
        for source in request.secret_sources:
            environment |= self._secrets[source.secret_id] if source.secret_id else dict(source.env.contents)
        reply.sandbox_id = self._begin_sandbox(f"sb-v2-{len(self.sandboxes)}", request.definition, environment)
        reply.task_id = f"ta-{reply.sandbox_id}"

    async def _SandboxGetTaskId(self, request: Any, reply: Any) -> None:
        reply.task_id = f"ta-{request.sandbox_id}"

    async def _SandboxGetTaskIdV2(self, request: Any, reply: Any) -> None:
        reply.task_id = f"ta-{request.sandbox_id}"

    async def _SandboxWait(self, request: Any, reply: Any) -> None:
        if (sandbox := self.sandboxes.get(request.sandbox_id)) is None:
            raise grpclib.GRPCError(grpclib.Status.NOT_FOUND, f"Sandbox {request.sandbox_id} not found")
        deadline = time.monotonic() + request.timeout
        while sandbox.status is None and time.monotonic() < deadline:
            await asyncio.sleep(0.05)
        if sandbox.status is not None:
            reply.result.exitcode = sandbox.status % 256 if sandbox.status >= 0 else 128 - sandbox.status
            reply.result.status = _status(sandbox)

    _SandboxWaitV2 = _SandboxWait

    async def _SandboxTerminate(self, request: Any, _reply: Any) -> None:
        self.sandboxes[request.sandbox_id].terminate()

    _SandboxTerminateV2 = _SandboxTerminate

    def _begin_sandbox(self, name: str, definition: Any, environment: dict[str, str]) -> str:
        self.sandboxes[name] = Container(definition.entrypoint_args, environment, definition.timeout_secs)
        return name


def _status(sandbox: Container) -> int:
    if sandbox.timed_out:
        return _RESULT.GENERIC_STATUS_TIMEOUT
    if sandbox.terminated:
        return _RESULT.GENERIC_STATUS_TERMINATED
    return _RESULT.GENERIC_STATUS_SUCCESS if sandbox.status == 0 else _RESULT.GENERIC_STATUS_FAILURE
