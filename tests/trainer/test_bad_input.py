"""What goes wrong at `composer train`: one clear error with the fix, an exit code, no traceback, and nothing lost."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import time
import tomllib
import venv
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
import tomli_w
import torch
from in_process import composer_here
from teacher_server import Reply, TeacherServer
from transformers import AutoModelForCausalLM
from world import COMPOSER, World, composer, name_teachers

from composer_replication.cli.support import dry_run
from composer_replication.config import load_config
from composer_replication.loss.forward import models
from composer_replication.observe import RunDir
from composer_replication.trainer.open_run import check_run_dir, open_run
from composer_replication.types.errors import ConfigError, ModelError


def refused(*words: str, cwd: Path, code: int) -> str:
    """Output of a command that has to fail with `code`."""
    done = composer_here(*words, cwd=cwd)
    output = done.stdout + done.stderr
    assert done.returncode == code, output
    assert "Traceback" not in output
    assert output.count("error: ") == 1, output
    assert "fix: " in output
    return output


def accepted(*words: str, cwd: Path) -> str:
    """Output of a command that has to succeed."""
    done = composer_here(*words, cwd=cwd)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--optimizer.learning_rat", "1"], "optimizer.learning_rat"),
        (["--steps", "many"], "steps"),
        (["--tasks.train", "nowhere"], "nowhere"),
        (["--sandbox.kind", "cupboard"], "sandbox.kind"),
        (["--teachers", "7"], "teachers"),
        (["--dryrun"], "did you mean --dry-run?"),
        (["--resum=1"], "did you mean --resume?"),
    ],
)
def test_wrong_configuration(run_file: Path, words: list[str], told: str) -> None:
    assert told in refused("train", str(run_file), *words, cwd=run_file.parent, code=2)
    assert not (run_file.parent / "runs").exists()


def test_a_model_without_chat_template(run_file: Path, world: World, tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    shutil.copytree(world.policy, bare)
    (bare / "chat_template.jinja").unlink()
    settings = bare / "tokenizer_config.json"
    settings.write_text(json.dumps({k: v for k, v in json.loads(settings.read_text()).items() if k != "chat_template"}))
    output = refused("train", str(run_file), "--model.path", str(bare), cwd=tmp_path, code=5)
    assert str(bare) in output
    assert "has no chat template" in output


def test_a_model_that_is_none(run_file: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert "it holds no model (no config.json)" in refused("train", str(run_file), "--model.path", "empty", cwd=tmp_path, code=5)


@pytest.mark.parametrize(
    "damage",
    [
        lambda config: [],
        lambda config: config | {"hidden_size": "wide"},
        lambda config: config | {"num_key_value_heads": 0},
    ],
    ids=["not an object", "another type", "no heads"],
)
def test_a_damaged_model_configuration(run_file: Path, world: World, tmp_path: Path, damage: Callable[[dict], object]) -> None:
    shutil.copytree(world.policy, tmp_path / "odd")
    file = tmp_path / "odd" / "config.json"
    file.write_text(json.dumps(damage(json.loads(file.read_text()))))
    assert "cannot be loaded" in refused("train", str(run_file), "--model.path", "odd", cwd=tmp_path, code=5)


def test_damaged_weights(run_file: Path, world: World, tmp_path: Path) -> None:
    shutil.copytree(world.policy, tmp_path / "torn")
    weights = tmp_path / "torn" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1000])
    assert "cannot be loaded" in refused("train", str(run_file), "--model.path", "torn", cwd=tmp_path, code=5)


def test_a_model_with_code_of_its_own_is_refused_and_nothing_is_asked(run_file: Path, world: World, tmp_path: Path) -> None:
    shutil.copytree(world.policy, tmp_path / "own")
    file = tmp_path / "own" / "config.json"
    own = {"model_type": "unheard", "auto_map": {"AutoConfig": "code.Config", "AutoModelForCausalLM": "code.Model"}}
    file.write_text(json.dumps(json.loads(file.read_text()) | own))
    (tmp_path / "own" / "code.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    output = refused("train", str(run_file), "--model.path", "own", cwd=tmp_path, code=5)
    assert "cannot be loaded" in output
    assert "[y/N]" not in output
    assert not (tmp_path / "ran").exists()


def test_weights_that_are_a_pickle_are_refused(run_file: Path, world: World, tmp_path: Path) -> None:
    shutil.copytree(world.policy, tmp_path / "pickled")
    (tmp_path / "pickled" / "model.safetensors").unlink()
    torch.save({}, tmp_path / "pickled" / "pytorch_model.bin")
    output = refused("train", str(run_file), "--model.path", "pickled", cwd=tmp_path, code=5)
    assert "safetensors" in output


@pytest.mark.parametrize(
    ("index", "said"),
    [
        ('{"weight_map": {"a": "../away.safetensors"}}', "another folder"),
        ('{"weight_map": {"a": "second.safetensors"}}', "second.safetensors"),
        ("[]", "damaged"),
    ],
)
def test_an_index_of_weights_that_leads_away(run_file: Path, world: World, tmp_path: Path, index: str, said: str) -> None:
    shutil.copytree(world.policy, tmp_path / "sharded")
    (tmp_path / "sharded" / "model.safetensors.index.json").write_text(index)
    assert said in refused("train", str(run_file), "--model.path", "sharded", "--dry-run", cwd=tmp_path, code=5)


def test_a_run_that_does_not_fit_is_refused_before_any_weights_are_loaded(
    run_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They would not fit either, and nothing could be advised."""

    def loaded(*_: object, **__: object) -> None:
        raise AssertionError("the weights are loaded")

    monkeypatch.setattr(models, "load_model", loaded)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=0))
    with pytest.raises(ConfigError, match=r"fit: .* GiB are needed on cpu"):
        dry_run.check(load_config(run_file))


