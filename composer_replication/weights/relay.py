"""Weights over HTTP: a relay reads each object once from its source, checks it, keeps it, and hands it to many pullers.

The source of a relay may be the client of another one, so that relays form a tree.
"""

from __future__ import annotations

import json
import threading
import urllib.error
import urllib.request
from collections import OrderedDict
from contextlib import suppress
from hashlib import sha256
from http.client import HTTPException
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit

from pydantic import TypeAdapter

from composer_replication.diloco.wire import DamagedError, parsed
from composer_replication.types.errors import ConfigError, ObjectStoreError
from composer_replication.weights.manifest import MANIFEST_KEY, MANIFESTS, OBJECT_KEY, WANT_KEY, VersionSource

_KEYS = TypeAdapter(list[str])
_READS = 3


class Relay:
    """Serves the weights of a source while its context is entered. It has no encryption or password: put it where only pullers
    can reach it.

    Args:
        source: a store, or a `RelayClient`.
        host: the address to listen on.
        port: 0 takes a free one.
        cache_bytes: objects that stay in memory, least recently asked for first out.

    Raises:
        ConfigError: the address cannot be listened on.
    """

    def __init__(self, source: VersionSource, *, host: str = "127.0.0.1", port: int = 0, cache_bytes: int = 8 * 2**30) -> None:
        self.source = source
        self._most = cache_bytes
        self._kept: OrderedDict[str, bytes] = OrderedDict()
        self._held = 0
        self._lock = threading.Lock()
        self._reading: dict[str, threading.Lock] = {}
        self.hits = self.misses = self.damaged = 0
        """Objects from memory, objects from the source, and times that the source's bytes did not have their checksum."""
        handler = type("Handler", (_RelayHandler,), {"relay": self})
        try:
            self._server = ThreadingHTTPServer((host, port), handler)
        except (OSError, OverflowError) as error:
            raise ConfigError(f"no relay on {host}:{port}: {error}", fix="name a free port of this machine") from error
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, name="relay", daemon=True)
        self.url = f"http://{host}:{self._server.server_address[1]}"

    def __enter__(self) -> Relay:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def read(self, key: str) -> bytes | None:
        """Return an object, checked, or a manifest as it is; None where there is none, or none that is whole."""
        named = OBJECT_KEY.fullmatch(key)
        if named is None:
            return self.source.get(key)
        with self._lock:
            alone = self._reading.setdefault(key, threading.Lock())
        with alone:  # concurrent requests find it in memory
            data = self._remembered(key)
            if data is None:
                data = self._checked(key, named[2])
        with self._lock:
            self._reading.pop(key, None)
        return data

    def _remembered(self, key: str) -> bytes | None:
        with self._lock:
            data = self._kept.get(key)
            if data is not None:
                self._kept.move_to_end(key)
                self.hits += 1
            return data

    def _checked(self, key: str, mark: str) -> bytes | None:
        for _ in range(_READS):
            data = self.source.get(key)
            if data is None:
                return None
            if sha256(data).hexdigest() == mark:
                self._remember(key, data)
                return data
            with self._lock:
                self.damaged += 1
        return None

    def _remember(self, key: str, data: bytes) -> None:
        with self._lock:
            self.misses += 1
            self._kept[key] = data
            self._held += len(data)
            while self._held > self._most:
                self._held -= len(self._kept.popitem(last=False)[1])


class RelayClient:
    """A source for a `WeightPuller` or another relay that reads from a `Relay`.

    Args:
        url: `http://` or `https://`.
        timeout_s: most to wait for the next bytes of an answer.

    Raises:
        ConfigError: an address of another kind.
    """

    def __init__(self, url: str, *, timeout_s: float = 120.0) -> None:
        if urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).netloc:
            raise ConfigError(f"{url!r} is not an address of a relay", fix="http://HOST:PORT")
        self._url = url.rstrip("/")
        self._timeout_s = timeout_s

    def get(self, key: str) -> bytes | None:
        """Return the whole object; None where there is none."""
        found = self._ask("GET", key)
        return None if found is None else found[1]

    def list(self, prefix: str = "") -> list[str]:
        """Return the keys under a folder, sorted."""
        found = self._ask("GET", f"{prefix}/")
        try:
            return parsed(_KEYS, found[1] if found is not None else b"[]")
        except DamagedError as error:
            raise ObjectStoreError(f"{self.where(prefix)} is not a relay's answer", fix="correct the address") from error

    def create(self, key: str, data: bytes) -> bool:
        """Ask for a whole copy (`wants/`); whether this call was the first."""
        found = self._ask("PUT", key, data)
        return found is not None and found[0] == 201

    def where(self, key: str) -> str:
        """Return the whole address of an object."""
        return f"{self._url}/{key}"

    def _ask(self, method: str, key: str, data: bytes | None = None) -> tuple[int, bytes] | None:
        request = urllib.request.Request(self.where(key), data=data, method=method)
        try:
            with urllib.request.urlopen(request, timeout=self._timeout_s) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as error:
            with error:
                if error.code == 404:
                    return None
                raise ObjectStoreError(f"{self.where(key)}: HTTP {error.code}", fix="see the relay's source") from error
        except (OSError, HTTPException) as error:
            raise ObjectStoreError(f"{self.where(key)}: {error}", fix="see whether the relay runs and is reachable") from error


class _RelayHandler(BaseHTTPRequestHandler):
    """`GET /manifests/`, manifests and objects, and `PUT /wants/SHARD`; 404 for everything else."""

    protocol_version = "HTTP/1.1"
    relay: Relay

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        key = self.path.lstrip("/")
        try:
            if key == f"{MANIFESTS}/":
                self._answer(200, json.dumps(self.relay.source.list(MANIFESTS)).encode())
            elif OBJECT_KEY.fullmatch(key) or MANIFEST_KEY.fullmatch(key):
                data = self.relay.read(key)
                self._answer(404 if data is None else 200, data or b"")
            else:
                self._answer(404, b"")
        except ObjectStoreError as error:
            self._answer(502, str(error).encode())

    def do_PUT(self) -> None:
        key = self.path.lstrip("/")
        empty = self.headers.get("Content-Length", "0") == "0"
        self.close_connection |= not empty  # the incoming body is not read
        try:
            if WANT_KEY.fullmatch(key) and empty:
                self._answer(201 if self.relay.source.create(key, b"") else 200, b"")
            else:
                self._answer(404, b"")
        except ObjectStoreError as error:
            self._answer(502, str(error).encode())

    def _answer(self, status: int, data: bytes) -> None:
        with suppress(ConnectionError):  # the client is gone
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)
