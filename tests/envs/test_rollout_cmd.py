from __future__ import annotations

import json
import shutil
import sys
import venv
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import typer
from in_process import invoke
from transformers import Qwen3Config, Qwen3ForCausalLM

from composer_replication.cli.rollout_cmd import EXIT_UNSOUND, rollout
from composer_replication.config import ModelConfig
from composer_replication.loss.forward.models import load_policy, save_policy
from composer_replication.quickstart.policy import tiny_model
from composer_replication.tasks.folders import load_tasks
from composer_replication.tasks.store import write_task
from composer_replication.tokens import byte_level_tokenizer
from composer_replication.types import Trajectory, from_json
from composer_replication.types.errors import ConfigError, ModelError, StorageError, TaskError
from composer_replication.types.held_out_checks import HeldOutChecks

sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))
from wire_servers import Backend, WireServer

app = typer.Typer()
app.command()(rollout)


@pytest.fixture(scope="module")
def folder(task, tmp_path_factory):
    """Two task folders on disk: the fixture's task under two names."""
    pristine, folder = tmp_path_factory.mktemp("pristine"), tmp_path_factory.mktemp("tasks")
    for path in ("shop/__init__.py", "shop/basket.py", "tests/test_basket.py"):
        (pristine / path).parent.mkdir(exist_ok=True)
        (pristine / path).write_bytes(task.gold.get(path, (task.repo / path).read_bytes()))
    for name in ("a", "b"):
        spec = replace(task.spec, task_id=f"shop/{name}")
        write_task(
            spec, folder / name, pristine=pristine, deleted={"shop/basket.py": (task.repo / "shop/basket.py").read_bytes()}
        )
    return folder


def run(*arguments):
    return invoke(app, *arguments)


def test_oracle_noop_and_random_on_task_folders(folder, tmp_path):
    for policy, reward in (("oracle", 1.0), ("noop", 0.0), ("random", 0.0)):
        result = run("--tasks", folder, "--policy", policy, "--group-size", 3, "--json", "--out", tmp_path / policy)
        assert result.exit_code == 0, result.output
        summary = json.loads(result.stdout)
        assert summary == json.loads((tmp_path / policy / "summary.json").read_text())
        assert (summary["reward_mean"], summary["reward_se"], summary["unscored"]) == (reward, 0.0, 0)
        assert [row["task_id"] for row in summary["per_task"]] == ["shop/a", "shop/b"]
        lines = (tmp_path / policy / "trajectories.jsonl").read_text().splitlines()
        trajectories = [from_json(Trajectory, json.loads(line)) for line in lines]
        assert [t.trajectory_id for t in trajectories] == [f"0/shop/{n}/{i}" for n in "ab" for i in range(3)]
        assert sum(t.num_sampled_tokens() for t in trajectories) == summary["sampled_tokens"]
        assert all(t.reward == reward for t in trajectories)
    assert {row["stop_reasons"].get("submitted") for row in summary["per_task"]} != {3}, "noise stops in other ways too"


def test_forgeable_tasks_are_left_out_unless_they_are_asked_for(task, folder, tmp_path):
    tasks = tmp_path / "tasks"
    shutil.copytree(folder, tasks)
    pristine = {"pristine": folder / "a" / "repo", "deleted": {"shop/basket.py": (task.repo / "shop/basket.py").read_bytes()}}
    weak = replace(task.spec, task_id="shop/b", hidden=HeldOutChecks(weakness="no held-out program runs it: total"))
    write_task(weak, tasks / "b", **pristine)
    options = ("--policy", "noop", "--json")
    assert [row["task_id"] for row in json.loads(run("--tasks", tasks, *options).stdout)["per_task"]] == ["shop/a"]
    rows = json.loads(run("--tasks", tasks, *options, "--forgeable").stdout)["per_task"]
    assert [row["task_id"] for row in rows] == ["shop/a", "shop/b"]
    shutil.rmtree(tasks / "a")
    with pytest.raises(TaskError, match=r"every task of .* is forgeable \(the first because no held-out"):
        run("--tasks", tasks, *options)


def test_the_instruction_is_chosen_when_the_policy_runs(folder, tmp_path):
    asked = {}
    for style in (None, "terse", "ambiguous"):
        out = tmp_path / str(style)
        run(
            "--tasks",
            folder,
            "--policy",
            "noop",
            "--limit",
            1,
            "--out",
            out,
            *(() if style is None else ("--instruction", style)),
        )
        line = (out / "trajectories.jsonl").read_text().splitlines()[0]
        asked[style] = next(m["content"] for m in json.loads(line)["messages"] if m["role"] == "user")
    assert asked[None] == "Bring back total and mean in shop/basket.py."
    assert asked["terse"].startswith("Implement `total`, `mean` in shop/basket.py")
    assert asked["ambiguous"].startswith("Something is missing from shop/basket.py")


def test_the_table_names_reward_and_stop_reasons(folder):
    result = run("--tasks", folder, "--policy", "noop", "--limit", 1)
    assert "shop/a" in result.output
    assert "shop/b" not in result.output
    assert "submitted 1" in result.output
    assert "reward 0.000: 1 tasks, 1 rollouts" in result.output


def test_an_unsound_task_has_its_own_exit_code(folder):
    result = run("--tasks", folder, "--policy", "oracle", "--max-turns", 1)
    assert result.exit_code == EXIT_UNSOUND == 10
    assert "oracle must score 1 on shop/a: 2 of 2 fail-to-pass tests did not pass" in result.output


