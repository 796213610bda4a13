"""What an import takes in of a folder: logs, once, and never what imports have written."""

from __future__ import annotations

from pathlib import Path

import pytest
from made_traces import write_jsonl

from composer_replication.traces import import_traces, read_traces

CHAT = {"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]}


def named(name):
    return {**CHAT, "id": name}


@pytest.mark.parametrize("out", ["traces", "deep/er", ".", "../elsewhere"])
def test_the_result_is_no_input(tmp_path, out):
    home = tmp_path / "home"
    write_jsonl(home / "a.jsonl", [named("a")])
    write_jsonl(home / "deep" / "b.jsonl", [named("b")])
    for _ in range(3):
        (home / ".traces.jsonl.tmp").write_text('{"trajectory_id": "cut", "turns": []}\n')  # of an import that was killed
        done = import_traces(home, home / out)
        assert done.traces == {"openai-chat": 2}
        assert done.problems == []


def test_the_result_is_found_through_a_link_and_from_within(tmp_path, monkeypatch):
    home = tmp_path / "home"
    write_jsonl(home / "a.jsonl", [CHAT])
    (tmp_path / "link").symlink_to(home)
    monkeypatch.chdir(home)
    for path, out in ((Path(), Path("traces")), (tmp_path / "link", home / "traces"), (home, tmp_path / "link" / "traces")):
        assert import_traces(path, out).traces == {"openai-chat": 1}


def test_an_earlier_import_elsewhere_is_a_log_like_any(tmp_path):
    write_jsonl(tmp_path / "home" / "a.jsonl", [CHAT])
    import_traces(tmp_path / "home", tmp_path / "once")
    assert import_traces(tmp_path / "once" / "traces.jsonl", tmp_path / "twice").traces == {"composer": 1}


def test_every_trace_has_an_id_of_its_own(tmp_path):
    write_jsonl(tmp_path / "a.jsonl", [named(name) for name in ("x~2", "x", "x", "x~2", "x", "x~3")])
    import_traces(tmp_path / "a.jsonl", tmp_path / "out")
    ids = [trace.trajectory_id for trace in read_traces(tmp_path / "out" / "traces.jsonl")]
    assert ids == ["x~2", "x", "x~3", "x~2~2", "x~4", "x~3~2"]


def test_names_of_files_are_told_on_one_line(tmp_path):
    for name in ("a\nerror: all is well.jsonl", "b\x1b[2Jc.jsonl", "d\u2028e.jsonl"):
        (tmp_path / name).write_text("{")
    told = [str(problem) for problem in import_traces(tmp_path, tmp_path / "out").problems]
    assert len(told) == 3
    assert all(line.isprintable() for line in told)
    assert "a\\nerror: all is well.jsonl: not JSON" in told[0]
