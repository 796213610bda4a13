"""A model on loopback that says what a script says, in the three HTTP dialects that coding agents speak, and keeps every request.

    python server.py SCRIPT.json REQUESTS.jsonl PORT

A script is a list of `{"text", "thinking", "calls": [{"name", "arguments"}], "status"}`: the answers to those requests that offer
tools. Agents ask for titles and summaries besides, without: these get one plain text.
Speaks OpenAI chat completions and Responses, and Anthropic messages, whole or streamed.
"""

from __future__ import annotations

import gzip
import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

ASIDE = "A small Python project."


class Model:
    def __init__(self, script, requests: Path, plain: bool):
        self.script, self.requests, self.plain = script, requests, plain
        self.served = 0
        self.lock = threading.Lock()

    def answer(self, path: str, body: dict) -> tuple[int, dict]:
        main = self.plain or bool(body.get("tools"))
        with self.lock:
            number = self.served
            step = {"text": ASIDE}
            if main:
                step = self.script[min(number, len(self.script) - 1)]
                self.served += 1
            with self.requests.open("a") as stream:
                kept = {"main": main, "number": number if main else None, "path": path, "body": body, "answer": step}
                stream.write(json.dumps(kept) + "\n")
        return number, step


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    model: Model

    def log_message(self, *args):
        pass

    def do_HEAD(self):
        self.reply({})

    def do_GET(self):
        self.reply({"object": "list", "data": [{"id": "scripted", "object": "model"}], "models": []})

    def do_POST(self):
        data = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.headers.get("Content-Encoding") == "gzip":
            data = gzip.decompress(data)
        body = json.loads(data or b"{}")
        path = self.path.partition("?")[0]
        if path.endswith("/count_tokens"):
            self.reply({"input_tokens": 100})
            return
        if not path.endswith(("/messages", "/chat/completions", "/responses", "/responses/compact")):
            self.reply({})
            return
        number, step = self.model.answer(path, body)
        if step.get("status", 200) != 200:
            self.reply({"error": {"message": step["text"], "type": "invalid_request_error"}}, step["status"])
        elif path.endswith("/messages"):
            self.anthropic(number, step, body)
        elif path.endswith("/chat/completions"):
            self.chat(number, step, body)
        else:
            self.items(number, step, body)

    def reply(self, value, status=200):
        data = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def stream(self, events):
        data = "".join(events).encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def anthropic(self, number, step, body):
        blocks = []
        if step.get("thinking"):
            blocks.append({"type": "thinking", "thinking": step["thinking"], "signature": "c2lnbmVk"})
        if step.get("text"):
            blocks.append({"type": "text", "text": step["text"]})
        for i, call in enumerate(step.get("calls", ())):
            blocks.append({"type": "tool_use", "id": f"toolu_{number:02}_{i}", "name": call["name"], "input": call["arguments"]})
        usage = step.get("usage") or {"input_tokens": 100 + 10 * number, "output_tokens": 20}
        usage = {"cache_creation_input_tokens": 0, "cache_read_input_tokens": 0, **usage}
        stop = "tool_use" if step.get("calls") else "end_turn"
        message = {"id": f"msg_{number:04}", "type": "message", "role": "assistant", "model": body.get("model", "scripted")}
        if not body.get("stream"):
            self.reply({**message, "content": blocks, "stop_reason": stop, "stop_sequence": None, "usage": usage})
            return
        start = {**message, "content": [], "stop_reason": None, "stop_sequence": None, "usage": {**usage, "output_tokens": 1}}
        events = [sse("message_start", message=start)]
        for i, block in enumerate(blocks):
            empty, deltas = parts(block)
            events.append(sse("content_block_start", index=i, content_block=empty))
            events += [sse("content_block_delta", index=i, delta=delta) for delta in deltas]
            events.append(sse("content_block_stop", index=i))
        events.append(sse("message_delta", delta={"stop_reason": stop, "stop_sequence": None}, usage=usage))
        self.stream([*events, sse("message_stop")])

    def chat(self, number, step, body):
        calls = [
            {
                "id": f"call_{number:02}_{i}",
                "type": "function",
                "function": {"name": c["name"], "arguments": c.get("raw") or json.dumps(c["arguments"])},
            }
            for i, c in enumerate(step.get("calls", ()))
        ]
        message = {"role": "assistant", "content": step.get("text") or None}
        if calls:
            message["tool_calls"] = calls
        if step.get("thinking"):
            message["reasoning_content"] = step["thinking"]
        usage = {"prompt_tokens": 100 + 10 * number, "completion_tokens": 20, "total_tokens": 120 + 10 * number}
        head = {"id": f"chatcmpl-{number:04}", "created": 1750000000 + number, "model": body.get("model", "scripted")}
        reason = "tool_calls" if calls else "stop"
        if not body.get("stream"):
            choice = {"index": 0, "message": message, "finish_reason": reason}
            self.reply({**head, "object": "chat.completion", "choices": [choice], "usage": usage})
            return
        for i, call in enumerate(calls):
            call["index"] = i
        chunks = [{"index": 0, "delta": message, "finish_reason": None}, {"index": 0, "delta": {}, "finish_reason": reason}]
        lines = [json.dumps({**head, "object": "chat.completion.chunk", "choices": [chunk]}) for chunk in chunks]
        lines.append(json.dumps({**head, "object": "chat.completion.chunk", "choices": [], "usage": usage}))
        self.stream(f"data: {line}\n\n" for line in [*lines, "[DONE]"])

    def items(self, number, step, body):
        items = []
        if step.get("thinking"):
            summary = [{"type": "summary_text", "text": step["thinking"]}]
            items.append({"type": "reasoning", "id": f"rs_{number:04}", "summary": summary, "encrypted_content": "c2VhbGVk"})
        if step.get("text"):
            content = [{"type": "output_text", "text": step["text"], "annotations": []}]
            items.append(
                {"type": "message", "id": f"msg_{number:04}", "role": "assistant", "status": "completed", "content": content}
            )
        for i, call in enumerate(step.get("calls", ())):
            common = {
                "id": f"fc_{number:04}_{i}",
                "call_id": f"call_{number:02}_{i}",
                "name": call["name"],
                "status": "completed",
            }
            if "input" in call:
                items.append({"type": "custom_tool_call", **common, "input": call["input"]})
            else:
                arguments = call.get("raw") or json.dumps(call["arguments"])
                items.append({"type": "function_call", **common, "arguments": arguments})
        usage = {
            "input_tokens": step.get("input_tokens", 100 + 10 * number),
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": 20,
            "output_tokens_details": {"reasoning_tokens": 0},
        }
        usage["total_tokens"] = usage["input_tokens"] + 20
        response = {"id": f"resp_{number:04}", "object": "response", "created_at": 1750000000 + number, "status": "completed"}
        response.update(model=body.get("model", "scripted"), output=items, usage=usage, tools=[], parallel_tool_calls=True)
        response.update(tool_choice="auto", temperature=1.0, top_p=1.0, metadata={}, error=None, incomplete_details=None)
        if not body.get("stream"):
            self.reply(response)
            return
        events = [sse("response.created", response={**response, "status": "in_progress", "output": [], "usage": None})]
        for i, item in enumerate(items):
            events.append(sse("response.output_item.added", output_index=i, item=item))
            events.append(sse("response.output_item.done", output_index=i, item=item))
        self.stream([*events, sse("response.completed", response=response)])


def sse(kind, **fields):
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **fields})}\n\n"


def parts(block):
    """A content block of the Messages interface as its empty start and its deltas."""
    if block["type"] == "text":
        return {"type": "text", "text": ""}, [{"type": "text_delta", "text": block["text"]}]
    if block["type"] == "thinking":
        deltas = [
            {"type": "thinking_delta", "thinking": block["thinking"]},
            {"type": "signature_delta", "signature": block["signature"]},
        ]
        return {"type": "thinking", "thinking": "", "signature": ""}, deltas
    return {**block, "input": {}}, [{"type": "input_json_delta", "partial_json": json.dumps(block["input"])}]


def serve(script, requests: Path, *, plain: bool = False) -> ThreadingHTTPServer:
    """Start the model on a free port; `server.server_address[1]` is it. `plain`: requests without tools are scripted too."""
    handler = type("Scripted", (Handler,), {"model": Model(script, requests, plain)})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


if __name__ == "__main__":
    handler = type("Scripted", (Handler,), {"model": Model(json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2]), False)})
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[3])), handler).serve_forever()
