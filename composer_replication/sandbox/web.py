"""Bytes from the web, limited in size and time; proxies and certificates are those of the user's environment."""

from __future__ import annotations

import http.client
import urllib.error
import urllib.request
from collections.abc import Mapping

from composer_replication.types.errors import SourceError

_TIME_S = 120
_MISSING = (404, 410)


def fetch_bytes(address: str, *, most: int, headers: Mapping[str, str] | None = None) -> bytes | None:
    """Return what an address answers; None where it says that nothing is there.

    Args:
        most: bytes at most.
        headers: sent to this address, and to no other that it refers to.

    Raises:
        OSError: it cannot be reached, is refused (`urllib.error.HTTPError`), or its answer is none, not whole, or larger.
    """
    try:
        request = urllib.request.Request(address)
        for name, value in (headers or {}).items():
            request.add_unredirected_header(name, value)
        with urllib.request.urlopen(request, timeout=_TIME_S) as response:
            content: bytes = response.read(most + 1)
            left = getattr(response, "length", None)  # what another scheme answers, after a redirection, has none
    except urllib.error.HTTPError as error:
        error.close()
        if error.code in _MISSING:
            return None
        raise
    except (ValueError, http.client.HTTPException) as error:
        raise OSError(f"its answer cannot be read: {type(error).__name__}: {error}") from error
    if len(content) > most:
        raise OSError(f"it is larger than {most >> 20} MiB")
    if left:
        raise OSError(f"its answer ends {left} bytes too early")
    return content


def read_address(address: str, what: str, *, most: int, index: str, fix: str, headers: Mapping[str, str] | None = None) -> bytes:
    """Return what an address answers, as `fetch_bytes`.

    Args:
        what: what is asked for, and `index` whom, in words for errors.

    Raises:
        SourceError: it is not there, refused, larger, or cannot be reached.
    """
    try:
        content = fetch_bytes(address, most=most, headers=headers)
    except urllib.error.HTTPError as error:
        raise SourceError(f"{index} refuses {what} ({error.code})", fix=fix) from error
    except OSError as error:
        raise SourceError(f"{what} cannot be fetched: {error}", fix=fix) from error
    if content is None:
        raise SourceError(f"{index} does not have {what}", fix=fix)
    return content
