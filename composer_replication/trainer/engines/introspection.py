"""The policy itself as the writer of hints."""

from __future__ import annotations

from composer_replication.hints import Ask
from composer_replication.rollouts.protocol import SampleRequest
from composer_replication.tokens import ChatRenderer
from composer_replication.trainer.engines.open_engine import PolicyEngine
from composer_replication.types import Message

_MOST_TOKENS = 160
"""Tokens of an answer; two sentences of it make a hint."""
_SESSION = "introspection"


def ask_policy(engine: PolicyEngine, renderer: ChatRenderer) -> Ask:
    """Return a function from a question to the policy's most likely answer, in the weights that its rollouts were sampled from;
    None where the question leaves no room for one. A turn is sampled for each."""

    def ask(text: str) -> str | None:
        ids = renderer.prompt_ids([Message(role="user", content=text)])
        if len(ids) + _MOST_TOKENS > engine.context_window:
            return None
        request = SampleRequest(session=_SESSION, new_ids=ids, max_new_tokens=_MOST_TOKENS, seed=0)
        (said,) = engine.sample([request], temperature=0.0)
        engine.close([_SESSION])
        return renderer.visible_text(said.ids)

    return ask
