"""The fastest OpenAI-compatible server: one canned completion. `with canned_server() as url` runs it in a process of its own."""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator

_COMPLETION = {
    "id": "x",
    "object": "chat.completion",
    "created": 0,
    "model": "canned",
    "choices": [
        {
            "index": 0,
            "message": {
                "role": "assistant",
                "content": "Look at the test first.",
                "tool_calls": [
                    {
                        "id": "c0",
                        "type": "function",
                        "function": {"name": "read_file", "arguments": '{"path": "tests/test_shop.py", "start": 1, "end": 80}'},
                    }
                ],
            },
            "finish_reason": "tool_calls",
        }
    ],
    "usage": {"prompt_tokens": 1200, "completion_tokens": 40, "total_tokens": 1240, "cost": 0.0042},
}
_BODY = json.dumps(_COMPLETION).encode()
_ANSWER = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (len(_BODY), _BODY)


async def _serve_one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            length = int(head.partition(b"content-length:")[2].partition(b"\r\n")[0])
            await reader.readexactly(length)
            writer.write(_ANSWER)
            await writer.drain()
    writer.close()


async def _main() -> None:
    server = await asyncio.start_server(_serve_one, "127.0.0.1", 0, backlog=256, limit=1 << 20)
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    server.close()


@contextlib.contextmanager
def canned_server() -> Iterator[str]:
    """Its base URL."""
    with subprocess.Popen([sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        yield process.stdout.readline().strip()
        process.stdin.close()


if __name__ == "__main__":
    asyncio.run(_main())
