"""JSON over HTTP to a sampling server. Free requests are retried, and every failure is reported in one sentence.

A connection that is refused and the statuses 429 and 503 are tried again, with growing pauses. A connection that breaks while the
server is at work is not: the server was killed or crashed, and another one in its place may hold other weights.
"""

from __future__ import annotations

import asyncio
import json
import os
import threading
import weakref
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

from composer_replication.types.errors import ConfigError, ModelError
from composer_replication.types.secrets import quoted

if TYPE_CHECKING:
    import openai

KEY_VARIABLE = "COMPOSER_SERVER_KEY"
"""Environment variable with the server's `--api-key`, where it has one."""

_CONNECT_S = 10.0
_LONGEST_MESSAGE = 500
"""Characters of a server's error that are shown."""
_BUSY = frozenset({429, 503})
_NEVER_SENT = frozenset({"ConnectError", "ConnectTimeout"})
"""Names of transport errors before a request has left; by name, because their library depends on the version of openai."""

T = TypeVar("T")


class RefusedError(Exception):
    """The server answered with an error.

    Args:
        status: of HTTP, from 400.
        message: the server's own words.
    """

    def __init__(self, url: str, path: str, status: int, message: str) -> None:
        super().__init__(message)
        self.url, self.path, self.status, self.message = url, path, status, message

    def as_model_error(self, fix: str = "look at the server's log") -> ModelError:
        """Convert it to a ModelError when there is nothing more specific to say."""
        return ModelError(f"{self.url}{self.path} answered HTTP {self.status}: {self.message}", fix=fix)


class Http:
    """One server. `run` and `submit` carry out coroutines that call `get` and `post`; its connections stay open between runs.

    Args:
        url: of the server's root, `http://HOST:PORT`.
        timeout_s: most seconds without a byte from the server.
        attempts: at a request that costs nothing when it fails.
        key: the server's; None for that of the sampling server (`KEY_VARIABLE`).
    """

    def __init__(self, url: str, *, timeout_s: float, attempts: int, key: str | None = None) -> None:
        import openai  # takes half a second

        if not url.startswith(("http://", "https://")):
            raise ConfigError(f"{url!r} is not an address of a server", fix="write it as http://HOST:PORT")
        self.url = url.rstrip("/").removesuffix("/v1")
        self._timeout_s, self._attempts = timeout_s, attempts
        self._client = openai.AsyncOpenAI(
            api_key=(os.environ.get(KEY_VARIABLE) if key is None else key) or "none",
            base_url=self.url,
            timeout=openai.Timeout(timeout_s, connect=min(_CONNECT_S, timeout_s)),
            max_retries=0,
        )
        self._loop = asyncio.new_event_loop()
        thread = threading.Thread(target=self._loop.run_forever, name="serving", daemon=True)
        thread.start()
        self._finalizer = weakref.finalize(self, _end, self._loop, thread, self._client)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run `work` in a separate thread and return its result: the caller may already be in an event loop."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def submit(self, work: Coroutine[Any, Any, T]) -> T:
        """Run `work` as `run` does, without blocking the caller's event loop. Cancelling it aborts the request that `work` waits
        for."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))

    def end(self) -> None:
        """Close the connections, for good. Happens by itself when the program ends."""
        self._finalizer()

    async def get(self, path: str) -> Any:
        """Send a GET request; returns what `post` returns."""
        return await self._ask("GET", path, None)

    async def post(self, path: str, body: dict[str, Any] | None = None) -> Any:
        """Send a POST request and return the answer: JSON data, or its text when it is not JSON.

        Raises:
            RefusedError: a status from 400 that does not pass by itself.
            ModelError: the server cannot be reached, stays busy, dies, does not answer in time, or wants a key.
        """
        return await self._ask("POST", path, body)

    async def _ask(self, method: str, path: str, body: dict[str, Any] | None) -> Any:
        import openai

        for attempt in range(1, self._attempts + 1):
            try:
                return _parsed(await self._send(method, path, body))
            except openai.APIStatusError as error:
                failure = self._refused(path, error)
                if error.status_code not in _BUSY:
                    raise failure from None  # the cause quotes the server, key and all
            except openai.APITimeoutError as error:
                if type(error.__cause__).__name__ not in _NEVER_SENT:
                    raise self._silent(path) from None
                failure = self._unreachable(error)
            except openai.APIConnectionError as error:
                if type(error.__cause__).__name__ not in _NEVER_SENT:
                    raise self._broken(path, error) from None
                failure = self._unreachable(error)
            if attempt < self._attempts:
                await asyncio.sleep(min(4.0, 0.125 * 2**attempt))
        raise failure

    async def _send(self, method: str, path: str, body: dict[str, Any] | None) -> str:
        if method == "GET":
            return await self._client.get(path, cast_to=str)
        return await self._client.post(path, cast_to=str, body=body)

    # --- error messages ---------------------------------------------------------------------------------------------------

    def _refused(self, path: str, error: openai.APIStatusError) -> ModelError | RefusedError:
        if error.status_code in (401, 403):
            return ModelError(
                f"{self.url}{path} answered HTTP {error.status_code}: {self._words(error)}",
                fix=f"put the server's key into the environment variable {KEY_VARIABLE}",
            )
        if error.status_code in _BUSY:
            return ModelError(
                f"{self.url}{path} is busy: HTTP {error.status_code} {self._attempts} times in a row: {self._words(error)}",
                fix="wait until it has started or other clients leave it room",
            )
        return RefusedError(self.url, path, error.status_code, self._words(error))

    def _unreachable(self, error: openai.APIConnectionError) -> ModelError:
        return ModelError(
            f"no server can be reached at {self.url}: {self._clean(str(error.__cause__ or error))}",
            fix="start it and wait until it answers, or correct the address",
        )

    def _broken(self, path: str, error: openai.APIConnectionError) -> ModelError:
        return ModelError(
            f"the connection to {self.url}{path} broke before the answer was whole: {self._clean(str(error.__cause__ or error))}",
            fix="the server was killed or crashed: look at its log, start it again, then repeat the command",
        )

    def _silent(self, path: str) -> ModelError:
        return ModelError(
            f"{self.url}{path} sent nothing for {self._timeout_s:g} s",
            fix="raise the limit if one answer may take that long; otherwise look at the server's log",
        )

    def _words(self, error: openai.APIStatusError) -> str:
        """Return the server's own message: vLLM's is an object, SGLang's an object or a text."""
        body = error.body if isinstance(error.body, dict) else {}
        said = body.get("message") or body.get("detail") or error.response.text or error.message
        return self._clean(" ".join(str(said).split()))

    def _clean(self, said: str) -> str:
        """Make a server's words fit for a message: without the key it was sent, without control characters, and short."""
        return quoted(said, self._client.api_key, most=_LONGEST_MESSAGE)


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _end(loop: asyncio.AbstractEventLoop, thread: threading.Thread, client: openai.AsyncOpenAI) -> None:
    asyncio.run_coroutine_threadsafe(client.close(), loop).result()
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()
