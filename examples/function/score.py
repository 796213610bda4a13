"""Score an answer: the reward of examples/function/run.toml."""

from __future__ import annotations


def keyword_share(answer: str, keywords: list[str]) -> float:
    """Return the share of a prompt's keywords that the answer has."""
    return sum(word in answer.lower() for word in keywords) / len(keywords)
