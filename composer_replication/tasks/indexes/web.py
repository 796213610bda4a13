"""Bytes of an index on the web, limited in size and time; proxies and certificates are those of the user's environment."""

from __future__ import annotations

import http.client
import urllib.error
import urllib.request
from collections.abc import Mapping

from composer_replication.types.errors import SourceError

_TIME_S = 120


def read_address(address: str, what: str, *, most: int, index: str, fix: str, headers: Mapping[str, str] | None = None) -> bytes:
    """Return what an address answers.

    Args:
        what: what is asked for, and `index` whom, in words for errors.
        most: bytes at most.
        headers: sent to this address, and to no other that it refers to.

    Raises:
        SourceError: it is not there, refused, larger, or cannot be reached.
    """
    request = urllib.request.Request(address)
    for name, value in (headers or {}).items():
        request.add_unredirected_header(name, value)
    try:
        with urllib.request.urlopen(request, timeout=_TIME_S) as response:
            content: bytes = response.read(most + 1)
    except urllib.error.HTTPError as error:
        error.close()
        missing = f"{index} does not have {what}" if error.code == 404 else f"{index} refuses {what} ({error.code})"
        raise SourceError(missing, fix=fix) from error
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise SourceError(f"{what} cannot be fetched: {error}", fix=fix) from error
    if len(content) > most:
        raise SourceError(f"{what} is larger than {most >> 20} MiB", fix=fix)
    return content
