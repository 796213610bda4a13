"""Credentials leave traces everywhere alike; nothing else changes. Every key here is put together when the tests run."""

from __future__ import annotations

import dataclasses
import random
import string
import sysconfig
from pathlib import Path

import pytest
from hypothesis import given
from made_traces import traces, write_jsonl

from composer_replication.traces import Redactor, import_traces, read_traces
from composer_replication.traces.recorder import ConversationRecorder, native_call
from composer_replication.types import Message, ToolResult
from composer_replication.types.secrets import secrets_in_log
from composer_replication.types.transcript import Trace, TraceTurn

LETTERS = string.ascii_letters + string.digits


def made_up(length: int, alphabet: str = LETTERS) -> str:
    rng = random.Random(length)
    return "".join(rng.choice(alphabet) for _ in range(length))


GITHUB = "gh" + "p_" + made_up(36)
PLAIN = made_up(32)
KEY = "\n".join(["-----BEGIN RSA " + "PRIVATE KEY-----", *[made_up(64)] * 3, "-----END RSA " + "PRIVATE KEY-----"])


def leaky() -> Trace:
    recorder = ConversationRecorder(
        [Message(role="system", content="Be careful."), Message(role="user", content=f"Use {GITHUB} to push.")]
    )
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


@pytest.mark.slow
@given(traces())
def test_a_trace_without_credentials_is_the_same_object(trace):
    assert Redactor().redact(trace) is trace


def test_forms_that_only_logs_hold():
    token = ".".join(["ey" + "J" + made_up(20), "ey" + "J" + made_up(30), made_up(40)])
    found = {s.kind for s in secrets_in_log(f"{token}\nAuthorization: Bearer {PLAIN}\npostgres://app:{made_up(20)}@db/shop\n")}
    assert found == {"JSON web token", "authorization header", "password in a URL"}


HEX = "0123456789abcdef"
SECRETS = {  # kind: a text with a place for the secret, and the secret
    "password-in-a-url": ("postgres://admin:{}@db.internal/app", made_up(11)),
    "password-in-a-url ": ("redis://:{}@cache:6379/0", made_up(24, string.ascii_letters)),
    "groq-key": ("using {} now", "gs" + "k_" + made_up(52)),
    "xai-key": ("using {}, now", "xa" + "i-" + made_up(80)),
    "slack-webhook": (
        "curl {}",
        "https://hooks.slack" + ".com/services/T" + made_up(8, string.ascii_uppercase) + "/B" + made_up(35),
    ),
    "azure-storage-key": ("DefaultEndpointsProtocol=https;AccountName=x;{};", "Account" + "Key=" + made_up(86) + "=="),
    "digitalocean-token": ("doctl ({}).", "do" + "p_v1_" + made_up(64, HEX)),
    "databricks-token": ("{} ", "da" + "pi" + made_up(32, HEX)),
    "telegram-token": ("bot {}", "7123456789:A" + "A" + made_up(33)),
    "terraform-token": ("{}", made_up(14) + ".atlas" + "v1." + made_up(65)),
    "password-of-a-command": ("curl -sS -u admin:{} http://h", made_up(20)),
    "password-of-a-command ": ("mysqldump --password={} shop", made_up(9)),
    "key-in-a-header": ("x-api-key: {}", made_up(40)),
    "key-in-a-header ": ('curl -H "PRIVATE-TOKEN: {}"', made_up(20)),
    "key-in-a-header  ": (r"{{\"x-api-key\": \"{}\"}}", made_up(30, string.ascii_letters)),
    "authorization-header": ("Authorization: Bearer {}", made_up(12, string.ascii_letters)),
    "session-in-a-cookie": ("Set-Cookie: theme=dark; sessionid={}; Path=/", made_up(32)),
    "password-in-a-variable": ("PGPASSWORD={} psql -c 'select 1'", made_up(12)),
    "password": ("password: {}", made_up(14)),
    "password ": ('{{"db_password": "{}"}}', made_up(14)),
    "key-of-a-compatible-server": ("curl -H 'k: {}'", "sk-" + made_up(48)),
}


@pytest.mark.parametrize("kind", SECRETS)
def test_a_secret_as_commands_print_it(kind):
    text, secret = SECRETS[kind]
    found = list(secrets_in_log(text.format(secret)))
    assert found[0].kind.lower().replace(" ", "-") == kind.strip()
    assert {s.text for s in found} == {found[0].text}
    assert found[0].text in secret
    assert len(found[0].text) >= len(secret) - 8


def test_a_credential_in_keys_names_tools_and_ids():
    recorder = ConversationRecorder([Message(role="user", content="go")])
    arguments = {"env": {GITHUB: 1}, "reply": [401, f"token {GITHUB}"]}
    recorder.answer("", [native_call(f"call {GITHUB}", f"f {GITHUB}", arguments)], details={GITHUB: 1})
    recorder.result(ToolResult(call_id=f"call {GITHUB}", name=f"f {GITHUB}", content="ok"))
    recorder.answer("done")
    trace = Trace(
        trajectory_id=GITHUB,
        format="test",
        turns=recorder.turns(),
        messages=recorder.opening,
        tools=({"type": "function", "function": {"name": "f", "description": f"use {GITHUB}"}},),
        task_id=GITHUB,
        agent=GITHUB,
        model=GITHUB,
        details={"x": [1, {GITHUB: GITHUB}]},
    )
    clean = Redactor().redact(trace)
    assert GITHUB not in repr(dataclasses.asdict(clean))
    assert clean.turns[0].tool_calls[0].call_id == clean.turns[0].results[0].call_id == "call [REDACTED:github-token]"


