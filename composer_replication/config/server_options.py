"""Options of `vllm serve`, read as its parser reads them."""

from __future__ import annotations

import re
from collections.abc import Sequence

_OWN = ("--model", "--served-model-name", "--host", "--port", "--uds", "--logprobs-mode")
_KEY = "--api-key"
_SHARE = "--gpu-memory-utilization"


def option_name(word: str) -> str:
    """Return the name of an option without its value, with dashes for underscores; empty for a word that is a value."""
    return re.split(r"[=.]", word, maxsplit=1)[0].replace("_", "-") if word.startswith("--") else ""


def option_value(words: Sequence[str], option: str) -> str | None:
    """Return the value that the last mention of an option gives it; None where there is none."""
    for place in reversed(range(len(words))):
        if option_name(words[place]) == option:
            _, assigned, value = words[place].partition("=")
            return value if assigned else next(iter(words[place + 1 :]), None)
    return None


def memory_share(words: Sequence[str]) -> float:
    """Return the share of a GPU's memory that a server takes with these options where it shares the GPU, by default one half.

    Raises ValueError when the share is none.
    """
    given = option_value(words, _SHARE)
    share = 0.5 if given is None else float(given)
    if not 0.0 < share <= 1.0:
        raise ValueError(given)
    return share


def why_not(word: str) -> tuple[str, str] | None:
    """Return why an option may not be given to the server that a run starts, and what to do; None for every other word. The
    beginning of a name counts as the name."""
    name = option_name(word)
    if len(name) < len("--x"):
        return None
    if _KEY.startswith(name):
        return f"{word} would be in the run's files", "put the key in the environment variable COMPOSER_SERVER_KEY"
    own = next((option for option in _OWN if option.startswith(name)), None)
    return None if own is None else (f"{word} is the run's to choose ({own})", f"remove {word} and its value")
