"""A proxy in front of OpenAI-compatible servers that fails in every way a network and a provider can, and bills like a provider.

Usage: `python tests/tools/fault_proxy.py CONFIG.json` with
`{"bill": PATH, "seed": N, "routes": {NAME: {"upstream": URL, "input": USD, "output": USD}}, "faults": {KIND: SHARE}}`.
`/NAME/v1/...` goes to the upstream's URL; prices are per million tokens. Prints `listening on URL`, ends with standard input.

It bills every request that the upstream has answered with 200, at the upstream's token counts, in a line of `bill` that is on the
disk before the first byte of the answer leaves. Whether the answer arrives does not matter to it. Requests it answers itself are
free. A line names the caller's id of the call, and how many requests were in the proxy at that moment.
"""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import random
import socket
import struct
import sys
import threading
import time
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

FREE = ("storm", "server error", "reset before", "hang before", "bad gateway")
"""Faults of requests that never reach the upstream."""
BILLED = ("reset after", "hang after", "gateway timeout", "truncated", "garbled", "drip", "drip to the end")
PRICES = {
    "negative": -1.0,
    "huge": 1e9,
    "text": "free",
    "not a number": float("nan"),
    "zero": 0.0,
    "missing": None,
    "no usage": None,
}
KINDS = (*FREE, *BILLED, *(f"price {kind}" for kind in PRICES))
STORM = 24
"""Requests of a route that a storm of 429s hits one after the other."""


class Proxy:
    def __init__(self, config: dict) -> None:
        self.routes = config["routes"]
        self.faults = config["faults"]
        assert set(self.faults) <= set(KINDS)
        self._rng = random.Random(config["seed"])
        self._mutex = threading.Lock()
        self._storms: Counter[str] = Counter()
        self._bill = os.open(config["bill"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self.in_flight = 0

    def fault(self, route: str) -> str:
        with self._mutex:
            if self._storms[route] > 0:
                self._storms[route] -= 1
                return "storm"
            kind = self._rng.choices([*self.faults, ""], [*self.faults.values(), 1 - sum(self.faults.values())])[0]
            if kind == "storm":
                self._storms[route] = STORM - 1
            return kind

    def count(self, change: int) -> None:
        with self._mutex:
            self.in_flight += change

    def bill(self, line: dict) -> None:
        with self._mutex:
            os.write(self._bill, (json.dumps(line | {"in_flight": self.in_flight}) + "\n").encode())
            os.fsync(self._bill)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    proxy: Proxy

    def do_POST(self) -> None:
        self.proxy.count(1)
        try:
            _, route, path = self.path.split("/", 2)
            body = self.rfile.read(int(self.headers["Content-Length"]))
            fault = self.proxy.fault(route)
            if fault in FREE:
                self.fail(fault)
            else:
                self.forward(route, path, body, fault)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True
        finally:
            self.proxy.count(-1)

    def fail(self, fault: str) -> None:
        if fault == "storm":
            self.answer(429, b'{"error": {"message": "slow down"}}', {"Retry-After": "1"})
        elif fault == "server error":
            self.answer(500, b'{"error": {"message": "oops"}}')
        elif fault == "bad gateway":
            self.answer(502, b"<html>bad gateway</html>")
        elif fault == "reset before":
            self.reset()
        else:
            self.hang()

    def forward(self, route: str, path: str, body: bytes, fault: str) -> None:
        terms = self.proxy.routes[route]
        status, answer = ask(f"{terms['upstream']}/{path}", body)
        if status != 200:
            self.answer(status, answer)
            return
        completion = json.loads(answer)
        usage = completion["usage"]
        usd = (usage["prompt_tokens"] * terms["input"] + usage["completion_tokens"] * terms["output"]) / 1e6
        call_id = self.headers["X-Client-Request-Id"]
        request = hashlib.sha256(body).hexdigest()
        self.proxy.bill({"call_id": call_id, "usd": usd, "route": route, "request": request, "fault": fault})
        usage["cost"] = usd
        if fault.startswith("price "):
            kind = fault.removeprefix("price ")
            usage["cost"] = PRICES[kind]
            if kind == "missing":
                del usage["cost"]
            if kind == "no usage":
                del completion["usage"]
        self.deliver(fault, json.dumps(completion).encode())

    def deliver(self, fault: str, answer: bytes) -> None:
        if fault == "reset after":
            self.reset()
        elif fault == "hang after":
            self.hang()
        elif fault == "gateway timeout":
            self.answer(504, b"<html>gateway timeout</html>")
        elif fault == "truncated":
            self.answer(200, answer[: len(answer) // 2], {"Content-Length": str(len(answer))})
            self.close_connection = True
        elif fault == "garbled":
            self.answer(200, answer[: len(answer) // 2])
        elif fault in ("drip", "drip to the end"):
            self.drip(answer, pieces=8 if fault == "drip to the end" else len(answer), pause_s=0.05 if "end" in fault else 0.5)
        else:
            self.answer(200, answer)

    def answer(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.start(status, {"Content-Length": str(len(body))} | (headers or {}))
        self.wfile.write(body)
        self.wfile.flush()

    def start(self, status: int, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in ({"Content-Type": "application/json"} | headers).items():
            self.send_header(name, value)
        self.end_headers()

    def drip(self, answer: bytes, *, pieces: int, pause_s: float) -> None:
        """Bytes that keep coming, so that no limit between two of them is reached."""
        self.start(200, {"Content-Length": str(len(answer))})
        size = -(-len(answer) // pieces)
        for start in range(0, len(answer), size):
            self.wfile.write(answer[start : start + size])
            self.wfile.flush()
            time.sleep(pause_s)

    def hang(self) -> None:
        """Say nothing until the caller gives up."""
        self.connection.settimeout(600)
        self.close_connection = True
        self.connection.recv(1)

    def reset(self) -> None:
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close_connection = True
        self.connection.close()
        raise ConnectionResetError

    def log_message(self, *args: object) -> None:
        pass


def ask(url: str, body: bytes) -> tuple[int, bytes]:
    parts = urlsplit(url)
    upstream = http.client.HTTPConnection(parts.hostname, parts.port, timeout=600)
    try:
        upstream.request("POST", parts.path, body, {"Content-Type": "application/json"})
        reply = upstream.getresponse()
        return reply.status, reply.read()
    finally:
        upstream.close()


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256

    def handle_error(self, request: object, client_address: object) -> None:
        """A caller that was killed is no error of ours; anything else is told."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


def main(arguments: list[str]) -> int:
    Handler.proxy = Proxy(json.loads(Path(arguments[0]).read_text()))
    server = Server(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(f"listening on http://127.0.0.1:{server.server_address[1]}", flush=True)
    sys.stdin.read()
    server.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
