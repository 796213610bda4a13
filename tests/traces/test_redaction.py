"""Credentials leave traces everywhere alike; nothing else changes. Every key here is put together when the tests run."""

from __future__ import annotations

import dataclasses
import random
import string
import sysconfig
from pathlib import Path

from hypothesis import given
from made_traces import traces

from composer_replication.credentials import secrets_in_log
from composer_replication.traces import Redactor
from composer_replication.traces.recorder import Recorder, native_call
from composer_replication.transcript import Trace
from composer_replication.types import Message, ToolResult

LETTERS = string.ascii_letters + string.digits


def made_up(length: int, alphabet: str = LETTERS) -> str:
    rng = random.Random(length)
    return "".join(rng.choice(alphabet) for _ in range(length))


GITHUB = "gh" + "p_" + made_up(36)
PLAIN = made_up(32)
KEY = "\n".join(["-----BEGIN RSA " + "PRIVATE KEY-----", *[made_up(64)] * 3, "-----END RSA " + "PRIVATE KEY-----"])


def leaky() -> Trace:
    recorder = Recorder([Message(role="system", content="Be careful."), Message(role="user", content=f"Use {GITHUB} to push.")])
    recorder.answer(
        f"I use {GITHUB}", [native_call("c1", "bash", {"command": f"git push https://x:{GITHUB}@host"})], reasoning=GITHUB
    )
    recorder.result(ToolResult(call_id="c1", name="bash", content=f"API_TOKEN={PLAIN}\nno\n{KEY}\nend"))
    recorder.answer("", [native_call("c2", "http", {"headers": {"api_key": PLAIN}})], details={"note": PLAIN, "token_ids": [1]})
    recorder.answer(f"The bare word {PLAIN} again.")
    return Trace(trajectory_id="t", format="test", turns=recorder.turns(), messages=recorder.opening)


def test_a_credential_is_gone_from_everywhere():
    redactor = Redactor()
    trace = redactor.redact(leaky())
    said = repr(dataclasses.asdict(trace))
    for secret in (GITHUB, PLAIN, KEY, made_up(64)):
        assert secret not in said
    assert (
        trace.turns[1].context[-1]["content"] == "API_TOKEN=[REDACTED:secret-in-an-assignment]\nno\n[REDACTED:private-key]\nend"
    )
    assert trace.turns[0].results[0].content == trace.turns[1].context[-1]["content"]
    assert trace.turns[0].text == "I use [REDACTED:github-token]"
    assert trace.turns[2].text == "The bare word [REDACTED:secret-in-an-assignment] again."
    assert trace.turns[1].details == {"note": "[REDACTED:secret-in-an-assignment]"}
    assert dict(redactor.counts) == {"github-token": 1, "secret-in-an-assignment": 1, "private-key": 1}
    assert trace.turns[1].context[0] is trace.turns[2].context[0]


def test_redacting_twice_changes_nothing():
    once = Redactor().redact(leaky())
    again = Redactor()
    assert again.redact(once) is once
    assert not again.counts


@given(traces())
def test_a_trace_without_credentials_is_the_same_object(trace):
    assert Redactor().redact(trace) is trace


def test_forms_that_only_logs_hold():
    token = ".".join(["ey" + "J" + made_up(20), "ey" + "J" + made_up(30), made_up(40)])
    found = {s.kind for s in secrets_in_log(f"{token}\nAuthorization: Bearer {PLAIN}\npostgres://app:{made_up(20)}@db/shop\n")}
    assert found == {"JSON web token", "authorization header", "password in a URL"}


def test_what_is_no_secret():
    for text in (
        "postgres://postgres:postgres@localhost/db",
        "https://user:password@example.com",
        "Authorization: Bearer {token}",
        "Authorization: Basic YOUR_TOKEN_HERE_PLEASE",
        "commit 3f786850e387550fdab836ed7e6dc881de23001b",
        "sha256-47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=",
        "    t2u_token = self.config.t2u_pad_token_id\n",
        "token_ids = tokenizer.encode(text_with_16_digits_0123456789)",
    ):
        assert list(secrets_in_log(text)) == [], text


def test_the_standard_library_holds_next_to_none():
    """Code that is read by agents stays as it is: of the standard library's files, fewer than one in 300 has a guess."""
    files = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    found = [path.name for path in files if list(secrets_in_log(path.read_text("utf-8", "replace")))]
    assert len(files) > 150
    assert len(found) <= len(files) // 150, found
