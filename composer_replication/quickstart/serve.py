"""An OpenAI-compatible HTTP endpoint over local models: `python -m composer_replication.quickstart.serve NAME=FOLDER ...`.

`POST /v1/chat/completions` with tools and tool calls, `GET /v1/models`, `GET /health`; and, in vLLM's words, `POST /tokenize` and
`POST /v1/completions` that asks for the log-probs of its prompt. Requests that arrive together are sampled as one batch. Prints
`listening on http://127.0.0.1:PORT/v1` once it is ready and ends when its standard input is closed, so it never outlives the
process that started it. Listens on the loopback interface only.
"""

from __future__ import annotations

import json
import queue
import sys
import threading
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar

import torch

from composer_replication.config import ModelConfig
from composer_replication.loss.forward.models import load_policy
from composer_replication.rollouts.protocol import Sample, SampleRequest
from composer_replication.rollouts.transformers_engine import TransformersEngine
from composer_replication.tokens import ChatRenderer, assistant_message, parse_tool_calls
from composer_replication.types.errors import ComposerError
from composer_replication.types.guarded_streams import guard_streams
from composer_replication.types.wire import message_from_wire, message_to_wire

_MAX_TOKENS = 256
_MAX_BATCH = 64


@dataclass(slots=True)
class _ChatJob:
    request: SampleRequest
    answered: threading.Event = field(default_factory=threading.Event)
    sample: Sample | None = None
    error: str = ""


class ModelServer:
    """One model, one thread that samples for everybody who asks."""

    def __init__(self, folder: str) -> None:
        model, tokenizer = load_policy(ModelConfig(path=folder, device="cpu"))
        self.renderer = ChatRenderer(tokenizer)
        self._model = model
        self._engine = TransformersEngine(model, tokenizer)
        self._jobs: queue.Queue[_ChatJob] = queue.Queue()
        threading.Thread(target=self._work, daemon=True).start()

    def complete(self, body: dict[str, Any]) -> dict[str, Any]:
        """Return the response to a chat-completions request, greedily. Raises ValueError or KeyError."""
        messages = [message_from_wire(m) for m in body["messages"]]
        prompt = self.renderer.prompt_ids(messages, body.get("tools") or ())
        limit = min(int(body.get("max_tokens") or _MAX_TOKENS), _MAX_TOKENS, self._engine.context_window - len(prompt))
        if limit < 1:
            raise ValueError(f"the prompt has {len(prompt)} tokens, the context window {self._engine.context_window}")
        job = _ChatJob(
            SampleRequest(session=uuid.uuid4().hex, new_ids=prompt, max_new_tokens=limit, seed=int(body.get("seed") or 0))
        )
        self._jobs.put(job)
        job.answered.wait()
        if job.sample is None:
            raise ValueError(f"the model could not answer: {job.error}")
        return self._response(body, job.sample, len(prompt))

    def tokenize(self, body: dict[str, Any]) -> dict[str, Any]:
        """Return the token ids of a text. Raises KeyError."""
        return {"tokens": self.renderer.tokenizer.encode(body["prompt"], add_special_tokens=False)}

    @torch.no_grad()
    def score(self, body: dict[str, Any]) -> dict[str, Any]:
        """Return the log-prob of each token of a prompt, given as ids, after those before it, and those of the `prompt_logprobs`
        likeliest tokens in its place. Raises ValueError or KeyError."""
        ids = torch.tensor([body["prompt"]])
        if body.get("prompt_logprobs") is None or not 2 <= ids.shape[1] <= self._engine.context_window:
            raise ValueError(f"expected prompt_logprobs and a prompt of 2 to {self._engine.context_window} token ids")
        scores = self._model(input_ids=ids, use_cache=False).logits[0, :-1].float().log_softmax(-1)
        best = scores.topk(min(int(body["prompt_logprobs"]), scores.shape[-1]))
        named = torch.cat([best.indices, ids[0, 1:, None]], 1)
        found = [
            {str(token): {"logprob": score} for token, score in zip(tokens, of_place, strict=True)}
            for tokens, of_place in zip(named.tolist(), scores.gather(-1, named).tolist(), strict=True)
        ]
        choice = {"index": 0, "text": "", "finish_reason": "length", "prompt_logprobs": [None, *found]}
        return {"id": f"cmpl-{uuid.uuid4().hex}", "object": "text_completion", "model": body["model"], "choices": [choice]}

    def _work(self) -> None:
        while True:
            jobs = [self._jobs.get()]
            while len(jobs) < _MAX_BATCH:
                try:
                    jobs.append(self._jobs.get(timeout=0.02))
                except queue.Empty:
                    break
            try:
                samples = self._engine.sample([j.request for j in jobs], temperature=0.0)
                for job, sample in zip(jobs, samples, strict=True):
                    job.sample = sample
            except (ComposerError, RuntimeError) as error:
                for job in jobs:
                    job.error = str(error)
            finally:
                self._engine.close([j.request.session for j in jobs])
                for job in jobs:
                    job.answered.set()

    def _response(self, body: dict[str, Any], sample: Sample, prompt_tokens: int) -> dict[str, Any]:
        content, calls = parse_tool_calls(self.renderer.decode(sample.ids), turn=0)
        message = message_to_wire(assistant_message(content, calls))
        reason = "tool_calls" if "tool_calls" in message else "stop" if sample.finished else "length"
        used = {"prompt_tokens": prompt_tokens, "completion_tokens": len(sample.ids)}
        return {
            "id": f"chatcmpl-{uuid.uuid4().hex}",
            "object": "chat.completion",
            "created": 0,
            "model": body["model"],
            "choices": [{"index": 0, "message": message, "finish_reason": reason}],
            "usage": used | {"total_tokens": sum(used.values())},
        }


