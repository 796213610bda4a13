"""One thin layer over obstore: what replicas share is a folder, a bucket, or memory, and nothing else.

A key is a relative path. A put is atomic: an object is there whole, or not at all. The client retries what a server refuses for
the moment (5xx, a dropped connection) until `timeout_s` has passed.
"""

from __future__ import annotations

import asyncio
import copy
import os
import re
import secrets
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, PermissionDeniedError, UnauthenticatedError
from obstore.store import AzureStore, GCSStore, LocalStore, MemoryStore, ObjectStore, S3Store

from composer_replication.types.errors import ConfigError, ObjectStoreError, one_of
from composer_replication.types.secrets import quoted

if TYPE_CHECKING:
    from obstore.store import ClientConfig, RetryConfig, S3Config

LARGEST_PUT = 5 * 10**9
"""Bytes that S3 takes in one request; what is put in parts cannot be put conditionally."""
_SCHEMES = ("file", "s3", "gs", "az", "memory")
_CREDENTIALS = {
    "s3": "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS",
    "az": "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY or AZURE_STORAGE_SAS_KEY",
}
"""Environment variables in which a bucket's client finds its credentials."""
_SECRET_VARIABLES = ("AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_SAS_KEY")
"""Environment variables whose values no message repeats."""
_MEMORY: dict[str, MemoryStore] = {}
"""The stores of this process, by name."""
_PAGE = 1000
_FULL = ("status code: 507", "InsufficientStorage", "QuotaExceeded", "No space left", "XMinioStorageFull", "EntityTooLarge")
_PAST_THE_END = ("StartTooLarge", "InvalidRange", "status code: 416")
_CODE = re.compile(r"<Code>(\w+)</Code>")
_SKEWED = "RequestTimeTooSkewed"


@dataclass
class Traffic:
    """Requests and bytes of payload, to the store (`up`) and from it (`down`). Threads may share one."""

    requests: int = 0
    up: int = 0
    down: int = 0
    parent: Traffic | None = None
    """Traffic that also counts what is counted here."""
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)

    def add(self, *, up: int = 0, down: int = 0) -> None:
        with self._lock:
            self.requests += 1
            self.up += up
            self.down += down
        if self.parent is not None:
            self.parent.add(up=up, down=down)