def test_weights_that_do_not_fit_on_the_device_are_no_fault_of_the_folder(
    run_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def exhausted(*_: object, **__: object) -> None:
        raise torch.OutOfMemoryError("no room")

    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", exhausted)
    with pytest.raises(ModelError, match="does not fit on cpu: no room") as said:
        models.load_policy(load_config(run_file).model)
    assert "model.lora.rank" in (said.value.fix or "")


def test_a_run_goes_on_with_less_memory_where_the_learner_is_ours(run_file: Path) -> None:
    began = load_config(run_file)
    with open_run(began, resume=False) as run_dir:
        run_dir.log_metrics("main", 0, {"reward/mean": 0.0})
    smaller = [
        "--optimizer.gradient_checkpointing",
        "true",
        "--optimizer.micro_batch_tokens",
        "64",
        "--rollout.max_rollouts",
        "3",
    ]
    check_run_dir(load_config(run_file, smaller), resume=True)
    text = run_dir.config_path.read_text()
    run_dir.config_path.write_text(text.replace('type = "local"', 'type = "trl"'))
    with pytest.raises(ConfigError, match=r"optimizer\.gradient_checkpointing: .?auto.? -> True; optimizer\.micro_batch_tokens"):
        check_run_dir(load_config(run_file, [*smaller, "--substrate.type", "trl"]), resume=True)


@pytest.mark.parametrize("damage", ["task.toml", "repo"])
def test_a_damaged_task(run_file: Path, world: World, tmp_path: Path, damage: str) -> None:
    tasks = tmp_path / "tasks"
    shutil.copytree(world.tasks, tasks)
    name = sorted(tasks.iterdir())[1]
    file = name / damage if damage == "task.toml" else next((name / "repo").rglob("cargo.py"))
    file.write_text(file.read_text()[:-20])
    output = refused("train", str(run_file), "--tasks.train", str(tasks), cwd=tmp_path, code=3)
    assert str(name) in output
    assert file.name in output


@pytest.mark.slow
def test_ctrl_c_keeps_everything_and_resume_goes_on(run_file: Path) -> None:
    folder = run_file.parent
    accepted("train", str(run_file), "--name", "whole", "--steps", "4", cwd=folder)
    process = composer("train", str(run_file), "--name", "stopped", "--steps", "4", cwd=folder)
    metrics = folder / "runs" / "stopped" / "metrics.jsonl"
    while process.poll() is None and not (metrics.exists() and b"\n" in metrics.read_bytes()):
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)  # with all the steps still to come
    output, _ = process.communicate()
    assert process.returncode == 130, output
    assert "Traceback" not in output
    assert "interrupted; what was done is kept" in output
    accepted("train", str(run_file), "--name", "stopped", "--steps", "4", "--resume", cwd=folder)
    weights = [folder / "runs" / run / "ckpt/main/step_00004/model.safetensors" for run in ("whole", "stopped")]
    assert weights[0].read_bytes() == weights[1].read_bytes()


