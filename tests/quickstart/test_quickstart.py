"""The quickstart from end to end with hardly any training: every part runs, everything is recorded, and nothing is done twice."""

from __future__ import annotations

import json
import os
import socket
from collections import Counter
from pathlib import Path

import pytest

from composer_replication.languages.python.functions import find_functions
from composer_replication.loss.forward.models import save_policy
from composer_replication.observe import RunDir, Terminal
from composer_replication.quickstart import run as quickstart
from composer_replication.quickstart.language import HOUSE_TERMS, modules, project_path
from composer_replication.quickstart.policy import tiny_model, tiny_tokenizer
from composer_replication.quickstart.serve import TeacherServer
from composer_replication.quickstart.teachers import served
from composer_replication.tasks.folders import load_tasks
from composer_replication.types import Deletion
from composer_replication.types.errors import ConfigError, ModelError


def untouched(folder: Path) -> dict[str, float]:
    return {str(p): p.stat().st_mtime for p in folder.rglob("*") if p.is_file()}


@pytest.mark.slow
@pytest.mark.nightly
def test_both_arms_from_nothing_and_nothing_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(quickstart, "WARM_START_STEPS", 40)
    monkeypatch.setattr(quickstart, "ENOUGH", 0.0)
    monkeypatch.setattr(quickstart, "TEACHER_STEPS", 2)
    run_path = tmp_path / "runs" / "quick"
    quickstart.run_quickstart(run_path, seed=3, steps=1, sandbox="auto")
    output = capsys.readouterr().out
    for row in ("warm start", *quickstart.ARMS):
        assert f"| {row} " in output
    assert f"report: {run_path / 'report.html'}" in output
    assert (run_path / "report.html").stat().st_size > 50_000

    tasks = tmp_path / "runs" / "quick.prepared" / "tasks"
    assert {part: len(load_tasks(tasks / part)) for part in ("train", "held_out")} == {"train": 32, "held_out": 15}, (
        "a table of its tests' answers solves foundry's cope_mark"
    )
    metrics = RunDir(run_path).read_metrics()
    assert [(m.arm, m.step) for m in metrics] == [(arm, step) for arm in quickstart.ARMS for step in (0, 1)]
    assert all("eval/pass_at_1" in m.values for m in metrics)
    assert all(m.values["rollout/total"] >= 4 * 15 for m in metrics)
    summary = json.loads((run_path / "summary.json").read_text())
    assert "warm start" in json.dumps(summary)

    before = untouched(tmp_path / "runs" / "quick.prepared") | untouched(run_path / "ckpt")
    quickstart.run_quickstart(run_path, seed=3, steps=1, sandbox="auto")
    assert RunDir(run_path).read_metrics() == metrics
    assert untouched(tmp_path / "runs" / "quick.prepared") | untouched(run_path / "ckpt") == before
    with pytest.raises(ConfigError, match="another seed"):
        quickstart.prepare(tmp_path / "runs" / "quick.prepared", Terminal(), seed=4, sandbox="auto")


def test_every_term_is_trained_and_held_out() -> None:
    """Held-out tasks ask for nothing that training tasks do not teach: of each house term's six rules, two are held out."""
    sides: Counter[tuple[str, bool]] = Counter()
    for module in modules():
        root = project_path(module.path.partition("/")[0])
        for function in find_functions(module.path, (root / module.path).read_bytes())[0]:
            deleted = Deletion(path=function.path, qualname=function.qualname, lines=function.lines)
            term = (root / module.path).read_text().split(f"def {function.qualname}(")[1].split("The ")[1].split()[0]
            sides[term, quickstart.is_held_out(deleted)] += 1
    assert sides == {(term, held_out): 2 if held_out else 4 for term in HOUSE_TERMS for held_out in (False, True)}


@pytest.mark.slow
def test_a_warm_start_that_ignores_hints_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without use of hints the hint channel would teach noise."""
    for name in ("WARM_START_STEPS", "MORE_STEPS"):
        monkeypatch.setattr(quickstart, name, 1)
    monkeypatch.setattr(quickstart, "_build", lambda *_: None)
    with pytest.raises(ModelError, match="the warm start of seed 5 does not use hints") as raised:
        quickstart.prepare(tmp_path / "world", Terminal(), seed=5, sandbox="auto")
    assert "--seed" in str(raised.value)
    assert not (tmp_path / "world" / "policy").exists()


def test_a_name_that_is_none_is_refused_before_any_work(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is not a name for a run"):
        quickstart.run_quickstart(tmp_path / "my run", seed=0, steps=1, sandbox="auto")
    assert not list(tmp_path.iterdir())


def children() -> list[int]:
    """Of this process; they stay in /proc until it has waited for them."""
    return [int(pid) for task in Path("/proc/self/task").iterdir() for pid in (task / "children").read_text().split()]


@pytest.mark.slow
def test_ctrl_c_in_a_terminal_does_not_reach_the_teachers(tmp_path: Path) -> None:
    """A terminal interrupts its whole foreground process group; the server ends when its standard input does."""
    tokenizer = tiny_tokenizer()
    save_policy(tiny_model(tokenizer, 0, hidden=32, layers=1), tokenizer, tmp_path / "aft")
    with served({"aft": tmp_path / "aft"}):
        mine = [pid for pid in children() if b"quickstart.serve" in Path(f"/proc/{pid}/cmdline").read_bytes()]
        assert len(mine) == 1
        assert os.getpgid(mine[0]) != os.getpgrp()
    assert not Path(f"/proc/{mine[0]}").exists()


def test_the_teachers_take_all_connections_of_a_replay_at_once() -> None:
    """Before any of them is accepted; beyond the server's queue a connection hangs or is reset."""
    server = TeacherServer()
    open_ones = [socket.create_connection(server.server_address, timeout=3) for _ in range(3 * 32)]
    for one in open_ones:
        one.close()
    server.server_close()
