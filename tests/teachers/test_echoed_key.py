"""An endpoint that repeats the key it was sent: no message, no ledger and no file holds it."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import time
import traceback
import urllib.parse

import openai
import pytest
from asking import ask, questions, teacher
from teacher_server import Reply, TeacherServer

from composer_replication.rollouts.serving.http import KEY_VARIABLE, Http, RefusedError
from composer_replication.teachers import Ledger
from composer_replication.teachers.call import NoAnswerError, call
from composer_replication.traces.recorder import native_call
from composer_replication.types.errors import ModelError, TeacherError
from composer_replication.types.secrets import quoted, without_secrets

KEY = "proxy-REDTEAM-9fKq27LmZx81TnVb"
"""Of no issuer's form: only its value tells."""
ISSUED = "sk-or-v1-" + "0f3a9c5d7e1b2846" * 4


WITH_SIGNS = "pk/9fKq+27Lm=Zx81&Tn~Vb>qq?"
"""Base64 of it has a character that URLs cannot take."""


def escaped(text: str, form: str = "\\u{:04x}") -> str:
    return "".join(form.format(ord(character)) for character in text)


def error(status: int, words: str) -> Reply:
    return Reply(status=status, body=json.dumps({"error": {"message": words}}).encode())


REPLIES = {
    "401": error(401, f"bad header: Authorization: Bearer {KEY} \x1b[2J"),
    "403 late in the text": error(403, "x" * 290 + KEY),
    "500": error(500, f"key={KEY}"),
    "400 with another's key": error(400, f"upstream refused {ISSUED}"),
    "an error page": Reply(status=502, body=f"<html>{KEY}</html>".encode()),
    "an answer": Reply(content=f"Your key is {KEY}, ours is {ISSUED}."),
    "a call": Reply(calls=[(f"run_{KEY}", {"command": f"echo {KEY}"})], finish_reason=KEY),
    "escapes in a call": Reply(calls=[("run", f'{{"command": "echo {escaped(KEY)} {escaped(ISSUED)}"}}')]),
    "JSON in JSON": Reply(
        calls=[("run", json.dumps({"patch": json.dumps({"a": [f"{KEY} {ISSUED}"]}).replace("s", escaped("s"))}))]
    ),
    "URL and base64": Reply(content=f"{escaped(KEY, '%{:02X}')} [REDACTED] {base64.b64encode(KEY.encode()).decode()}"),
}


