"""Answers of an index that are none: each is an error of the source, also where they are no HTTP."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable

import pytest

from composer_replication.languages.java.jars.repositories import _answer
from composer_replication.sandbox.web import read_address
from composer_replication.types.errors import SourceError


def once(said: bytes) -> str:
    """Answer the next connection with these bytes; return the address."""
    listening = socket.create_server(("127.0.0.1", 0))

    def answer() -> None:
        with listening, listening.accept()[0] as visitor:
            visitor.recv(65536)
            visitor.sendall(said)

    threading.Thread(target=answer, daemon=True).start()
    return f"http://127.0.0.1:{listening.getsockname()[1]}/x"


def of_an_index(address: str) -> bytes | None:
    return read_address(address, "it", most=1000, index="the index", fix="no")


def of_maven(address: str) -> bytes | None:
    return _answer(address, 1000)


@pytest.mark.parametrize("read", [of_an_index, of_maven])
@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"hello\r\n\r\n",
        b"HTTP/1.1 banana\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\nshort",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 200 + b"\r\n",
        b"HTTP/1.1 302 Found\r\nLocation: ftp://[\r\n\r\n",
    ],
)
def test_what_is_no_answer_is_an_error_of_the_source(
    said: bytes, read: Callable[[str], bytes | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("no_proxy", "*")
    with pytest.raises(SourceError):
        read(once(said))
