"""`composer replay`, from files to files."""

from __future__ import annotations

import json
import sqlite3

import pytest
import typer
from in_process import invoke
from teacher_server import Reply, TeacherServer, question_text

from composer_replication.cli.replay_cmd import EXIT_INCOMPLETE, read_states, replay
from composer_replication.teachers import wire_messages
from composer_replication.types.errors import ConfigError, TeacherError

app = typer.Typer()
app.command()(replay)

TEACHER = """
[[teachers]]
name = "{name}"
model = "{name}"
base_url = "{url}"
api_key_env = ""
usd_per_million_input = 0.0
usd_per_million_output = 1000.0
max_tokens = 100
max_retries = 0
"""


def run(*arguments):
    return invoke(app, *arguments)


def state(n, **more):
    return {"state_id": f"s{n}", "messages": [{"role": "user", "content": f"step {n}"}], "student_action": "x", **more}


@pytest.fixture
def files(tmp_path):
    """Writes states and teachers, and gives the command's arguments."""

    def write(server, *, states=None, names="ab"):
        lines = [json.dumps(s) for s in (states if states is not None else [state(n) for n in range(3)])]
        (tmp_path / "states.jsonl").write_text("\n".join(lines))
        (tmp_path / "teachers.toml").write_text("".join(TEACHER.format(name=n, url=server.base_url) for n in names))
        return tmp_path / "states.jsonl", "--teachers", tmp_path / "teachers.toml", "--out", tmp_path / "out"

    return write


def answers(tmp_path):
    return [json.loads(line) for line in (tmp_path / "out" / "answers.jsonl").read_text().splitlines()]


def test_answers_and_a_table_and_then_nothing_is_asked_again(files, tmp_path):
    usage = {"prompt_tokens": 10, "completion_tokens": 5, "cost": 0.01, "prompt_tokens_details": {"cached_tokens": 4}}

    def answer(body, number):
        if body["model"] == "b" and "1" in question_text(body):
            return Reply(status=400)
        return Reply(content="hm", calls=[("look", {"at": body["model"]})], usage_fields=usage)

    with TeacherServer(answer) as server:
        result = run(*files(server), "--max-usd", 5, "--json")
        assert result.exit_code == EXIT_INCOMPLETE == 6
        first, second = json.loads(result.stdout)["teachers"]
        assert first == {
            "teacher": "a",
            "asked": 3,
            "answered": 3,
            "from_cache": 0,
            "failed": {},
            "prompt_tokens": 30,
            "cached_tokens": 12,
            "completion_tokens": 15,
            "paid_usd": pytest.approx(0.03),
            "held_usd": 0.0,
        }
        assert (second["answered"], second["failed"], second["paid_usd"]) == (2, {"refused": 1}, pytest.approx(0.02))
        assert json.loads((tmp_path / "out" / "spend.json").read_text()) == json.loads(result.stdout)
        told = answers(tmp_path)
        assert [(a["question_id"], a["teacher"], a["failure"]) for a in told] == [
            (f"s{n}", t, "refused" if (n, t) == (1, "b") else None) for n in range(3) for t in "ab"
        ]
        assert told[0]["tool_calls"][0]["arguments"] == {"at": "a"}
        again = run(*files(server), "--max-usd", 5)
        assert again.exit_code == 6
        assert len(server.requests) == 7
        assert "1 refused" in again.output
        assert "are in the ledger" not in result.stderr
        assert again.output.startswith("5 of 6 answers are in the ledger\n")


def test_complete_is_zero_and_shown(files, tmp_path):
    with TeacherServer(lambda body, n: Reply(content="x", cost=0.01)) as server:
        result = run(*files(server, names="a"), "--max-usd", 1)
    assert result.exit_code == 0
    row = next(line for line in result.output.splitlines() if "0.0300" in line and "|" in line)
    assert [cell.strip() for cell in row.split("|")] == ["", "a", "3", "3", "0", "none", "30", "0", "15", "0.0300", "0.0000", ""]
    assert "$0.0300 paid and $0.0000 held" in result.output


def test_a_state_of_a_trajectory_is_asked_in_its_turn(files):
    states = [state(n, trajectory_id="t", turn=3 - n) for n in range(3)]
    with TeacherServer(lambda body, n: Reply(content="x")) as server:
        run(*files(server, states=states, names="a"), "--max-usd", 1)
        assert [question_text(b) for b in server.requests] == ["step 2", "step 1", "step 0"]


def test_a_bill_frees_what_is_held(files, tmp_path):
    """Two calls broke off; the provider billed one of them."""

    def answer(body, number):
        return Reply(content="x", cut=number < 2, cost=0.01)

    with TeacherServer(answer) as server:
        arguments = files(server, states=[state(0)], names="a")
        with pytest.raises(TeacherError, match=r"\$0\.2000 is held for calls that may have been billed"):
            run(*arguments, "--max-usd", 0.25)
        assert json.loads((tmp_path / "out" / "spend.json").read_text())["held_usd"] == pytest.approx(0.2)
        with pytest.raises(TeacherError, match="read the bill"):
            run(*arguments, "--max-usd", 0.25)
        db = sqlite3.connect(tmp_path / "out" / "ledger.sqlite")
        (call_id,) = db.execute("SELECT call_id FROM calls LIMIT 1").fetchone()
        db.close()
        (tmp_path / "bill.jsonl").write_text(json.dumps({"call_id": call_id, "usd": 0.02}) + "\n")
        result = run(*arguments, "--max-usd", 0.25, "--bill", tmp_path / "bill.jsonl", "--json")
        assert result.exit_code == 0
        spend = json.loads(result.stdout)
        assert (spend["paid_usd"], spend["held_usd"]) == (pytest.approx(0.03), 0.0)
        assert "of $0.2000 held, 1 calls were billed and 1 were not" in result.stderr


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (['{"state_id": "s"}'], r"line 1: messages: field required"),
        ([json.dumps(state(0)), "{"], r"line 2: invalid json"),
        ([json.dumps(state(0, turn=-1))], r"line 1: turn: "),
        ([json.dumps(state(0) | {"messages": [{"role": "robot", "content": ""}]})], r"line 1: messages\.0\.role: "),
        ([json.dumps(state(0) | {"messages": []})], r"line 1: messages: "),
        (["", " "], r"has no states"),
        ([json.dumps(state(0)), json.dumps(state(0))], r"two states have the state_id 's0'"),
    ],
)
def test_states_that_are_none_are_named(tmp_path, lines, message):
    path = tmp_path / "states.jsonl"
    path.write_text("\n".join(lines))
    with pytest.raises(ConfigError, match=message):
        read_states(path)


