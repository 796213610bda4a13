"""A server that speaks as much S3 as obstore asks for, and misbehaves on demand; it counts what goes through it.

`python tests/tools/s3_server.py [FAULT...]` prints `listening on URL` and ends when its standard input is closed.
"""

from __future__ import annotations

import argparse
import re
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape, unescape

_XML = '<?xml version="1.0" encoding="UTF-8"?>'


class Bucket:
    """Objects, faults and counts.

    Faults: `careless` (creates over what is there, as s3rver does), `blind` (lists nothing), `skewed` (finds every clock wrong),
    `full` (507 to every put), `forbidden` (403 to every put), `broken` (500 to everything). `full@20` and the like begin after
    so many puts.
    """

    def __init__(self, faults: tuple[str, ...] = ()) -> None:
        self.faults = {name: int(after or 0) for name, _, after in (fault.partition("@") for fault in faults)}
        self.objects: dict[str, bytes] = {}
        self.lock = threading.Lock()
        self.up = self.down = self.listed = self.requests = self.puts = 0
        """Bytes of objects in and out, bytes of other answers, requests of any kind, and those to put."""

    def faulty(self, name: str) -> bool:
        return name in self.faults and self.puts >= self.faults[name]


class Handler(BaseHTTPRequestHandler):
    """Path-style requests; every bucket is the same one, by the whole path."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # headers and body are two writes: the second would wait for an acknowledgement, 40 ms
    bucket: Bucket

    def log_message(self, *_: Any) -> None:
        pass

    def parse_request(self) -> bool:
        if not super().parse_request():
            return False
        parts = urlsplit(self.path)
        self.key, self.query = unquote(parts.path).lstrip("/"), parse_qs(parts.query, keep_blank_values=True)
        with self.bucket.lock:
            self.bucket.requests += 1
        return True

    def do_GET(self) -> None:
        if self._refused():
            return
        if "list-type" in self.query:
            self._list()
            return
        data = self.bucket.objects.get(self.key)
        if data is None:
            self._answer(404, _error("NoSuchKey", self.key))
            return
        wanted = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        if wanted is None:
            self._answer(200, data, **_facts(data))
            return
        begin, end = int(wanted[1]), min(int(wanted[2]) + 1, len(data))
        if begin >= len(data):
            self._answer(416, _error("InvalidRange", self.key))
            return
        self._answer(206, data[begin:end], **{**_facts(data), "Content-Range": f"bytes {begin}-{end - 1}/{len(data)}"})

    def do_HEAD(self) -> None:
        if self._refused():
            return
        data = self.bucket.objects.get(self.key)
        self.send_response(404 if data is None else 200)
        for name, value in _facts(data or b"").items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data or b"")))
        self.end_headers()

    def do_PUT(self) -> None:
        data = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self._refused(writing=True):
            return
        with self.bucket.lock:
            self.bucket.puts += 1
            self.bucket.up += len(data)
            conditional = self.headers.get("If-None-Match") == "*" and not self.bucket.faulty("careless")
            there = conditional and self.key in self.bucket.objects
            if not there:
                self.bucket.objects[self.key] = data
        if there:
            self._answer(412, _error("PreconditionFailed", self.key))
        else:
            self._answer(200, b"", **_facts(data))

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0))).decode()
        if self._refused(writing=True):
            return
        keys = re.findall(r"<Key>(.*?)</Key>", body)
        for key in keys:
            self.bucket.objects.pop(f"{self.key.rstrip('/')}/{unescape(key)}", None)
        rows = "".join(f"<Deleted><Key>{key}</Key></Deleted>" for key in keys)
        self._answer(200, f"{_XML}<DeleteResult>{rows}</DeleteResult>".encode())

    def do_DELETE(self) -> None:
        if self._refused(writing=True):
            return
        self.bucket.objects.pop(self.key, None)
        self._answer(204, b"")

    def _list(self) -> None:
        prefix = f"{self.key.rstrip('/')}/{self.query.get('prefix', [''])[0]}"
        skip = len(self.key.rstrip("/")) + 1
        with self.bucket.lock:
            found = sorted((key, len(data)) for key, data in self.bucket.objects.items() if key.startswith(prefix))
        if self.bucket.faulty("blind"):
            found = []
        rows = "".join(
            f"<Contents><Key>{escape(key[skip:])}</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified>"
            f"<ETag>&quot;0&quot;</ETag><Size>{size}</Size><StorageClass>STANDARD</StorageClass></Contents>"
            for key, size in found
        )
        self._answer(200, f"{_XML}<ListBucketResult><IsTruncated>false</IsTruncated>{rows}</ListBucketResult>".encode())

    def _refused(self, *, writing: bool = False) -> bool:
        bucket = self.bucket
        if bucket.faulty("broken"):
            self._answer(500, _error("InternalError", self.key))
        elif bucket.faulty("skewed"):
            self._answer(403, _error("RequestTimeTooSkewed", self.key))
        elif writing and bucket.faulty("full"):
            self._answer(507, _error("InsufficientStorage", self.key))
        elif writing and bucket.faulty("forbidden"):
            self._answer(403, _error("AccessDenied", self.key))
        else:
            return False
        return True

    def _answer(self, status: int, body: bytes, **headers: str) -> None:
        with self.bucket.lock:
            if status in (200, 206) and "ETag" in headers:
                self.bucket.down += len(body)
            else:
                self.bucket.listed += len(body)
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        if status != 204:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def _facts(data: bytes) -> dict[str, str]:
    return {"ETag": f'"{len(data)}"', "Last-Modified": "Thu, 01 Jan 2026 00:00:00 GMT"}


def _error(code: str, key: str) -> bytes:
    return f"{_XML}<Error><Code>{code}</Code><Message>{code}</Message><Resource>{escape(key)}</Resource></Error>".encode()


class S3Server:
    """A server of this process, as a context: its address and its bucket."""

    def __init__(self, *faults: str) -> None:
        self.bucket = Bucket(faults)
        handler = type("BoundHandler", (Handler,), {"bucket": self.bucket})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    def __enter__(self) -> S3Server:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


def environment(url: str) -> dict[str, str]:
    """What a client has to be told to talk to a server of one's own; the keys are those that s3rver knows."""
    return {"AWS_ENDPOINT_URL": url, "AWS_ACCESS_KEY_ID": "S3RVER", "AWS_SECRET_ACCESS_KEY": "S3RVER", "AWS_REGION": "us-east-1"}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("faults", nargs="*")
    with S3Server(*parser.parse_args().faults) as server:
        print(f"listening on {server.url}", flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