ON_SMALL_TMPFS = 'mount -t tmpfs -o size=$0 none runs && "$@"; code=$?; cp -r runs/run kept; exit $code'
# coverage measures commands too, and its own file would not fit either
_UNMEASURED = "unset COVERAGE_PROCESS_CONFIG COVERAGE_PROCESS_START; "
UNDER_FILE_SIZE_LIMIT = _UNMEASURED + 'ulimit -f 100; trap "" XFSZ; "$@"; code=$?; cp -r runs/run kept; exit $code'


@pytest.mark.slow
def test_a_full_disk_loses_nothing_written(run_file: Path) -> None:
    """A run directory on a real tmpfs too small for a checkpoint; where mounting is refused, a limit on the size of a file."""
    folder = run_file.parent
    (folder / "runs").mkdir()
    private = ["unshare", "-Urm"]
    mounts = subprocess.run([*private, "mount", "-t", "tmpfs", "none", "runs"], cwd=folder, capture_output=True, check=False)
    small, shell = ("250k", ON_SMALL_TMPFS) if mounts.returncode == 0 else ("", UNDER_FILE_SIZE_LIMIT)
    options = ["--steps", "2", "--sandbox.kind", "unsafe-subprocess"]
    command = [*(private if small else []), "sh", "-c", shell, small, *COMPOSER, "train", str(run_file), *options]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    output = done.stdout + done.stderr
    assert done.returncode == 7, output
    assert "Traceback" not in output
    assert "fix: free" in output
    assert "--resume" in output
    kept = RunDir(folder / "kept")
    assert [m.step for m in kept.read_metrics()] == [0]
    assert not list(kept.ckpt_path.rglob("step_*/*"))
    (folder / "runs").rmdir() if small else shutil.rmtree(folder / "runs")
    shutil.copytree(folder / "kept", folder / "runs" / "run")
    accepted("train", str(run_file), *options, "--resume", cwd=folder)
    assert [m.step for m in RunDir(folder / "runs" / "run").read_metrics()] == [0, 1, 2]


