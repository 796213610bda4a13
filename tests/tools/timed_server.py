"""An HTTP server that speaks the wire of vLLM or SGLang, takes a known time for every turn, and serves any number at once.

It says the same words in every turn. The time of a turn is lognormal, drawn from the seed of the request (`turn_seconds`). A turn
whose prompt holds the token ids `hold` is answered only after `GET /release`. `GET /stats` says what it has seen, aborted
requests included. `python tests/tools/timed_server.py KIND JSON` prints `listening on URL` and ends when its standard input is
closed; the JSON object has `reply` (token ids of a turn), `stop` (true where a token ends it), `median_s` and `sigma` of the
times, and `hold`. Only the standard library is used, so that it starts at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import os
import random
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from typing import Any

WINDOW = 1 << 16


def turn_seconds(seed: int, median_s: float, sigma: float) -> float:
    """How long the server takes for the turn with this seed."""
    return median_s * math.exp(random.Random(seed).gauss(0.0, sigma)) if median_s else 0.0


class TimedServer:
    """The handler of all connections."""

    def __init__(self, kind: str, plan: dict[str, Any]) -> None:
        self.kind, self.plan = kind, plan
        self.hold = plan.get("hold") or []
        self.released = asyncio.Event()
        self.label = "default"
        self.stats = {"sampling": 0, "most": 0, "answered": 0, "aborted": 0}

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, until its other end closes it."""
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
                path = head[0].split()[1].partition("?")[0]
                lengths = [int(line.split(":")[1]) for line in head if line.lower().startswith("content-length:")]
                body = await reader.readexactly(lengths[0]) if lengths else b""
                reply = await self.answer(path, json.loads(body) if body else {}, reader)
                if reply is None:
                    break
                text = json.dumps(reply).encode()
                status = b"404 Not Found" if reply == {} else b"200 OK"
                writer.write(b"HTTP/1.1 %s\r\nContent-Length: %d\r\n\r\n%s" % (status, len(text), text))
                await writer.drain()
        writer.close()

    async def answer(self, path: str, body: dict[str, Any], reader: asyncio.StreamReader) -> Any:
        """The JSON reply; None when the other end has gone, an empty one for an unknown path."""
        if path in ("/generate", "/v1/completions"):
            return await self.sample(body, reader)
        if path == "/release":
            self.released.set()
        if path == "/label":
            self.label = "another"
        if path in ("/stats", "/release", "/label"):
            return self.stats
        if self.kind == "vllm":
            return {
                "/version": {"version": "0.32.0"},
                "/v1/models": {"data": [{"id": "policy", "max_model_len": WINDOW}]},
                "/weight_info": {"weight_version": self.label},
            }.get(path, {})
        return {
            "/model_info": {"weight_version": self.label},
            "/server_info": {"enable_deterministic_inference": True},
            "/v1/models": {"data": [{"id": "policy", "max_model_len": WINDOW}]},
        }.get(path, {})

    async def sample(self, body: dict[str, Any], reader: asyncio.StreamReader) -> Any:
        """A turn after its time; None when the other end has gone meanwhile."""
        options = body.get("sampling_params", body)
        prompt = body.get("input_ids") or body.get("prompt") or []
        limit = options.get("max_new_tokens") or options.get("max_tokens")
        top = body.get("top_logprobs_num") or (body.get("logprobs") if self.kind == "vllm" else 0)
        if not top:  # a probe is answered at once
            self.stats["sampling"] += 1
            self.stats["most"] = max(self.stats["most"], self.stats["sampling"])
            gone = await self.wait(options.get("sampling_seed", options.get("seed")), prompt, reader)
            self.stats["sampling"] -= 1
            self.stats["aborted" if gone else "answered"] += 1
            if gone:
                return None
        ids = self.plan["reply"][:limit]
        tops = {ids[0]: -0.5, ids[0] + 1: -0.5 - 4.0 / max(options["temperature"], 1e-3)} if top else {}
        return self.vllm(prompt, ids, tops) if self.kind == "vllm" else self.sglang(prompt, ids, tops)

    async def wait(self, seed: int, prompt: list[int], reader: asyncio.StreamReader) -> bool:
        """Whether the other end has gone before the turn's time was over."""
        held = self.hold and any(prompt[i : i + len(self.hold)] == self.hold for i in range(len(prompt)))
        pause = self.released.wait() if held else asyncio.sleep(turn_seconds(seed, self.plan["median_s"], self.plan["sigma"]))
        tasks = asyncio.create_task(reader.read(1)), asyncio.ensure_future(pause)
        done, waiting = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in waiting:
            task.cancel()
        await asyncio.wait(tasks)
        return tasks[0] in done

    def vllm(self, prompt: list[int], ids: list[int], tops: dict[int, float]) -> dict[str, Any]:
        logprobs = {"token_logprobs": [-0.5] * len(ids), "top_logprobs": [{f"token_id:{i}": p for i, p in tops.items()}]}
        ended = "stop" if len(ids) == len(self.plan["reply"]) and self.plan["stop"] else "length"
        choice = {"token_ids": ids, "prompt_token_ids": prompt, "logprobs": logprobs, "finish_reason": ended}
        return {"model": "policy", "choices": [choice]}

    def sglang(self, prompt: list[int], ids: list[int], tops: dict[int, float]) -> dict[str, Any]:
        about = {
            "finish_reason": {"type": "stop" if len(ids) == len(self.plan["reply"]) and self.plan["stop"] else "length"},
            "prompt_tokens": len(prompt),
            "weight_version": self.label,
            "output_token_logprobs": [[-0.5, i, None] for i in ids],
            "output_top_logprobs": [[[p, i, None] for i, p in tops.items()]],
        }
        return {"output_ids": ids, "meta_info": about}


@contextlib.contextmanager
def timed_server(kind: str, **plan: Any) -> Iterator[str]:
    """The address of a server in a process of its own, while the body runs."""
    program = [sys.executable, os.path.abspath(__file__), kind, json.dumps({"median_s": 0.0, "sigma": 1.0, "stop": True} | plan)]
    with subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        try:
            yield process.stdout.readline().split()[-1]
        finally:
            process.stdin.close()


def ask(url: str, path: str = "stats") -> dict[str, int]:
    """What the server has seen; `release` answers the turns that are held, `label` makes it say that it has other weights."""
    with urllib.request.urlopen(f"{url}/{path}") as reply:
        return json.load(reply)


async def main(kind: str, plan: str) -> None:
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    server = await asyncio.start_server(TimedServer(kind, json.loads(plan)).serve, "127.0.0.1", 0, backlog=4096)
    print(f"listening on http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    threading.Thread(target=lambda: (sys.stdin.read(), loop.call_soon_threadsafe(ended.set)), daemon=True).start()
    await ended.wait()
    os._exit(0)  # connections that are still open need no goodbye


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