def test_an_impossible_task_owes_nobody_a_reward(task, folder, tmp_path):
    """Its own verdict is an alarm, the mean is that of the others, and the oracle is not unsound for failing it."""
    tasks = tmp_path / "tasks"
    shutil.copytree(folder, tasks)
    kept = task.repo / "shop/basket.py"
    pristine = tmp_path / "pristine"
    shutil.copytree(folder / "a" / "repo", pristine)
    (pristine / "shop/basket.py").write_bytes(task.gold["shop/basket.py"])
    spec = replace(task.spec, task_id="shop/b", impossible=True)
    write_task(spec, tasks / "b", pristine=pristine, deleted={"shop/basket.py": kept.read_bytes()})
    result = run("--tasks", tasks, "--policy", "oracle", "--json")
    summary = json.loads(result.stdout)
    assert (result.exit_code, summary["reward_mean"], summary["impossible"]) == (0, 1.0, 1)
    assert summary["cheat_alarms"] == 1, "nothing contradicts itself in it, so its solution passes"
    assert "CHEAT ALARM" in result.stderr
    assert [(row["reward"], row["impossible"]) for row in summary["per_task"]] == [(1.0, False), (0.0, True)]
    assert "shop/b (impossible)" in result.stderr
    assert "shop/a (impossible)" not in result.stderr


def test_a_model_from_a_folder(folder, tmp_path):
    torch.manual_seed(0)
    config = Qwen3Config(vocab_size=261, hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2)
    config.num_key_value_heads, config.head_dim, config.max_position_embeddings = 1, 16, 600
    Qwen3ForCausalLM(config).save_pretrained(tmp_path)
    byte_level_tokenizer().save_pretrained(tmp_path)
    written = []
    for name, seed in (("one", 1), ("same", 1), ("other", 2)):
        options = ("--turn-tokens", 30, "--group-size", 2, "--seed", seed, "--out", tmp_path / name)
        result = run("--tasks", folder, "--policy", tmp_path, *options)
        assert result.exit_code == 0, "only oracle and noop have something to prove"
        lines = (tmp_path / name / "trajectories.jsonl").read_text().splitlines()
        written.append([json.loads(line)["turns"] for line in lines])
    assert written[0] == written[1]
    assert written[0] != written[2]


@pytest.mark.parametrize("kind", ["vllm", "sglang"])
def test_a_model_that_a_server_holds(folder, tmp_path, kind):
    tokenizer = byte_level_tokenizer()
    save_policy(tiny_model(tokenizer, 0, hidden=32, layers=1), tokenizer, tmp_path / "policy")
    policy, _ = load_policy(ModelConfig(path=str(tmp_path / "policy"), device="cpu"))
    options = ("--tasks", folder, "--policy", tmp_path / "policy", "--turn-tokens", 30, "--group-size", 2)
    with WireServer(kind, Backend(policy, tokenizer)) as server:
        at = ("--engine", kind, "--server-url", server.url)
        assert run(*options, *at, "--out", tmp_path / "served").exit_code == 0
        assert run(*options, "--out", tmp_path / "here").exit_code == 0
        there, here = (
            [json.loads(line) for line in (tmp_path / n / "trajectories.jsonl").read_text().splitlines()]
            for n in ("served", "here")
        )
        assert [t["prompt_ids"] for t in there] == [t["prompt_ids"] for t in here]
        assert all(len(turn["action_ids"]) == len(turn["logprobs"]) for t in there for turn in t["turns"])
        pieces = byte_level_tokenizer(["def add(a, b): return a + b"] * 9, vocab_size=300)
        save_policy(tiny_model(pieces, 0, hidden=32, layers=1), pieces, tmp_path / "other")
        with pytest.raises(ModelError, match="another tokenizer"):
            run("--tasks", folder, "--policy", tmp_path / "other", *at)
        with pytest.raises(ConfigError, match="needs a server URL"):
            run(*options, "--engine", kind)
        with pytest.raises(ConfigError, match="reads no server URL"):
            run(*options, "--server-url", server.url)
        with pytest.raises(ConfigError, match="samples models, and oracle is none"):
            run("--tasks", folder, "--policy", "oracle", *at)


def test_errors_say_what_to_do(folder, tmp_path):
    with pytest.raises(ModelError, match="no such folder"):
        run("--tasks", folder, "--policy", tmp_path / "nothing")
    with pytest.raises(TaskError):
        run("--tasks", tmp_path / "none", "--policy", "oracle")
    (tmp_path / "file").write_text("")
    result = run("--tasks", folder, "--policy", "noop", "--out", tmp_path / "file")
    assert (result.exit_code, "is a file" in result.output) == (2, True)
    with pytest.raises(StorageError, match="cannot be written"):
        run("--tasks", folder, "--policy", "noop", "--out", tmp_path / "file" / "out")
    for policy in ("Oracle", "no-op", "randon"):
        with pytest.raises(ConfigError, match=f"no policy '{policy}'") as caught:
            run("--tasks", folder, "--policy", policy)
        assert "did you mean" in caught.value.fix
    with pytest.raises(ConfigError, match="no sandbox kind 'cupboard'"):
        run("--tasks", tmp_path / "none", "--policy", "noop", "--sandbox", "cupboard")
    assert len(load_tasks(folder)) == 2


def test_tasks_without_their_interpreter_are_not_rolled_out(folder, tmp_path):
    """A model would score 0 on every one, and nothing would say why."""
    venv.create(tmp_path / "bare", with_pip=False)
    with pytest.raises(TaskError, match="pytest"):
        run("--tasks", folder, "--policy", "random", "--python", tmp_path / "bare" / "bin" / "python")