class _ChatHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    models: ClassVar[dict[str, ModelServer]] = {}
    paths: ClassVar[dict[str, Callable[[ModelServer, dict[str, Any]], dict[str, Any]]]] = {
        "/v1/chat/completions": ModelServer.complete,
        "/v1/completions": ModelServer.score,
        "/tokenize": ModelServer.tokenize,
    }

    def do_GET(self) -> None:
        """Serve health and the list of models."""
        if self.path == "/health":
            self._answer(200, {"status": "ok"})
        elif self.path == "/v1/models":
            self._answer(200, {"object": "list", "data": [{"id": name, "object": "model"} for name in self.models]})
        else:
            self._refuse(404, f"no such path {self.path}")

    def do_POST(self) -> None:
        """Serve chat completions, tokens, and the log-probs of prompts."""
        serve = self.paths.get(self.path)
        if serve is None:
            self._refuse(404, f"no such path {self.path}")
            return
        try:
            body = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))))
            server = self.models.get(body["model"])
            if server is None:
                self._refuse(404, f"no model {body['model']!r}; known: {', '.join(self.models)}")
                return
            self._answer(200, serve(server, body))
        except (ValueError, KeyError, TypeError) as error:
            self._refuse(400, f"{type(error).__name__}: {error}")

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 (the base class's name)
        """Say nothing: a run's terminal is not an access log."""

    def _refuse(self, status: int, message: str) -> None:
        self._answer(status, {"error": {"message": message, "type": "invalid_request_error"}})

    def _answer(self, status: int, body: dict[str, Any]) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


class TeacherServer(ThreadingHTTPServer):
    """A thread for every connection."""

    daemon_threads = True
    request_queue_size = 128
    """Length of the accept queue: a replay opens all its connections at once, and the standard 5 resets most of them."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _ChatHandler)


def main(arguments: list[str]) -> int:
    """Serve `NAME=FOLDER` models on a free port until standard input closes."""
    guard_streams()
    torch.set_num_threads(1)
    try:
        _ChatHandler.models = {name: ModelServer(folder) for name, _, folder in (a.partition("=") for a in arguments)}
    except ComposerError as error:
        sys.stderr.write(f"error: {error}\n")
        return error.exit_code
    server = TeacherServer()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    sys.stdout.write(f"listening on http://127.0.0.1:{server.server_address[1]}/v1\n")
    sys.stdout.flush()
    sys.stdin.read()
    server.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
