"""An endpoint that repeats the key it was sent: no message, no ledger and no file holds it."""

from __future__ import annotations

import json
import logging

import pytest
from asking import ask, questions, teacher
from teacher_server import Reply, TeacherServer

from composer_replication.rollouts.serving.http import KEY_VARIABLE, Http, RefusedError
from composer_replication.teachers import Ledger
from composer_replication.types.errors import ModelError, TeacherError
from composer_replication.types.secrets import without_secrets

KEY = "proxy-REDTEAM-9fKq27LmZx81TnVb"
"""Of no issuer's form: only its value tells."""
ISSUED = "sk-or-v1-" + "0f3a9c5d7e1b2846" * 4


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
}


@pytest.mark.parametrize("name", REPLIES)
def test_no_message_and_no_ledger_holds_the_key(name, tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("REDTEAM_KEY", KEY)
    caplog.set_level(logging.DEBUG, logger="composer_replication")
    with TeacherServer(lambda _body, _number: REPLIES[name]) as server, Ledger(tmp_path / "writer.sqlite") as ledger:
        try:
            said = repr(ask([teacher(server, api_key_env="REDTEAM_KEY")], questions(1), ledger=ledger))
        except TeacherError as refused:
            said = str(refused)
    assert server.headers[0]["authorization"] == f"Bearer {KEY}"
    said += caplog.text
    files = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    for secret in (KEY, KEY[:20], ISSUED):
        assert secret not in said
        assert secret.encode() not in files
    assert "[REDACTED]" in said or name in ("403 late in the text", "an error page")
    assert "\x1b" not in said


def test_nor_does_a_message_about_a_rollout_server(monkeypatch):
    monkeypatch.setenv(KEY_VARIABLE, KEY)
    for status in (401, 400, 503):
        with TeacherServer(lambda _body, _number, status=status: error(status, f"not {KEY} \x1b]52;c;QUJD\x07")) as server:
            http = Http(server.base_url, timeout_s=20.0, attempts=1)
            with pytest.raises((ModelError, RefusedError), match="not") as refused:
                http.run(http.post("/x", {"model": "m"}))
            http.end()
        assert KEY not in str(refused.value)
        assert "\x1b" not in str(refused.value)


def test_what_is_taken_out_and_what_is_not():
    assert without_secrets(f"a {KEY} b {ISSUED}", KEY) == "a [REDACTED] b [REDACTED]"
    assert without_secrets("none of them, EMPTY", "none", "EMPTY", "") == "none of them, EMPTY"
    guess = "password = 'hG7x92kQpL41mZ'"
    assert "hG7x92kQpL41mZ" not in without_secrets(guess)
    assert without_secrets(guess, certain=True) == guess
