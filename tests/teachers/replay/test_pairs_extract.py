"""`composer pairs extract`: from what `composer replay` read and wrote to a file of pairs."""

from __future__ import annotations

import json

import pytest
from in_process import invoke
from teacher_server import Reply, TeacherServer

from composer_replication.cli import app
from composer_replication.teacher_replay import extract_dpo_pairs, read_answers
from composer_replication.teachers import TeacherAnswer
from composer_replication.types import ToolCall, to_json
from composer_replication.types.errors import ConfigError

TOOL = {"type": "function", "function": {"name": "read_file", "parameters": {"type": "object", "properties": {"path": {}}}}}
STUDENT = '{"name": "read_file", "arguments": {"path": "student.py"}}'


def run(*arguments):
    return invoke(app, "pairs", *arguments)


def state(n):
    return {
        "state_id": f"s{n}",
        "messages": [{"role": "user", "content": f"task {n}"}],
        "student_action": STUDENT,
        "tools": [TOOL],
    }


def answer(n, teacher, path):
    call = ToolCall(call_id="c", name="read_file", arguments={"path": path})
    given = {"error": "HTTP 400"} if path is None else {"tool_calls": (call,)}
    return TeacherAnswer(question_id=f"s{n}", teacher=teacher, family=teacher, **given)


def lines(path):
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


@pytest.fixture
def write(tmp_path):
    """Answers as `{state: paths of the teachers a, b, c}`; None is a failure."""

    def to(script, *, of=range(4)):
        states, answers = tmp_path / "states.jsonl", tmp_path / "answers.jsonl"
        states.write_text("".join(json.dumps(state(n)) + "\n" for n in of))
        told = [answer(n, name, path) for n, paths in script.items() for name, path in zip("abc", paths, strict=True)]
        answers.write_text("".join(json.dumps(to_json(a)) + "\n" for a in told))
        return states, answers

    return to


SCRIPT = {
    0: ("good.py", "./good.py", "other.py"),
    1: ("student.py", "student.py", "x.py"),
    2: ("x.py", "y.py", "./student.py"),
    3: (None, None, None),
}


def test_pairs_a_table_and_what_normalize_takes(write, tmp_path):
    states, answers = write(SCRIPT)
    out = tmp_path / "pairs.jsonl"
    done = run("extract", states, answers, "--out", out)
    assert done.exit_code == 0
    table = {row[0].strip(): int(row[1]) for row in (line.rsplit(maxsplit=1) for line in done.stdout.splitlines()[:-1]) if row}
    assert table == {
        "states": 4,
        "answered by a teacher": 3,
        "SAME clusters": 3,
        "clusters dissolved for contradicting themselves": 0,
        "undecided comparisons": 0,
        "pairs": 1,
        "no pair: the student agrees": 1,
        "no pair: too few teachers agree": 2,
        "no vote: no answer": 3,
    }
    assert done.stdout.splitlines()[-1] == f"1 pairs of 4 states: {out}"
    (pair,) = lines(out)
    (same,) = extract_dpo_pairs([state(n) for n in range(4)], read_answers(answers))
    assert {key: pair[key] for key in same} == same
    assert (pair["tools"], pair["confidence"]) == ([TOOL], pytest.approx(2 / 3))
    assert run("normalize", out, "--out", tmp_path / "normalized.jsonl", "--recipe", recipe(tmp_path)).exit_code == 0
    (normalized,) = lines(tmp_path / "normalized.jsonl")
    assert normalized["metadata"] == {"tools": [TOOL], "confidence": pair["confidence"]}


def recipe(tmp_path):
    path = tmp_path / "own.yaml"
    path.write_text("process:\n  - text_length_filter: {text_key: chosen, min_len: 8}\n")
    return path


def test_a_threshold_of_one_and_of_too_many(write, tmp_path):
    states, answers = write({0: ("good.py", "good.py", None)}, of=[0])
    out = tmp_path / "pairs.jsonl"
    assert run("extract", states, answers, "--out", out, "--threshold", 1).exit_code == 0
    none = run("extract", states, answers, "--out", out, "--threshold", 3)
    assert (none.exit_code, out.read_text()) == (9, "")
    assert "the answers are of 2 families and --threshold is 3: lower it" in none.output


def test_answers_to_other_states_are_counted_and_none_at_all_is_refused(write, tmp_path):
    states, answers = write(SCRIPT, of=[0, 9])
    done = run("extract", states, answers, "--out", tmp_path / "pairs.jsonl")
    assert "answers to other states" in done.stdout
    assert next(line for line in done.stdout.splitlines() if "other states" in line).split()[-1] == "9"
    states, answers = write(SCRIPT, of=[9])
    with pytest.raises(ConfigError, match=r"none of the 12 answers in .* is to a state of"):
        run("extract", states, answers, "--out", tmp_path / "pairs.jsonl")


def test_what_is_read_is_not_written(write):
    states, answers = write(SCRIPT)
    for path, name in ((states, "STATES"), (answers, "ANSWERS")):
        before = path.read_bytes()
        with pytest.raises(ConfigError, match=f"--out and {name} are the same file"):
            run("extract", states, answers, "--out", path)
        assert path.read_bytes() == before


def test_it_reads_what_replay_wrote(tmp_path):
    """Two teachers agree and a third fails."""
    table = '[[teachers]]\nname = "{0}"\nmodel = "{0}"\nbase_url = "{1}"\napi_key_env = ""\nmax_retries = 0\n{2}'
    prices = "usd_per_million_input = 0.0\nusd_per_million_output = 0.0\n"
    states = tmp_path / "states.jsonl"
    states.write_text(json.dumps(state(0)) + "\n")

    def reply(body, _number):
        return Reply(status=400) if body["model"] == "c" else Reply(content="é", calls=[("read_file", {"path": "good.py"})])

    with TeacherServer(reply) as server:
        (tmp_path / "teachers.toml").write_text("".join(table.format(name, server.base_url, prices) for name in "abc"))
        words = [states, "--teachers", tmp_path / "teachers.toml", "--out", tmp_path / "out", "--max-usd", 1]
        assert invoke(app, "replay", *words).exit_code == 6
    assert run("extract", states, tmp_path / "out" / "answers.jsonl", "--out", tmp_path / "pairs.jsonl").exit_code == 0
    (pair,) = lines(tmp_path / "pairs.jsonl")
    assert (json.loads(pair["chosen"])["arguments"], pair["n_teachers_agreeing"]) == ({"path": "good.py"}, 2)