class Store:
    """Objects under one address. Every failure is an `ObjectStoreError` that names the key.

    Args:
        backend: obstore's.
        uri: the address, for messages; without credentials.
    """

    def __init__(self, backend: ObjectStore, uri: str, *, prefix: str = "") -> None:
        self._backend = backend
        self.uri = uri
        self._prefix = prefix
        self.traffic = Traffic()

    def at(self, prefix: str) -> Store:
        """Return the objects whose keys start with `prefix/`, with a traffic count that also adds to this one's."""
        there = self.counting()
        there._prefix = f"{self._prefix}{prefix}/"
        return there

    def counting(self) -> Store:
        """Return the same objects with a separate traffic count that also adds to this one's."""
        same = copy.copy(self)
        same.traffic = Traffic(parent=self.traffic)
        return same

    def where(self, key: str) -> str:
        """Return the whole address of an object."""
        return f"{self.uri.rstrip('/')}/{self._prefix}{key}"

    def put(self, key: str, data: bytes) -> None:
        """Write an object, over whatever was there."""
        with self._understood("written", key):
            obstore.put(self._backend, self._prefix + key, data, mode="overwrite")
        self.traffic.add(up=len(data))

    def create(self, key: str, data: bytes) -> bool:
        """Write an object unless there is one; whether this call wrote it.

        False is also the answer where a request of this call was lost on the way back and sent again: who needs to know reads.

        Raises:
            ObjectStoreError: as every method; and for more than 5 GB, which no store takes conditionally.
        """
        if len(data) > LARGEST_PUT:
            raise ObjectStoreError(
                f"{self.where(key)} would have {len(data):,} bytes, and one conditional put takes {LARGEST_PUT:,}",
                fix="synchronise the model in more fragments, or with a smaller codec",
            )
        self.traffic.add(up=len(data))
        with self._understood("created", key):
            try:
                obstore.put(self._backend, self._prefix + key, data, mode="create", use_multipart=False)
            except AlreadyExistsError:
                return False
        return True

    def get(self, key: str) -> bytes | None:
        """Return the whole object; None where there is none."""
        return self._read(key, lambda path: obstore.get(self._backend, path).bytes().to_bytes())

    def get_range(self, key: str, start: int, length: int) -> bytes | None:
        """Return `length` bytes from `start`, fewer where the object ends; None where there is none, or it ends before
        `start`."""
        return self._read(key, lambda path: obstore.get_range(self._backend, path, start=start, length=length).to_bytes())

    def get_many(self, asked: Sequence[tuple[str, int, int]]) -> list[bytes | None]:
        """Do `get_range` for several keys, starts and lengths at once: they take as long as one where latency dominates.

        Not from a thread in which an event loop runs.
        """

        async def read(key: str, start: int, length: int) -> bytes | None:
            data = None
            with self._understood("read", key), _unless_absent():
                found = await obstore.get_range_async(self._backend, self._prefix + key, start=start, length=length)
                data = found.to_bytes()
            self.traffic.add(down=len(data or b""))
            return data

        async def read_all() -> list[bytes | None]:
            return await asyncio.gather(*(read(*one) for one in asked))

        if not asked:
            return []
        with self._understood("read", asked[0][0]):  # the loop itself wants file descriptors
            return asyncio.run(read_all())

    def list(self, prefix: str = "") -> list[str]:
        """Return the keys under the folder `prefix`, sorted; all of them without one."""
        skip = len(self._prefix)
        with self._understood("listed", prefix):
            pages = obstore.list(self._backend, self._prefix + prefix or None, chunk_size=_PAGE)
            keys = [str(found["path"])[skip:] for page in pages for found in page]
        self.traffic.add()
        return sorted(keys)

    def exists(self, key: str) -> bool:
        """Return whether there is such an object."""
        self.traffic.add()
        with self._understood("looked at", key):
            try:
                obstore.head(self._backend, self._prefix + key)
            except FileNotFoundError:
                return False
        return True

    def delete(self, *keys: str) -> None:
        """Remove objects; one that is not there is removed already."""
        if not keys:
            return
        paths = [self._prefix + key for key in keys]
        for some in ([path] for path in paths) if isinstance(self._backend, LocalStore) else (paths,):
            self.traffic.add()
            with self._understood("removed", some[0][len(self._prefix) :]), suppress(FileNotFoundError):
                obstore.delete(self._backend, some)

    def _read(self, key: str, read: Callable[[str], bytes]) -> bytes | None:
        data = None
        with self._understood("read", key), _unless_absent():
            data = read(self._prefix + key)
        self.traffic.add(down=len(data or b""))
        return data

    @contextmanager
    def _understood(self, action: str, key: str) -> Iterator[None]:
        try:
            yield
        except (BaseError, OSError, ValueError) as error:
            raise ObjectStoreError(f"{self.where(key)} cannot be {action}: {_said(error)}", fix=_fix(error)) from error


def open_store(uri: str | Path, *, timeout_s: float = 120.0) -> Store:
    """Open the store at an address: a path or `file://` (created where it is missing), `s3://`, `gs://`, `az://`,
    `memory://NAME`.

    Keys, region and endpoint of S3 come from the usual `AWS_*` environment (`AWS_ENDPOINT_URL` for a server of one's own),
    those of the others from theirs (`GOOGLE_*`, `AZURE_STORAGE_*`).

    Args:
        uri: the address; a bucket may be followed by a prefix.
        timeout_s: most for one request, and for all its repetitions.

    Raises:
        ConfigError: an address of another kind or with credentials in it, or settings that its client does not take.
        ObjectStoreError: a folder that cannot be made.
    """
    text = str(uri)
    scheme, separator, rest = text.partition("://")
    if not separator:
        return Store(_folder(Path(text)), text)
    if scheme == "file":
        return Store(_folder(Path(unquote(urlsplit(text).path))), text)
    if scheme == "memory":
        name, _, prefix = rest.partition("/")
        return Store(_MEMORY.setdefault(name, MemoryStore()), text, prefix=f"{prefix.strip('/')}/" if prefix.strip("/") else "")
    if scheme not in _SCHEMES:
        said = f"an address with {scheme}://" if "@" in rest or "?" in rest else repr(text)  # without a secret in it
        raise ConfigError(f"{said} is not an address of an object store", fix=one_of(scheme, _SCHEMES))
    if "?" in rest or any(mark in rest.partition("/")[0] for mark in "@:"):
        raise ConfigError(
            f"the address of the {scheme} store, not repeated here, has more in it than bucket and prefix: credentials?",
            fix=f"write {scheme}://BUCKET/PREFIX, and set {_CREDENTIALS[scheme]} in the environment",
        )
    try:
        return Store(_bucket(scheme, text, timeout_s), text)
    except (BaseError, ValueError, TypeError) as error:
        raise ConfigError(
            f"{text!r} cannot be opened: {_said(error)}", fix="correct the address or the environment it needs"
        ) from error