@pytest.mark.parametrize("words", [pytest.param(["--dry-run"], id="dry run"), pytest.param([], id="run", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("arm", "told"),
    [
        ('{"rollout.groups" = 5}', "arm odd: rollout.groups is 5, but tasks.train has 4 tasks"),
        ('{"threads" = 2}', "arms.odd: threads is the same for all arms"),
    ],
)
def test_an_arm_that_cannot_be_trained(run_file: Path, words: list[str], arm: str, told: str) -> None:
    run_file.write_text(run_file.read_text() + f"[arms]\nmain = {{}}\nodd = {arm}\n")
    assert told in refused("train", str(run_file), *words, cwd=run_file.parent, code=2)
    assert not list((run_file.parent / "runs").rglob("step_*"))
    run_file.write_text(run_file.read_text().replace(arm, "{}"))
    accepted("train", str(run_file), *words, "--steps", "1", cwd=run_file.parent)  # under the same name


def test_a_dry_run_says_what_the_run_will_do(run_file: Path) -> None:
    output = accepted("train", str(run_file), "--dry-run", cwd=run_file.parent)
    assert "tasks: 4 to train on; held out: " in output
    assert re.search(r"memory of arm main on cpu +GiB", output)
    assert re.search(r"at most during an update +\d\.\d\d", output)
    assert re.search(r"rollouts, evaluations and traces included +2 +6 +36 ", output)
    assert re.search(r"GiB on disk, all arms +0.00 of [\d,.]+ free", output)
    assert not (run_file.parent / "runs").exists()
    why = "the run has no teachers, loss.replay.pairs or loss.replay.reattempts"
    assert f"arm main: rlvr dapo, hint on, replay off ({why}); 24 training rollouts, 0 traces" in output
    accepted("train", str(run_file), "--steps", "1", cwd=run_file.parent)
    assert "already holds a run" in refused("train", str(run_file), "--dry-run", cwd=run_file.parent, code=2)


def test_a_dry_run_of_shared_weights_by_a_process_alone_plans_no_memory(run_file: Path) -> None:
    """It would refuse what fits on several devices."""
    output = accepted("train", str(run_file), "--dry-run", *SERVED, "--substrate.shard", "true", cwd=run_file.parent)
    assert "torchrun --nproc-per-node N --no-python composer train FILE --dry-run" in output
    assert "GiB" not in output


SERVED = ["--rollout.engine", "vllm", "--rollout.server_url", "http://127.0.0.1:1", "--loss.rlvr.importance", "tis"]


@pytest.mark.parametrize(
    "words",
    [
        pytest.param(["--dry-run"], id="dry run"),
        pytest.param(["--dry-run", *SERVED], id="with a server"),
        pytest.param(["--dry-run", *SERVED, "--substrate.shard", "true"], id="of several processes"),
        pytest.param(["--dry-run", "--substrate.type", "ray"], id="of a mesh"),
        pytest.param([], id="run", marks=pytest.mark.slow),
    ],
)
def test_a_prompt_that_leaves_no_room_for_a_turn(run_file: Path, words: list[str]) -> None:
    told = refused("train", str(run_file), *words, "--rollout.context_tokens", "40", cwd=run_file.parent, code=2)
    assert "the prompts of 6 of 6 tasks leave no room for a turn in 40 tokens: harbour-" in told
    assert "raise rollout.context_tokens" in told


@pytest.mark.slow
def test_a_dry_run_says_what_teachers_would_cost(run_file: Path) -> None:
    """It asks none: nobody is at their address. What the cap does not cover is refused."""
    dear = {"usd_per_million_output": 50.0}
    name_teachers(run_file, "http://127.0.0.1:9", **dear, max_total_usd=100.0)
    told = accepted("train", str(run_file), "--dry-run", cwd=run_file.parent)
    assert re.search(r"US dollars for teachers +\d+\.\d+ \(\d+\.\d+ to \d+\.\d+\)", told)
    name_teachers(run_file, "http://127.0.0.1:9", **dear, max_total_usd=0.0001)
    assert "is left under the cap" in refused("train", str(run_file), "--dry-run", cwd=run_file.parent, code=6)


def test_a_dry_run_of_a_resume_says_what_the_resume_would(run_file: Path) -> None:
    accepted("train", str(run_file), "--steps", "1", cwd=run_file.parent)
    words = ["train", str(run_file), "--steps", "1", "--resume", "--dry-run"]
    accepted(*words, cwd=run_file.parent)
    changed = refused(*words, "--optimizer.learning_rate", "5", cwd=run_file.parent, code=2)
    assert "made by another configuration: optimizer.learning_rate: 0.001 -> 5.0" in changed


@pytest.mark.slow
def test_a_second_process_changes_nothing_of_a_living_run(run_file: Path) -> None:
    folder = run_file.parent
    first = composer("train", str(run_file), "--steps", "1", cwd=folder)
    config = folder / "runs" / "run" / "config.toml"
    while first.poll() is None and not config.exists():
        time.sleep(0.01)
    before = config.read_bytes()
    first.send_signal(signal.SIGSTOP)  # before it has measured anything
    output = refused("train", str(run_file), "--steps", "1", "--seed", "7", cwd=folder, code=2)
    first.send_signal(signal.SIGCONT)
    assert "another process is writing" in output
    assert config.read_bytes() == before
    told, _ = first.communicate()
    assert first.returncode == 0, told


@pytest.mark.slow
def test_a_cap_that_is_too_low_can_be_raised(run_file: Path) -> None:
    folder = run_file.parent
    prices = {"usd_per_million_input": 1.0, "usd_per_million_output": 1.0}
    with TeacherServer(lambda _body, _number: Reply(calls=[("list_files", {})])) as server:
        rows = [{"name": n, "model": n, "base_url": server.base_url, "api_key_env": "", **prices} for n in ("one", "other")]
        run_file.write_text(tomli_w.dumps(tomllib.loads(run_file.read_text()) | {"teachers": rows}))
        words = ["train", str(run_file), "--steps", "1", "--loss.replay.verify", "false", "--loss.replay.max_total_usd"]
        assert "no call fits under the cap" in refused(*words, "0.000001", cwd=folder, code=6)
        accepted(*words, "10", "--resume", cwd=folder)
        armed = [*words[:4], "--name", "armed", "--loss.replay.verify", "false", "--arms.main.loss.replay.max_total_usd"]
        assert "no call fits under the cap" in refused(*armed, "0.000001", cwd=folder, code=6)
        accepted(*armed, "10", "--resume", cwd=folder)
    assert RunDir(folder / "runs" / "run").read_pairs("main")


def test_a_teacher_that_fails_is_told(run_file: Path) -> None:
    """Two teachers have to agree and one answers: that is no run with replay, whatever it found."""
    prices = {"usd_per_million_input": 0.0, "usd_per_million_output": 0.0, "api_key_env": ""}
    with TeacherServer(
        lambda body, _number: Reply(status=401) if body["model"] == "other" else Reply(calls=[("list_files", {})])
    ) as server:
        rows = [{"name": n, "model": n, "base_url": server.base_url, **prices} for n in ("one", "other")]
        run_file.write_text(tomli_w.dumps(tomllib.loads(run_file.read_text()) | {"teachers": rows}))
        output = refused("train", str(run_file), cwd=run_file.parent, code=6)
    assert "1 of the teachers' families answered, loss.replay.agreement_threshold is 2: other: HTTP 401" in output
    assert not list((run_file.parent / "runs").rglob("step_*.safetensors"))


def test_a_teacher_without_its_key(run_file: Path) -> None:
    teacher = {"name": "far", "model": "far/away", "usd_per_million_input": 0.0, "usd_per_million_output": 0.0}
    rows = [teacher | {"api_key_env": "NO_SUCH_KEY"}]
    run_file.write_text(tomli_w.dumps(tomllib.loads(run_file.read_text()) | {"teachers": rows}))
    assert "NO_SUCH_KEY is not set" in refused("train", str(run_file), "--dry-run", cwd=run_file.parent, code=2)


def test_a_scoring_teacher_of_a_later_arm_without_its_key(run_file: Path) -> None:
    """The first arm asks no teacher; hours later the second could not begin."""
    teacher = {
        "name": "near",
        "model": "m",
        "base_url": "http://127.0.0.1:9/v1",
        "api_key_env": "NO_SUCH_KEY",
        "scores_tokens": True,
    }
    arms = {"main": {}, "taught": {"reward": {"teacher_kl_weight": 0.1}}}
    run = tomllib.loads(run_file.read_text()) | {"teachers": [teacher], "arms": arms}
    run_file.write_text(tomli_w.dumps(run))
    words = ["train", str(run_file), "--loss.replay.weight", "0", "--dry-run"]
    assert "teacher 'near' needs a key and NO_SUCH_KEY is not set" in refused(*words, cwd=run_file.parent, code=2)
    assert not (run_file.parent / "runs").exists()


def test_an_interpreter_without_pytest(run_file: Path, tmp_path: Path) -> None:
    venv.create(tmp_path / "bare", with_pip=False)
    python = tmp_path / "bare" / "bin" / "python"
    output = refused("train", str(run_file), "--dry-run", "--tasks.python", str(python), cwd=tmp_path, code=3)
    assert f"{python} -m pip install pytest" in output


def test_a_run_that_learnt_nothing_says_so_and_fails_where_that_is_asked_for(run_file: Path) -> None:
    """One turn is enough for no task: every reward is 0."""
    idle = ["--steps", "1", "--rollout.max_turns", "1", "--loss.hint.weight", "0", "--loss.replay.weight", "0"]
    output = refused("train", str(run_file), *idle, "--strict", "true", cwd=run_file.parent, code=8)
    said = "VERDICT on main: nothing was learnt: there was nothing to train on in 1 step, because "
    assert said in output
    assert "no rollout was rewarded" in output
    run = RunDir(run_file.parent / "runs" / "run")
    assert said in run.report_path.read_text()
    assert list(run.ckpt_path.rglob("*.safetensors"))
    again = accepted("train", str(run_file), *idle, "--resume", cwd=run_file.parent)  # strict may change, and is off by default
    assert said in again
