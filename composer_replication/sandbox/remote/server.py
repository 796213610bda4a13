"""The two requests of the SWE-ReX protocol that we use."""

from __future__ import annotations

import json
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp.abc import ResolveResult
from swerex.runtime import abstract

from composer_replication.sandbox.transfer.upload import one_line
from composer_replication.types.errors import SandboxError, SandboxUnavailableError
from composer_replication.types.secrets import without_secrets

SHORT = 1 << 24
"""Most bytes of a reply that is not a command's result."""
_FAILED_THERE = 511
"""The status with which SWE-ReX tells that something failed on its side."""


class Resolver(aiohttp.ThreadedResolver):
    """Looks names up in a thread, and where this process ends and starts none any more, in what it has `found` before."""

    def __init__(self, found: dict[tuple[str, int, int], list[ResolveResult]]) -> None:
        super().__init__()
        self._found = found

    async def resolve(self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET) -> list[ResolveResult]:
        """See `AbstractResolver.resolve`."""
        asked = (host, port, family)
        try:
            self._found[asked] = await super().resolve(host, port, family)
        except RuntimeError as error:
            if asked not in self._found:
                raise OSError(f"no thread can be started to look up {host}") from error
        return self._found[asked]


class SweRexServer:
    """Two requests of SWE-ReX's protocol, by hand, as it may not be trusted.

    SWE-ReX's own client follows redirects with the key, reads replies of any length, and calls whatever Python name the reply
    gives for what failed there.
    """

    def __init__(self, url: str, key: str) -> None:
        self._url = url
        self._headers = {"X-API-Key": key}
        self._addresses: dict[tuple[str, int, int], list[ResolveResult]] = {}

    async def execute(self, argv: Sequence[str], most: int) -> abstract.CommandResponse:
        """Run a program that ends at once and return its output, at most `most` bytes."""
        return abstract.CommandResponse(
            **await self._post("execute", most, json=abstract.Command(command=list(argv)).model_dump())
        )

    async def upload(self, source: Path, target: str) -> None:
        """Put a file there."""
        with source.open("rb") as file:
            form = aiohttp.FormData()
            form.add_field("file", file, filename=source.name)
            form.add_field("target_path", target)
            await self._post("upload", SHORT, data=form)

    async def _post(self, endpoint: str, most: int, **body: Any) -> Any:
        """Post a request and return the reply's JSON."""
        connector = aiohttp.TCPConnector(force_close=True, resolver=Resolver(self._addresses))
        options = {"headers": self._headers, "allow_redirects": False, **body}
        async with (
            aiohttp.ClientSession(connector=connector) as session,
            session.post(f"{self._url}/{endpoint}", **options) as reply,
        ):
            content = bytearray()
            async for piece in reply.content.iter_chunked(1 << 16):
                content += piece
                if len(content) > most:
                    raise SandboxError(f"the reply of {self._url} is longer than {most} bytes")
            if reply.status == _FAILED_THERE:
                message = json.loads(content)["swerexception"]["message"]
                raise SandboxError(
                    f"the server could not do it: {one_line(without_secrets(str(message), self._headers['X-API-Key']))}"
                )
            if 300 <= reply.status < 400:
                fix = "name the address it redirects to"
                raise SandboxUnavailableError(f"the server {self._url} redirects us, and the key goes nowhere else", fix=fix)
            reply.raise_for_status()
            return json.loads(content)
