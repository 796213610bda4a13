"""`loss.replay.pairs`: a policy trains on pairs of other agents, in its own chat template."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from in_process import composer_here
from teacher_server import Reply, TeacherServer
from world import name_teachers

from composer_replication.config import RunConfig, load_config, resolve_arm
from composer_replication.observe import RunDir, deterministic
from composer_replication.quickstart.policy import tiny_tokenizer
from composer_replication.tokens import ChatRenderer
from composer_replication.trainer.pairs.pairs_file import FilePairs, file_pairs, shuffled
from composer_replication.types.errors import ConfigError

TOOL = {
    "type": "function",
    "function": {"name": "Bash", "description": "run", "parameters": {"type": "object", "properties": {}}},
}
LIST = '{"name": "Bash", "arguments": {"command": "ls"}}'


def pair(n: int, chosen: str = LIST, rejected: str = "I stop here.", **extra: Any) -> dict[str, Any]:
    """A pair at the third turn of another agent: its messages are as an API has them, arguments in JSON, no content."""
    call = {"id": "toolu_1", "type": "function", "function": {"name": "Bash", "arguments": '{"command": "pwd"}'}}
    messages = [
        {"role": "system", "content": "You are another agent."},
        {"role": "user", "content": f"task {n}"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "toolu_1", "content": "/work"},
    ]
    return {
        "state_id": f"theirs#{n}", "state_messages": messages, "chosen": chosen, "rejected": rejected,
        "n_teachers_agreeing": 2, "tools": [TOOL], **extra,
    }  # fmt: skip


def write(path: Path, *pairs: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(p) + "\n" for p in pairs))
    return path


def name_pairs(run_file: Path, *pairs: dict[str, Any]) -> Path:
    """Beside the run file, which names them relative to its folder."""
    data = tomllib.loads(run_file.read_text())
    data.setdefault("loss", {}).setdefault("replay", {})["pairs"] = "theirs.jsonl"
    run_file.write_text(tomli_w.dumps(data))
    return write(run_file.parent / "theirs.jsonl", *pairs)


def finish(*words: str, cwd: Path) -> str:
    """Output of a command that has to succeed."""
    done = composer_here(*words, cwd=cwd)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def renderer() -> ChatRenderer:
    return ChatRenderer(tiny_tokenizer())


def read(tmp_path: Path, renderer: ChatRenderer, *pairs: dict[str, Any], window: int = 16384) -> FilePairs:
    replay = {"pairs": write(tmp_path / "theirs.jsonl", *pairs)}
    config = RunConfig.model_validate({"model": {"path": "m"}, "tasks": {"train": "t"}, "loss": {"replay": replay}})
    found = file_pairs(config, renderer, window)
    assert found is not None
    return found


def test_pairs_are_written_in_the_students_template(tmp_path: Path, renderer: ChatRenderer) -> None:
    found = read(tmp_path, renderer, pair(0, confidence=0.5))
    (made,) = found.pairs
    prompt = renderer.template.decode(made.prompt_ids)
    for shown in ("You are another agent.", "task 0", '"command": "pwd"', "/work", "Tools: Bash"):
        assert shown in prompt
    assert made.prompt_ids[-len(renderer.generation_prompt_ids) :] == renderer.generation_prompt_ids
    assert renderer.decode(made.chosen_ids) == f"<tool_call>{LIST}</tool_call>"
    assert renderer.decode(made.rejected_ids) == "I stop here."
    assert made.chosen_ids[-1] == made.rejected_ids[-1] == renderer.end_of_turn_id
    assert (made.pair_id, made.confidence, found.dropped) == ("theirs#0", 0.5, {})


def test_what_normalize_moves_into_metadata_is_found(tmp_path: Path, renderer: ChatRenderer) -> None:
    extra = {"tools": [TOOL], "confidence": 0.25}
    plain = {key: value for key, value in pair(0).items() if key != "tools"}
    (made,) = read(tmp_path, renderer, plain | {"metadata": extra}).pairs
    assert made.confidence == 0.25
    assert "Tools: Bash" in renderer.template.decode(made.prompt_ids)


def test_what_cannot_be_trained_on_is_counted(tmp_path: Path, renderer: ChatRenderer) -> None:
    given = [pair(0), pair(1, chosen="wide " * 900), pair(2, rejected=LIST)]
    found = read(tmp_path, renderer, *given, window=700)
    assert [p.pair_id for p in found.pairs] == ["theirs#0"]
    assert str(found) == "1 pairs of theirs.jsonl (left out: 1 longer than 700 tokens, 1 with two equal sides)"
    with pytest.raises(ConfigError, match=r"0 pairs of theirs\.jsonl \(left out: 1 longer than 3 tokens"):
        read(tmp_path, renderer, pair(0), window=3)


def test_the_seed_decides_the_order(tmp_path: Path, renderer: ChatRenderer) -> None:
    pairs = read(tmp_path, renderer, *(pair(n) for n in range(9))).pairs
    orders = [tuple(shuffled(pairs, seed)) for seed in (0, 0, 1)]
    assert orders[0] == orders[1]
    assert len({orders[0], orders[2], pairs}) == 3
    assert set(orders[0]) == set(pairs)


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ({"state_id": "s"}, r"theirs\.jsonl:1: no state_messages"),
        (pair(0, confidence=0), r"pair 1: confidence is 0"),
        (pair(0) | {"tools": [{"name": "Bash"}]}, r"pair 1: tools are no list"),
        (pair(0) | {"state_messages": []}, r"pair 1: state_messages is empty"),
        (pair(0) | {"state_messages": [{"role": "robot", "content": ""}]}, r"pair 1: state_messages\.0\.role is 'robot'"),
        (pair(0) | {"state_messages": [{"role": "user", "content": [1]}]}, r"pair 1: state_messages\.0\.content is no text"),
        (
            pair(0) | {"state_messages": [{"role": "assistant", "content": "", "tool_calls": [{"name": "x"}]}]},
            r"pair 1: state_messages\.0\.tool_calls has a call without its function",
        ),
    ],
)
def test_a_pair_that_is_none_is_named(tmp_path: Path, renderer: ChatRenderer, line: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        read(tmp_path, renderer, line)


def test_the_path_is_relative_to_the_run_file_in_arms_too(run_file: Path) -> None:
    theirs = name_pairs(run_file, pair(0))
    assert load_config(run_file).loss.replay.pairs == theirs
    other = write(run_file.parent / "other.jsonl", pair(1))
    config = load_config(run_file, ["--arms.main.loss.replay.pairs", "other.jsonl"])
    assert resolve_arm(config, "main").loss.replay.pairs == other
    other.unlink()
    with pytest.raises(ConfigError, match=r"loss\.replay\.pairs: no such file: .*other\.jsonl"):
        load_config(run_file, ["--arms.main.loss.replay.pairs", "other.jsonl"])


@pytest.mark.slow
def test_a_run_without_teachers_trains_on_them_and_is_bound_to_the_file(run_file: Path) -> None:
    """Dry run, run, resume: the file belongs to the run."""
    folder = run_file.parent
    theirs = name_pairs(run_file, *(pair(n) for n in range(5)), pair(5, chosen="wide " * 900))
    words = ["train", str(run_file), "--steps", "2", "--loss.replay.pairs_per_step", "2", "--loss.replay.variant", "dpo"]
    told = finish(*words, "--dry-run", cwd=folder)
    assert "replay 5 pairs of theirs.jsonl (left out: 1 longer than 640 tokens); 12 training rollouts, 0 traces" in told
    output = finish(*words, cwd=folder)
    assert "4 of 5 pairs are read in 2 steps" in output
    run = RunDir(folder / "runs" / "run")
    steps = [deterministic(m.values) for m in run.read_metrics() if m.step > 0]
    assert [m["replay/pairs"] for m in steps] == [2.0, 2.0]
    assert all(m["replay/loss"] > 0 for m in steps)
    assert steps[0]["replay/margin/mean"] == pytest.approx(0.0, abs=1e-4)
    assert steps[1]["replay/margin/mean"] != 0
    store = run.ckpt_path / "main" / "pairs.jsonl"
    ids = [json.loads(line)["pair_id"] for line in store.read_text().splitlines()]
    assert (len(set(ids)), set(ids) <= {f"theirs#{n}" for n in range(5)}) == (4, True)
    finish(*words, "--name", "again", cwd=folder)
    again = RunDir(folder / "runs" / "again")
    assert (again.ckpt_path / "main" / "pairs.jsonl").read_bytes() == store.read_bytes()
    finish(*words, "--resume", cwd=folder)
    write(theirs, pair(0))
    refused = composer_here(*words, "--resume", cwd=folder)
    assert refused.returncode == 7
    assert "was made with other pairs in loss.replay.pairs than the run file names now" in refused.stderr
    assert "Traceback" not in refused.stderr


@pytest.mark.slow
def test_they_stand_beside_the_teachers_pairs(run_file: Path) -> None:
    name_pairs(run_file, *(pair(n) for n in range(3)))
    with TeacherServer(lambda _body, _number: Reply(calls=[("list_files", {})])) as server:
        name_teachers(run_file, server.base_url)
        finish(
            "train", str(run_file), "--steps", "1", "--loss.replay.pairs", "theirs.jsonl",
            "--loss.replay.pairs_per_step", "999", cwd=run_file.parent,
        )  # fmt: skip
    run = RunDir(run_file.parent / "runs" / "run")
    ids = [json.loads(line)["pair_id"] for line in (run.ckpt_path / "main" / "pairs.jsonl").read_text().splitlines()]
    own = [name for name in ids if not name.startswith("theirs#")]
    assert own
    assert sorted(set(ids) - set(own)) == [f"theirs#{n}" for n in range(3)]
    assert run.read_metrics()[-1].values["replay/pairs"] == len(ids)