def test_states_of_one_id_are_refused_before_anything_is_written(files, tmp_path):
    with TeacherServer(lambda body, n: Reply(content="x")) as server:
        with pytest.raises(ConfigError, match="two states have the state_id"):
            run(*files(server, states=[state(0), state(0)]), "--max-usd", 1)
        assert (server.requests, (tmp_path / "out").exists()) == ([], False)


CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}


@pytest.mark.parametrize("content", [{}, {"content": None}])
def test_no_text_beside_calls_as_openai_has_it(tmp_path, content):
    line = state(0)
    line["messages"].append({"role": "assistant", **content, "tool_calls": [CALL]})
    (tmp_path / "states.jsonl").write_text(json.dumps(line))
    (read,) = read_states(tmp_path / "states.jsonl")
    assert wire_messages(read["messages"])[-1] == {"role": "assistant", "content": "", "tool_calls": [CALL]}


@pytest.mark.parametrize("call", [5, {"id": "c"}, {**CALL, "function": {"name": "f"}}])
def test_a_call_that_no_teacher_could_be_shown(tmp_path, call):
    line = state(0)
    line["messages"].append({"role": "assistant", "content": None, "tool_calls": [call]})
    (tmp_path / "states.jsonl").write_text(json.dumps(line))
    with pytest.raises(ConfigError, match=r"line 1: messages\.\d\.tool_calls\.0"):
        read_states(tmp_path / "states.jsonl")


def test_states_keep_what_they_say(tmp_path):
    line = state(0, tools=[{"type": "function"}], task_id="task", extra={"a": 1})
    line["messages"].append({"role": "assistant", "content": "", "tool_calls": [CALL]})
    (tmp_path / "states.jsonl").write_text(json.dumps(line))
    assert read_states(tmp_path / "states.jsonl") == [line]
    with pytest.raises(ConfigError, match="cannot be read"):
        read_states(tmp_path / "none.jsonl")


def test_a_missing_file_is_told_before_a_missing_key(tmp_path, monkeypatch):
    monkeypatch.delenv("ABSENT_KEY", raising=False)
    (tmp_path / "teachers.toml").write_text(TEACHER.format(name="a", url="http://127.0.0.1:9").replace('""', '"ABSENT_KEY"'))
    (tmp_path / "states.jsonl").write_text(json.dumps(state(0)))
    options = ("--teachers", tmp_path / "teachers.toml", "--out", tmp_path / "out", "--max-usd", 1)
    with pytest.raises(ConfigError, match=r"none\.jsonl cannot be read"):
        run(tmp_path / "none.jsonl", *options)
    with pytest.raises(ConfigError, match=r"bill\.jsonl cannot be read"):
        run(tmp_path / "states.jsonl", *options, "--bill", tmp_path / "bill.jsonl")
    with pytest.raises(ConfigError, match="ABSENT_KEY is not set"):
        run(tmp_path / "states.jsonl", *options)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "teachers is missing"),
        ("teachers = []", "teachers = "),
        ('[[teachers]]\nname = "a"\nmodle = "m"', r"unknown key 'teachers\.0\.modle'"),
        ("[[teachers]", "not valid TOML"),
        ('[[teachers]]\nname = "a"\nmodel = "m"\nbase_url = "localhost:80/v1"', "teacher 'a': base_url is 'localhost:80/v1'"),
    ],
)
def test_teachers_that_are_none_are_named(files, tmp_path, text, message):
    with TeacherServer(lambda body, n: Reply(content="x")) as server:
        arguments = files(server)
        (tmp_path / "teachers.toml").write_text(text)
        with pytest.raises(ConfigError, match=message):
            run(*arguments, "--max-usd", 1)
        assert server.requests == []


def test_answers_that_a_file_loses_are_told(files, tmp_path):
    """Fewer states into the same folder: the file shrinks, the ledger does not, and the money is labelled as the ledger's."""
    with TeacherServer(lambda body, n: Reply(content="x", cost=0.01)) as server:
        first = run(*files(server), "--max-usd", 5)
        assert "replaced" not in first.output
        assert "replaced" not in run(*files(server), "--max-usd", 5).output
        fewer = run(*files(server, states=[state(0)]), "--max-usd", 5)
        assert "6 answers replaced by 2 in " in fewer.output.replace("\n", " ")
        assert "4 are to other states" in fewer.output.replace("\n", " ")
        assert "USD in ledger" in fewer.output
        (tmp_path / "out" / "answers.jsonl").write_text("no json\n")
        assert "held no answers and is replaced" in run(*files(server), "--max-usd", 5).output.replace("\n", " ")
    assert len(answers(tmp_path)) == 6
