"""A real OpenAI-compatible HTTP server on the loopback, whose answers and failures a test decides."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class Reply:
    """One HTTP response. `content` and `calls` make a chat completion; `status` and `body` anything else."""

    content: str | None = None
    calls: list[tuple[str, dict | str]] = field(default_factory=list)
    finish_reason: str | None = None
    cost: float | None = None
    prompt_tokens: int = 10
    completion_tokens: int = 5
    usage: bool = True
    """Report the two, and the cost."""
    usage_fields: dict | None = None
    """Reported in place of them."""
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes | None = None
    """Sent as it is, under the content type of JSON."""
    cut: bool = False
    """Promise more bytes than are sent, then hang up."""
    drip: threading.Event | None = None
    """Spaces forever, one after the other, until it is set."""
    before: Callable[[], object] | None = None
    """Called before the response is written; may block."""

    def payload(self, model):
        if self.body is not None:
            return self.body
        if self.status != 200:
            return json.dumps({"error": {"message": f"refused with {self.status}", "type": "test"}}).encode()
        message = {"role": "assistant", "content": self.content}
        if self.calls:
            message["tool_calls"] = [
                {
                    "id": f"c{i}",
                    "type": "function",
                    "function": {"name": n, "arguments": a if isinstance(a, str) else json.dumps(a)},
                }
                for i, (n, a) in enumerate(self.calls)
            ]
        usage = {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
        }
        if self.cost is not None:
            usage["cost"] = self.cost
        if self.usage_fields is not None:
            usage = self.usage_fields
        reason = self.finish_reason or ("tool_calls" if self.calls else "stop")
        choice = {"index": 0, "message": message, "finish_reason": reason}
        completion = {"id": "x", "object": "chat.completion", "created": 0, "model": model, "choices": [choice]}
        if self.usage:
            completion["usage"] = usage
        return json.dumps(completion).encode()


class TeacherServer:
    """`answer(body, number)` makes the reply to the number-th request (from 0)."""

    def __init__(self, answer, *, port=0):
        self.requests = []
        self.headers = []
        self.answered = []
        self.most_at_once = 0
        self._at_once = 0
        mutex = threading.Lock()
        owner = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                with mutex:
                    number = len(owner.requests)
                    owner.requests.append(body)
                    owner.headers.append({k.lower(): v for k, v in self.headers.items()})
                    owner._at_once += 1
                    owner.most_at_once = max(owner.most_at_once, owner._at_once)
                try:
                    self.respond(body, answer(body, number))
                except (BrokenPipeError, ConnectionResetError):
                    self.close_connection = True

            def respond(self, body, reply):
                if reply.before is not None:
                    reply.before()
                payload = reply.payload(body["model"])
                with mutex:
                    owner._at_once -= 1
                self.send_response(reply.status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(payload) + (100 if reply.cut else 1 << 20 if reply.drip else 0)))
                for name, value in reply.headers.items():
                    self.send_header(name, value)
                self.end_headers()
                while reply.drip is not None and not reply.drip.wait(0.05):
                    self.wfile.write(b" ")
                    self.wfile.flush()
                self.wfile.write(payload)
                self.wfile.flush()
                if reply.cut:
                    self.close_connection = True
                elif reply.status == 200:
                    with mutex:
                        owner.answered.append(body)

            def log_message(self, *args):
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 128

        self._server = Server(("127.0.0.1", port), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)

    @property
    def base_url(self):
        return f"http://127.0.0.1:{self._server.server_address[1]}/v1"

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *error):
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def question_text(body):
    content = body["messages"][-1]["content"]
    return content if isinstance(content, str) else "".join(part["text"] for part in content)