def check_conditional_writes(store: Store) -> None:
    """Create an object twice, read it, remove it: the protocol of rounds depends on stores that refuse the second.

    Raises:
        ObjectStoreError: the second one was accepted, or the first is not what is read: two replicas could hold different
            outcomes of one round for true.
    """
    key = f"self-test/{secrets.token_hex(8)}"
    store.create(key, b"first")
    twice = store.create(key, b"second")
    found = store.get(key)
    listed = key in store.list("self-test")
    store.delete(key)
    if twice or found != b"first":
        raise ObjectStoreError(
            f"{store.uri} ignores conditional writes: an object was created over one that was there",
            fix="use a store that honours `If-None-Match: *` (S3, GCS, Azure, R2, MinIO, a local folder)",
        )
    if not listed:
        raise ObjectStoreError(
            f"{store.uri} does not list an object that has been written", fix="use a store whose listings are consistent"
        )


def _folder(path: Path) -> LocalStore:
    try:
        return LocalStore(path.expanduser().absolute(), mkdir=True)
    except (BaseError, OSError, ValueError) as error:
        raise ObjectStoreError(f"{path} cannot be a store: {error}", fix="name a folder that can be written") from error


def _bucket(scheme: str, uri: str, timeout_s: float) -> ObjectStore:
    most = timedelta(seconds=timeout_s)
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL") or os.environ.get("AWS_ENDPOINT") or ""
    plain = scheme == "s3" and endpoint.startswith("http://")
    options: ClientConfig = {"timeout": most, "connect_timeout": most / 4, "allow_http": plain}
    again: RetryConfig = {"max_retries": 10, "retry_timeout": most}
    if scheme == "s3":
        config: S3Config = {"endpoint": endpoint} if endpoint else {}
        return S3Store.from_url(uri, config=config, client_options=options, retry_config=again)
    if scheme == "gs":
        return GCSStore.from_url(uri, client_options=options, retry_config=again)
    return AzureStore.from_url(uri, client_options=options, retry_config=again)


def _said(error: Exception) -> str:
    """Return one line of what a client or server says: its words, and for a page of XML the code in it."""
    words, page, rest = str(error).partition("\n\nDebug source")[0].partition("<?xml")
    code = _CODE.search(rest) if page else None
    known = [os.environ.get(name, "") for name in _SECRET_VARIABLES]
    return quoted(" ".join(words.split()), *known, most=400) + (code[1] if code else "")


@contextmanager
def _unless_absent() -> Iterator[None]:
    """Ignore that an object does not exist, or that a range starts where it has ended already."""
    try:
        yield
    except FileNotFoundError:
        pass
    except BaseError as error:
        said = str(error)
        if not any(word in said for word in _PAST_THE_END):
            raise


def _fix(error: Exception) -> str:
    said = str(error)
    if any(word in said for word in _FULL):
        return "free space in the bucket or raise its quota"
    if _SKEWED in said:
        return "set this machine's clock"
    if isinstance(error, PermissionDeniedError | UnauthenticatedError):
        return "check the credentials in the environment, and that they may read, write, list and delete there"
    if "NoSuchBucket" in said:
        return "make the bucket, or correct the address"
    return "see whether the store is reachable from here and try again"
