"""A server that speaks the protocol of SkyPilot's API server, and runs the jobs of its clusters as processes here."""

from __future__ import annotations

import json
import socket
import threading
import time
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import sky
import yaml
from containers import Container
from sky import exceptions
from sky.server import constants
from sky.server.requests import payloads
from sky.server.requests.requests import Request, RequestStatus, ScheduleType
from sky.skylet.job_lib import JobStatus


class SkyServer(ThreadingHTTPServer):
    """Serves in threads, on a socket that listens already."""

    daemon_threads = True

    def __init__(self, listener: socket.socket) -> None:
        super().__init__(listener.getsockname(), _Handler, bind_and_activate=False)
        self.socket.close()
        self.socket = listener
        self.launches: list[tuple[dict[str, Any], dict[str, Any]]] = []
        """What each launch asked for, and the task in it."""
        self.clusters: dict[str, Container] = {}
        self.downed: list[str] = []
        self.fault: Exception | None = None
        """What every launch fails with."""
        self.down_fault: Exception | None = None
        """What every request to take a cluster down fails with."""
        self.answers: dict[str, Request] = {}
        self._thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.05}, name="sky-server", daemon=True)
        self._thread.start()

    def close(self) -> None:
        for container in self.clusters.values():
            container.close()
        self.shutdown()
        self._thread.join()
        self.server_close()

    def launch(self, body: dict[str, Any]) -> Any:
        *_, task = yaml.safe_load_all(body["task"])
        self.launches.append((body, task))
        if self.fault is not None:
            raise self.fault
        environment = {**task.get("envs", {}), **task.get("secrets", {})}
        self.clusters[body["cluster_name"]] = Container(["bash", "-c", task["run"]], environment, 3600)
        return 1, None

    def job_status(self, body: dict[str, Any]) -> Any:
        container = self._cluster(body)
        status = (
            JobStatus.RUNNING if container.status is None else JobStatus.SUCCEEDED if container.status == 0 else JobStatus.FAILED
        )
        return dict.fromkeys(body["job_ids"], status)

    def down(self, body: dict[str, Any]) -> None:
        if self.down_fault is not None:
            raise self.down_fault
        self._cluster(body).kill()
        self.downed.append(body["cluster_name"])

    def _cluster(self, body: dict[str, Any]) -> Container:
        name = body["cluster_name"]
        if name not in self.clusters or name in self.downed:
            raise exceptions.ClusterDoesNotExist(f"Cluster {name!r} does not exist.")
        return self.clusters[name]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: SkyServer

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        if parts.path == "/api/health":
            version = str(constants.API_VERSION)
            facts = {"status": "healthy", "api_version": version, "version": sky.__version__, "commit": sky.__commit__}
            self._say({**facts, "version_on_disk": sky.__version__, "user": None})
        elif parts.path == "/api/get":
            request = self.server.answers[parse_qs(parts.query)["request_id"][0]]
            self._say(request.encode().model_dump())
        else:
            self._say({"detail": "not found"}, 404)

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers.get("content-length", 0))) or b"{}")
        if self.path == "/validate":
            return self._say(None)
        if self.path not in ("/launch", "/job_status", "/down"):
            return self._say({"detail": "not found"}, 404)
        request = Request(
            request_id=str(uuid.uuid4()),
            name=f"sky.{self.path[1:]}",
            entrypoint=len,
            request_body=payloads.RequestBody(),
            status=RequestStatus.SUCCEEDED,
            created_at=time.time(),
            user_id="tester",
            schedule_type=ScheduleType.LONG,
        )
        try:
            request.set_return_value(getattr(self.server, self.path[1:])(body))
        except (exceptions.ClusterDoesNotExist, exceptions.ResourcesUnavailableError, exceptions.NoCloudAccessError) as error:
            request.set_error(error)
            request.status = RequestStatus.FAILED
        self.server.answers[request.request_id] = request
        return self._say({"request_id": request.request_id}, request=request.request_id)

    def _say(self, what: object, status: int = 200, request: str = "") -> None:
        body = json.dumps(what).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.send_header(constants.API_VERSION_HEADER, str(constants.API_VERSION))
        self.send_header(constants.VERSION_HEADER, sky.__version__)
        if request:
            self.send_header("X-Skypilot-Request-ID", request)
        self.end_headers()
        self.wfile.write(body)