@pytest.mark.parametrize("name", REPLIES)
def test_no_message_and_no_ledger_holds_the_key(name, tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("REDTEAM_KEY", KEY)
    caplog.set_level(logging.DEBUG, logger="composer_replication")
    with TeacherServer(lambda _body, _number: REPLIES[name]) as server, Ledger(tmp_path / "writer.sqlite") as ledger:
        try:
            said = repr(ask([teacher(server, api_key_env="REDTEAM_KEY")], questions(1), ledger=ledger))
        except TeacherError as refused:
            said = "".join(traceback.format_exception(refused))
    assert server.headers[0]["authorization"] == f"Bearer {KEY}"
    said += caplog.text
    files = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    for secret in (KEY, KEY[:20], ISSUED):
        assert secret not in said
        assert secret.encode() not in files
        assert escaped(secret).encode() not in files.replace(rb"\\", b"\\")
        assert base64.b64encode(secret[:18].encode()) not in files
    assert "[REDACTED]" in said or name in ("403 late in the text", "an error page")
    assert "\x1b" not in said


@pytest.mark.parametrize("body", [json.dumps({"error": {"message": KEY}}), json.dumps({"choices": KEY})])
def test_nor_does_the_cause_of_an_error(body):
    async def once(one):
        async with openai.AsyncOpenAI(api_key=KEY, base_url=one.base_url, max_retries=0) as client:
            await call(client, one, questions(1)[0], call_id="c", failed_before=0)

    reply = Reply(status=200 if "choices" in body else 400, body=body.encode())
    with TeacherServer(lambda _body, _number: reply) as server, pytest.raises(NoAnswerError) as failed:
        asyncio.run(once(teacher(server)))
    assert KEY not in "".join(traceback.format_exception(failed.value))


def test_what_is_decoded_later_holds_no_key_either(tmp_path, monkeypatch):
    """An answer's arguments are JSON inside a JSON string, and read once more before they are written."""
    monkeypatch.setenv("REDTEAM_KEY", KEY)
    reply = REPLIES["escapes in a call"]
    with TeacherServer(lambda _body, _number: reply) as server, Ledger(tmp_path / "writer.sqlite") as ledger:
        answers = ask([teacher(server, api_key_env="REDTEAM_KEY")], questions(1), ledger=ledger)
    said = repr(answers)
    assert said.count("[REDACTED] [REDACTED]") == 1, said
    made, raw = native_call("c", "run", without_secrets(reply.calls[0][1], KEY, certain=True))
    assert (made.arguments, raw) == ({"command": "echo [REDACTED] [REDACTED]"}, None)


def test_nor_does_a_message_about_a_rollout_server(monkeypatch):
    monkeypatch.setenv(KEY_VARIABLE, KEY)
    for status in (401, 400, 503):
        with TeacherServer(lambda _body, _number, status=status: error(status, f"not {KEY} \x1b]52;c;QUJD\x07")) as server:
            http = Http(server.base_url, timeout_s=20.0, attempts=1)
            with pytest.raises((ModelError, RefusedError), match="not") as refused:
                http.run(http.post("/x", {"model": "m"}))
            http.end()
        assert KEY not in "".join(traceback.format_exception(refused.value)), "the cause of an error is printed too"
        assert "\x1b" not in str(refused.value)


def test_what_is_taken_out_and_what_is_not():
    assert without_secrets(f"a {KEY} b {ISSUED}", KEY) == "a [REDACTED] b [REDACTED]"
    assert without_secrets("none of them, EMPTY", "none", "EMPTY", "") == "none of them, EMPTY"
    guess = "password = 'hG7x92kQpL41mZ'"
    assert "hG7x92kQpL41mZ" not in without_secrets(guess)
    assert without_secrets(guess, certain=True) == guess


def base64_at(key: str, before: int, after: int, encode=base64.b64encode) -> str:
    return encode(b"?" * before + key.encode() + b"~" * after).decode()


SPELLINGS = {
    "percent, in full": lambda key: escaped(key, "%{:02x}"),
    "percent, reserved only": lambda key: urllib.parse.quote(key, safe=""),
    "percent, twice": lambda key: urllib.parse.quote(urllib.parse.quote(key, safe=""), safe=""),
    "JSON": lambda key: json.dumps(key)[1:-1].replace("/", r"\/"),
    "JSON, in full": escaped,
    "JSON, in capitals": lambda key: escaped(key, "\\u{:04X}"),
    "JSON in JSON in JSON": lambda key: json.dumps(json.dumps(escaped(key))),
    "some characters only": lambda key: key.replace("7", r"\u0037").replace("q", "%71"),
    "Python": lambda key: escaped(key, "\\x{:02x}"),
    "hexadecimal": lambda key: key.encode().hex(),
    "hexadecimal, in capitals": lambda key: key.encode().hex().upper(),
    **{f"base64 after {n} before {m}": lambda key, n=n, m=m: base64_at(key, n, m) for n in range(3) for m in range(3)},
    **{f"base64 of URLs after {n}": lambda key, n=n: base64_at(key, n, 1, base64.urlsafe_b64encode) for n in range(3)},
    "base64 in a URL": lambda key: urllib.parse.quote(base64_at(key, 0, 0), safe=""),
    "base64 in JSON": lambda key: base64_at(key, 1, 1).replace("/", r"\/"),
}


@pytest.mark.parametrize("key", [KEY, WITH_SIGNS])
@pytest.mark.parametrize("name", SPELLINGS)
def test_a_key_is_known_in_every_spelling(name, key):
    written = SPELLINGS[name](key)
    left = without_secrets(f"<{written}>", key)
    assert "[REDACTED]" in left, written
    kept = left[1:-1].replace("[REDACTED]", "").strip('\\"=')
    assert len(kept) <= 8, (written, left)  # what stands before and after it, and two characters that hold a few bits of it
    assert without_secrets(f"<{SPELLINGS[name]('another-one-5rT8kQ2mWz')}>", key).count("[REDACTED]") == 0


def test_spellings_are_searched_in_linear_time():
    for hostile in ("\\" * 400_000, "%25" * 200_000, KEY[:-1] * 20_000, escaped(KEY[:-1]) * 2_000, '{"a":' * 100_000):
        begun = time.process_time()
        without_secrets(hostile, KEY)
        assert time.process_time() - begun < 5.0, hostile[:20]


def test_a_text_is_cut_after_the_key_was_taken_out():
    for before in range(270, 310):
        assert quoted("x " * (before // 2) + KEY, KEY, most=300).count(KEY[:4]) == 0
    for length in (19_900, 19_990, 20_000):
        long = (escaped(KEY) * 500)[:length] + KEY
        assert KEY[:4] not in quoted((escaped(KEY) + " ") * 130 + KEY, KEY, most=20_000), length
        assert "proxy" not in quoted(long, KEY, most=300)
    assert quoted("a\x1b[2Jb", most=300) == r"a\x1b[2Jb"


def test_json_that_holds_no_key_stays_as_it_is():
    for text in ('{"a":  "\\u0041", "a": 1e5}', "[1, NaN]", '{"a": "\\ud800"}', "[" * 5_000 + r'"\\"', '"\\"'):
        assert without_secrets(text, KEY) == text


def test_an_armour_without_a_key_is_read_once() -> None:
    """Each tab could belong to a line's number or stand for itself: a pattern that tries both would not end today."""
    text = "-----BEGIN PRIVATE KEY-----" + "1\t\t\t\t\t" * 200 + "!"
    assert without_secrets(text, certain=True) == text
