"""What Hugging Face's client raises, as errors of ours."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from composer_replication.types.errors import BackendError, ConfigError
from composer_replication.types.secrets import quoted

_REFUSED, _UNPAID = (401, 403), 402
_LATER = (408, 429)


@contextmanager
def hub_errors(*, may: str) -> Iterator[None]:
    """Turn what the client, which is installed, raises in the body into errors of ours.

    Args:
        may: what a token has to be allowed, as the end of a sentence.

    Raises:
        ConfigError: there is no token, or the Hub refuses it or the request.
        BackendError: the Hub fails or does not answer.
    """
    errors: Any = importlib.import_module("huggingface_hub.errors")
    try:
        yield
    except errors.LocalTokenNotFoundError as error:
        raise ConfigError("there is no token of Hugging Face", fix="run `hf auth login`, or set HF_TOKEN") from error
    except errors.HfHubHTTPError as error:
        raise _refusal(error, may) from error
    except (errors.HTTPError, errors.LocalEntryNotFoundError) as error:  # the first of any HTTP client it may use
        fix = "see whether it can be reached from here, and try again"
        raise BackendError(f"Hugging Face does not answer: {error}", fix=fix) from error


def _refusal(error: Any, may: str) -> ConfigError | BackendError:
    status = error.response.status_code
    said = quoted(" ".join((error.server_message or str(error)).split()), most=300)
    if status in _REFUSED:
        fix = f"set HF_TOKEN to a token that may {may}, or run `hf auth login`"
        return ConfigError(f"Hugging Face refuses the token ({status}): {said}", fix=fix)
    if status == _UNPAID:
        return ConfigError(f"Hugging Face wants to be paid: {said}", fix="add credits, or name another namespace")
    if status < 500 and status not in _LATER:
        return ConfigError(f"Hugging Face refuses the request ({status}): {said}", fix="correct what it names")
    return BackendError(f"Hugging Face failed ({status}): {said}", fix="try again")
