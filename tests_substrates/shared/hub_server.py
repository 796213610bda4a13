"""A server that speaks the protocols of the Hugging Face Hub: jobs, which run as processes here, and datasets."""

from __future__ import annotations

import json
import re
import secrets
import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from containers import Container
from hub_datasets import Datasets

TOKEN = "hf_of_the_tests"
FLAVORS = ("cpu-basic", "cpu-upgrade", "a10g-large", "h200x8")


class HubServer(ThreadingHTTPServer):
    """Serves in threads; `url` is its address."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Request)
        self.jobs: dict[str, tuple[dict[str, Any], Container]] = {}
        self.cancelled: set[str] = set()
        self.datasets = Datasets()
        self.out_of_order = False
        """Answer 503."""
        self.unpaid = False
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        self._thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.05}, name="hub-server", daemon=True)
        self._thread.start()

    def close(self) -> None:
        for _, container in self.jobs.values():
            container.close()
        self.shutdown()
        self._thread.join()
        self.server_close()

    def facts(self, job: str) -> dict[str, Any]:
        spec, container = self.jobs[job]
        status = container.status
        stage = "RUNNING" if status is None else "COMPLETED" if status == 0 else "ERROR"
        message = None
        if job in self.cancelled:
            stage = "CANCELED"
        elif container.timed_out:
            message = "Job timeout"
        elif stage == "ERROR":
            message = f"Job failed with exit code: {status}."
        return {
            "id": job,
            "createdAt": "2026-11-20T00:00:00.000Z",
            "owner": {"id": "1", "name": "tester", "type": "user"},
            "status": {"stage": stage, "message": message},
            **{key: spec[key] for key in ("dockerImage", "command", "environment", "flavor", "labels") if key in spec},
        }


class _Request(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: HubServer

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        if not self._welcome() or self._of_a_dataset(b""):
            return
        path = self.path.partition("?")[0]
        if path == "/api/whoami-v2":
            self._say({"name": "tester", "type": "user", "auth": {}})
        elif (match := re.fullmatch(r"/api/jobs/tester/(\w+)(/logs)?", path)) and match[1] in self.server.jobs:
            if match[2]:
                self._stream(self.server.jobs[match[1]][1].printed())
            else:
                self._say(self.server.facts(match[1]))
        else:
            self._say({"error": "Not found"}, 404)

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_PUT(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        if self._welcome() and not self._of_a_dataset(body):
            self._say({"error": "Not found"}, 404)

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        if not self._welcome() or self._of_a_dataset(body):
            return
        if match := re.fullmatch(r"/api/jobs/tester/(\w+)/cancel", self.path):
            job = match[1]
            if self.server.jobs[job][1].status is None:
                self.server.cancelled.add(job)
            self.server.jobs[job][1].terminate()
            self._say({"ok": True})
        elif self.path == "/api/jobs/tester":
            self._begin(json.loads(body))
        else:
            self._say({"error": "Not found"}, 404)

    def _begin(self, spec: dict[str, Any]) -> None:
        if self.server.unpaid:
            return self._say({"error": "Pre-paid credit balance is insufficient"}, 402)
        if spec["flavor"] not in FLAVORS:
            return self._say({"error": f"Invalid flavor: {spec['flavor']}"}, 400)
        job = secrets.token_hex(12)
        environment = {**spec.get("environment", {}), **spec.get("secrets", {})}
        self.server.jobs[job] = spec, Container(spec["command"], environment, spec["timeoutSeconds"])
        return self._say(self.server.facts(job))

    def _welcome(self) -> bool:
        if self.server.out_of_order:
            self._say({"error": "the data center is on fire"}, 503)
        elif self.headers.get("authorization") != f"Bearer {TOKEN}":
            self._say({"error": "Invalid username or password."}, 401)
        else:
            return True
        return False

    def _of_a_dataset(self, body: bytes) -> bool:
        answer = self.server.datasets.answer(self.command, self.path, body, self.server.url)
        if answer is not None:
            self._say(answer[1], answer[0], answer[2])
        return answer is not None

    def _say(self, what: object, status: int = 200, headers: Mapping[str, str] | None = None) -> None:
        body = what if isinstance(what, bytes) else json.dumps(what).encode()
        self.send_response(status)
        for name, value in {"Content-Type": "application/json", "Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _stream(self, text: str) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("connection", "close")
        self.end_headers()
        for line in ["===== Job started", *text.splitlines()]:
            self.wfile.write(f"data: {json.dumps({'data': line, 'timestamp': '2026-11-20T00:00:00.000Z'})}\n\n".encode())
        self.close_connection = True