def test_ids_that_were_redacted_are_told_apart(tmp_path):
    others = ["gh" + "p_" + made_up(36)[::-1], GITHUB]
    turns = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}]
    write_jsonl(tmp_path / "a.jsonl", [{"id": name, "messages": turns} for name in others])
    import_traces(tmp_path / "a.jsonl", tmp_path / "out")
    ids = [trace.trajectory_id for trace in read_traces(tmp_path / "out" / "traces.jsonl")]
    assert ids == ["[REDACTED:github-token]", "[REDACTED:github-token]~2"]


def test_recorded_sessions_hold_none():
    """What every import of them would tell: not one of 82 files."""
    files = list((Path(__file__).parent / "fixtures").rglob("*.json*"))
    assert len(files) > 80
    assert [path.name for path in files if list(secrets_in_log(path.read_text("utf-8")))] == []


def test_what_is_no_secret():
    for text in (
        "def login(user: str, password: str) -> None: ...",
        "token = parse(x)",
        "password = get_password_v2(x)",
        "passwd = pw_hash2",
        'headers = {"x-api-key": settings.api_key2, "Authorization": f"Bearer {api_key}"}',
        'headers = {"X-Api-Key": apiKey}',
        "Authorization: Bearer $API_TOKEN",
        'curl -u "$USER:$PASS" http://h',
        "curl -u user:pass http://h",
        "docker run -u 1000:1000 image",
        "https://user:${PASS}@host",
        "https://%s:%s@host",
        "git@github.com:org/repo.git http://localhost:8000/@vite/client",
        "cache-key: linux-py3.11-deps-3f786850",
        "PASSWORD=os.environ['DB_PASSWORD_2']",
        "DB_PASSWORD=$(cat /run/secrets/db)",
        "MYSQL_ROOT_PASSWORD=password123",
        "--password PASSWORD  the password, or - to read it",
        "x-api-key: <your key>",
        "password: [REDACTED:password] and redis://:[REDACTED:password-in-a-url]@cache",
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


@pytest.mark.slow
def test_the_standard_library_holds_next_to_none():
    """Code that is read by agents stays as it is: of the standard library's files, fewer than one in 300 has a guess."""
    files = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    found = [path.name for path in files if list(secrets_in_log(path.read_text("utf-8", "replace")))]
    assert len(files) > 150
    assert len(found) <= len(files) // 150, found


KEY_LINES = ["-----BEGIN PRIVATE KEY-----", *(made_up(64) for _ in range(4)), made_up(20) + "==", "-----END PRIVATE KEY-----"]


@pytest.mark.parametrize(
    "shown", ["{n:6}→{line}", "{n:6}\t{line}", "{n}:{line}", "{n}-{line}", "| {line}", "+{line}", "> {line}"]
)
def test_a_key_between_line_numbers_goes_whole(shown):
    text = "\n".join(shown.format(n=n, line=line) for n, line in enumerate(KEY_LINES, 1))
    for secret in secrets_in_log(text):
        text = text.replace(secret.text, "")
    assert not any(line in text for line in KEY_LINES[1:-1])


@pytest.mark.parametrize("word", ["x-", "foo_bar_", "my pass "])
def test_words_in_the_place_of_a_password_take_no_exponential_time(word):
    assert list(secrets_in_log(f"password={word * 40}#1 and login:{word * 40}#1")) is not None
    assert list(secrets_in_log(f'curl -u "me:{(word * 60).strip()}#1"')) is not None


def test_a_number_is_no_credential_and_a_short_one_goes_where_it_stands_alone():
    text = "curl -u admin:1234 https://h/x; PGPASSWORD=hun-ter2x psql; port 51234 0.1234 sha 9a1234ff xhun-ter2xy hun-ter2x"
    turn = TraceTurn(context=({"role": "user", "content": text},), text="done")
    clean = Redactor().redact(Trace(trajectory_id="t", format="f", turns=(turn,))).turns[0].context[0]["content"]
    assert "admin:1234 " in clean
    assert "port 51234 0.1234 sha 9a1234ff xhun-ter2xy" in clean
    assert clean.count("[REDACTED:") == 2


def test_a_secret_before_a_command():
    secret = made_up(32)
    for text in (
        f"API_TOKEN={secret} python run.py",
        f"export API_TOKEN={secret} && make",
        f"API_TOKEN={secret} make",
        f"AWS_SECRET_ACCESS_KEY={secret} aws s3 ls",
    ):
        assert [s.text for s in secrets_in_log(text)] == [secret], text
