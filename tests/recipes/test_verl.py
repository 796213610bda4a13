"""What of the substrate verl needs no verl: settings, refusals, data set, columns, siblings that wait, a program that dies."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from composer_replication.config import ModelConfig, RunConfig, SubstrateConfig, TasksConfig
from composer_replication.loss.forward import models
from composer_replication.recipes.limits import LIMITS
from composer_replication.recipes.verl.answer import check_versions, sample_of
from composer_replication.recipes.verl.columns import Row, pack, rows_of, tokens_of
from composer_replication.recipes.verl.dataset import training_rows
from composer_replication.recipes.verl.episodes import generation_config_of
from composer_replication.recipes.verl.overrides import Files, check, command_line, settings
from composer_replication.recipes.verl.plan import PLAN, ArmPlan
from composer_replication.recipes.verl.process import Main
from composer_replication.recipes.verl.siblings import Siblings
from composer_replication.types import HintedTurn, Pair, StopReason, Trajectory, Turn, Unscored
from composer_replication.types.errors import BackendError, ConfigError, ModelError

HERE = Path(__file__).resolve().parent


def run(options: dict[str, object] | None = None, **sections: object) -> RunConfig:
    substrate = SubstrateConfig(type="verl", options=options or {})
    model = sections.pop("model", {"path": "policy", "device": "cpu"})
    return RunConfig(model=ModelConfig(**model), tasks=TasksConfig(train=HERE), substrate=substrate, **sections)


FILES = Files(Path("/r/train.parquet"), None, Path("/r/ckpt"), Path("/r/hydra"), Path("/tmp/ray"), {PLAN: "/r/plan.json"})


@pytest.mark.parametrize(
    ("said", "asked"),
    [
        ("curriculum.enabled", {"curriculum": {"enabled": True}}),
        ("optimizer.type", {"optimizer": {"type": "muon"}}),
        ("rollout.refills", {"rollout": {"refills": 1}}),
        ("rollout.timeout_s", {"rollout": {"timeout_s": 60.0}}),
        ("reward.kl_weight", {"reward": {"kl_weight": 0.1}}),
        ("reward.prm.weight", {"reward": {"prm": {"path": str(HERE), "weight": 0.1}}}),
        ("loss.rlvr.kl_beta", {"loss": {"rlvr": {"kl_beta": 0.1}}}),
        ("loss.hint.useful_only", {"loss": {"hint": {"useful_only": True}}}),
        ("loss.hint.shuffle", {"loss": {"hint": {"shuffle": True}}}),
        ("loss.hint.generators", {"loss": {"hint": {"generators": ["error", "judge"]}}}),
        ("model.device", {"model": {"path": "policy", "device": "cuda:1"}}),
    ],
)
def test_what_verl_cannot_express_is_refused_and_another_substrate_named(said, asked):
    with pytest.raises(ConfigError) as refused:
        check(run(**asked))
    assert said in refused.value.message
    assert "substrate.type = local" in str(refused.value.fix)
    assert any(limit.field == said for limit in LIMITS["verl"])


@pytest.mark.parametrize(
    "name",
    [
        "+actor_rollout_ref.model.use_fused_kernels",
        "actor_rollout_ref.actor.checkpoint.async_save",
        "actor_rollout_ref.actor.entropy_coeff",
        "actor_rollout_ref.actor.optim.lr",
        "actor_rollout_ref.actor.use_kl_loss",
        "actor_rollout_ref.rollout.temperature",
        "++actor_rollout_ref.rollout.logprobs_mode",
        "+actor_rollout_ref.model.override_config.num_hidden_layers",
        "actor_rollout_ref.model.mtp.enable",
        "actor_rollout_ref.rollout.response_length",
        "actor_rollout_ref.hybrid_engine",
        "actor_rollout_ref.rollout.do_sample",
        "+actor_rollout_ref.rollout.engine_kwargs.vllm.logprobs_mode",
        "actor_rollout_ref.rollout.name",
        "actor_rollout_ref.rollout.quantization",
        "algorithm.adv_estimator",
        "data.shuffle",
        "model_engine",
        "reward.custom_reward_function.path",
        "trainer.critic_warmup",
        "trainer.default_local_dir",
        "trainer.resume_mode",
        "trainer.save_freq",
        "trainer.test_freq",
    ],
)
def test_settings_the_channels_rest_on_are_not_overridden(name):
    with pytest.raises(ConfigError, match="follows from the run file"):
        check(run({name: True}))


def test_lora_is_refused_with_the_substrate_that_has_it():
    with pytest.raises(ConfigError, match="whole weights") as refused:
        check(run({"actor_rollout_ref.model.lora_rank": 8}))
    assert 'substrate.type = "trl"' in str(refused.value.fix)


def test_what_only_tunes_its_servers_is_free():
    check(run({"+actor_rollout_ref.rollout.engine_kwargs.vllm.block_size": 32}))


def test_ranks_that_cannot_share_a_step_are_refused():
    check(run({"trainer.n_gpus_per_node": 4}, rollout={"groups": 2, "group_size": 2}))
    with pytest.raises(ConfigError, match="3 ranks cannot share 4 trajectories"):
        check(run({"trainer.n_gpus_per_node": 3}, rollout={"groups": 2, "group_size": 2}))

    with pytest.raises(ConfigError, match="3 ranks cannot share 4 trajectories"):
        check(run({"++trainer.n_gpus_per_node": 3}, rollout={"groups": 2, "group_size": 2}))


@pytest.mark.parametrize("ranks", ["eight", 0, -1, True, 1.5])
def test_a_number_of_ranks_that_is_none_is_refused(ranks):
    with pytest.raises(ConfigError, match=r"substrate\.options\.trainer\.nnodes = "):
        check(run({"trainer.nnodes": ranks}))


def test_log_probs_of_another_kernel_are_not_taken_for_the_old_policys(monkeypatch):
    monkeypatch.setattr(models, "resolve_device", lambda _: torch.device("cuda"))
    with pytest.raises(ConfigError, match=r"loss\.rlvr\.importance = none"):
        check(run(model={"path": "policy", "device": "cuda"}))
    check(run(model={"path": "policy", "device": "cuda"}, loss={"rlvr": {"importance": "tis"}}))


@pytest.mark.parametrize(
    ("ids", "logprobs", "reason", "said"),
    [
        ([5, 6], [-1.0, -1.0], "completed", "answered with 2 of 4 tokens, without one that ends a turn"),
        ([5, 6, 7, 8, 9], [-1.0] * 5, "completed", "answered with 5 of 4 tokens"),
        ([5, 2], [-1.0], "completed", "2 tokens and 1 log-probs"),
        ([5, 2], None, "completed", "2 tokens and 0 log-probs"),
        ([5], [-1.0], "aborted", "broke a turn off after 1 tokens"),
        ([], [], None, "broke a turn off after 0 tokens"),
    ],
)
def test_a_turn_that_is_not_what_was_asked_for_is_an_error(ids, logprobs, reason, said):
    with pytest.raises(ModelError, match=said):
        sample_of(ids, logprobs, reason, most=4, room=100, ends={2})


def test_a_turn_is_finished_by_a_token_that_ends_one_alone():
    assert sample_of([5, 2], [-1.0, -1.0], "completed", most=4, room=100, ends={1, 2}).finished
    assert not sample_of([5, 6, 7, 8], [-1.0] * 4, "completed", most=4, room=100, ends={2}).finished
    assert not sample_of([5, 6, 7], [-1.0] * 3, "completed", most=4, room=4, ends={2}).finished, "servers keep a position"


def test_settings_follow_from_the_run_file():
    config = run(
        rollout={"groups": 3, "group_size": 4, "temperature": 0.7, "trajectory_tokens": 200, "context_tokens": 1000},
        loss={"rlvr": {"objective": "dr_grpo", "importance": "icepop", "importance_low": 0.25, "importance_high": 4.0}},
        optimizer={"learning_rate": 2e-4, "micro_batch_tokens": 5000, "max_grad_norm": 0.3},
    )
    found = settings(config, FILES, cpu=True)
    assert found["data.train_batch_size"] == found["actor_rollout_ref.actor.ppo_mini_batch_size"] == 3
    assert found["actor_rollout_ref.rollout.n"] == 4
    assert found["actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu"] == 4, "5 fit, and 4 divide 12 rows"
    assert found["actor_rollout_ref.actor.loss_agg_mode"] == "seq-mean-token-sum-norm"
    assert found["actor_rollout_ref.actor.loss_scale_factor"] == 200
    assert found["actor_rollout_ref.actor.optim.clip_grad"] == 0.3
    assert found["algorithm.rollout_correction.rollout_is_threshold"] == "0.25_4.0"
    assert found["actor_rollout_ref.rollout.name"] == "composer_cpu"
    assert settings(config, FILES, cpu=False)["actor_rollout_ref.rollout.name"] == "vllm"
    assert settings(run(), FILES, cpu=True)["algorithm.rollout_correction.bypass_mode"] is True


def test_the_kl_is_ours_and_the_reference_verls():
    config = run(loss={"rlvr": {"kl_beta": 0.1}}, model={"path": "policy", "device": "cuda"})
    found = settings(config, FILES, cpu=False)
    assert found["actor_rollout_ref.actor.use_kl_loss"] is True, "verl asks its reference policy then"
    assert found["actor_rollout_ref.actor.kl_loss_coef"] == 0.0


def test_options_of_the_run_file_come_last():
    words = command_line(run({"trainer.nnodes": 2, "actor_rollout_ref.rollout.dtype": "it's"}), FILES, cpu=True)
    assert words[-2:] == ["trainer.nnodes=2", r"actor_rollout_ref.rollout.dtype='it\'s'"]
    assert "trainer.logger=['file']" in words
    assert f"+ray_kwargs.ray_init.runtime_env.env_vars.{PLAN}='/r/plan.json'" in words


@pytest.mark.parametrize("asked", ["wandb", "[console,wandb]", "file,console"])
def test_another_logger_is_added_to_the_file_that_the_run_reads(asked):
    check(run({"trainer.logger": asked}))
    last = command_line(run({"trainer.logger": asked}), FILES, cpu=True)[-1]
    assert last.startswith("trainer.logger=['file','")
    assert last.count("file") == 1


def pair(number: int) -> Pair:
    return Pair(pair_id=f"p{number}", prompt_ids=(1, 2), chosen_ids=(3,), rejected_ids=(4, 5))


def test_the_data_set_has_the_tasks_and_pairs_of_every_step():
    tasks = [SimpleNamespace(spec=SimpleNamespace(task_id=f"t{i}", instruction="do")) for i in range(4)]
    config = run(steps=2, rollout={"groups": 2, "group_size": 2}, loss={"replay": {"pairs_per_step": 3}})
    rows = list(training_rows(config, tasks, [pair(i) for i in range(4)]))
    assert sorted(row["task_id"] for row in rows) == ["t0", "t1", "t2", "t3"]
    assert [[p["pair_id"] for p in json.loads(row["pairs"])] for row in rows] == [["p0", "p2"], ["p1"], ["p3", "p1"], ["p0"]]
    assert [row["extra_info"]["index"] for row in rows] == [0, 1, 2, 3]


def trajectory(number: int = 0, reward: float | Unscored = 1.0) -> Trajectory:
    turns = (
        Turn(action_ids=(5, 6), logprobs=(-1.0, float("-inf")), text="", observation_ids=(7, 8, 9)),
        Turn(action_ids=(10,), logprobs=(-2.0,), text=""),
    )
    return Trajectory(
        trajectory_id=f"1/t/{number}",
        task_id="t",
        policy_version=0,
        messages=(),
        tools=(),
        prompt_ids=(1, 2, 3),
        turns=turns,
        stop_reason=StopReason.SUBMITTED,
        temperature=1.0,
        reward=reward,
    )


def test_rows_come_out_of_a_batch_as_they_went_in():
    hint = HintedTurn(trajectory_id="1/t/0", turn=1, student_start=8, teacher_ids=(1, 9, 10), teacher_start=2, action_ids=(10,))
    row = Row("1/t/0", (hint,), (pair(1),))
    fields = json.loads(json.dumps(pack(row)))
    batch = {"extra_fields": [fields, fields], "num_turns": [2, 0]}
    assert rows_of(batch) == [row, Row("padding/1")], "the second fills up the batch"


def test_only_sampled_tokens_with_a_log_prob_and_a_verdict_are_trained_on():
    ids, mask, logprobs = tokens_of(trajectory())
    assert (ids, mask) == ([5, 6, 7, 8, 9, 10], [1, 0, 0, 0, 0, 1])
    assert logprobs == [-1.0, 0.0, 0.0, 0.0, 0.0, -2.0]
    assert not any(tokens_of(trajectory(reward=Unscored("broken")))[1])


def test_siblings_wait_for_each_other_and_are_finished_once():
    calls, threads = [], []

    def finish(group):
        calls.append([t.trajectory_id for t in group])
        threads.append(threading.current_thread())
        return len(group)

    async def meet():
        siblings = Siblings(3, finish)
        return await asyncio.gather(*(siblings.meet(i, trajectory(i)) for i in (2, 0, 1)))

    assert asyncio.run(meet()) == [3, 3, 3]
    assert calls == [["1/t/0", "1/t/1", "1/t/2"]]
    assert threads[0] is not threading.main_thread()


def test_nobody_waits_for_a_sibling_that_broke():
    async def meet():
        siblings = Siblings(2, len)
        waiting = asyncio.create_task(siblings.meet(0, trajectory()))
        await asyncio.sleep(0)
        siblings.leave(ValueError("it broke"))
        await waiting

    with pytest.raises(ValueError, match="it broke"):
        asyncio.run(meet())


@pytest.fixture
def plan(tmp_path):
    made = ArmPlan("main", run(), 512, tmp_path / "arm")
    made.write()
    return made


def test_a_plan_is_read_as_it_was_written(plan, monkeypatch):
    monkeypatch.setenv(PLAN, str(plan.path))
    assert ArmPlan.required() == plan
    monkeypatch.setenv(PLAN, str(plan.folder / "none.json"))
    with pytest.raises(ConfigError, match=r"none\.json: No such file"):
        ArmPlan.required()
    monkeypatch.delenv(PLAN)
    with pytest.raises(ConfigError, match=f"{PLAN} is not set"):
        ArmPlan.required()


def watched(plan: ArmPlan, stall_s: float = 900.0, **environment: str) -> bool:
    async def watch() -> bool:
        with Main(plan, ["--help"], environment, ()) as main:
            while not (ended := await main.ended(stall_s)):
                pass
            return ended

    return asyncio.run(watch())


def program(folder: Path, text: str) -> dict[str, str]:
    """An environment in which `verl.trainer.main_ppo` is this program."""
    for name in ("verl", "verl/trainer"):
        (folder / name).mkdir(parents=True, exist_ok=True)
        (folder / name / "__init__.py").touch()
    (folder / "verl/trainer/main_ppo.py").write_text(text)
    return {"PYTHONPATH": str(folder)}


def test_a_program_that_dies_is_quoted(plan, tmp_path):
    text = "import sys; print('(Actor pid=3) RuntimeError: no room'); print('bye'); sys.exit(3)"
    with pytest.raises(BackendError, match="exit code 3: RuntimeError: no room"):
        watched(plan, **program(tmp_path, text))


def test_a_program_that_stands_still_is_ended_with_all_it_started(plan, tmp_path):
    child = "import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)', 'mine'])"
    environment = program(tmp_path, f"{child}; time.sleep(600)")
    with pytest.raises(BackendError, match="did nothing for 2 s"):
        watched(plan, 2.0, **environment)
    assert not [line for line in command_lines() if line.endswith(b"time.sleep(600)\0mine\0")]


def command_lines() -> Iterator[bytes]:
    """Yield the command line of every process of this machine, as /proc gives it: arguments ended by NUL bytes."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(FileNotFoundError, ProcessLookupError):
            yield path.read_bytes()


def test_a_rollout_that_breaks_ends_the_run(plan, tmp_path):
    environment = program(
        tmp_path, f"import pathlib, time; pathlib.Path({str(plan.fault_path)!r}).write_text('E: x'); time.sleep(600)"
    )
    with pytest.raises(BackendError, match="agent loop broke: E: x"):
        watched(plan, **environment)


def test_a_program_that_ends_well(plan, tmp_path):
    assert watched(plan, **program(tmp_path, "print('done')"))


def test_the_plugin_does_nothing_outside_a_run():
    code = "import composer_replication.recipes.verl.plugin, sys; assert 'verl' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, env={})


@pytest.mark.slow
def test_the_plugin_ends_a_process_of_a_run_that_cannot_load_it(plan):
    code = "import composer_replication.recipes.verl.plugin"
    broken = dataclasses.replace(plan, folder=plan.folder / "nowhere")
    for path in (broken.path, plan.path):  # no plan; a plan, and no verl
        found = subprocess.run([sys.executable, "-c", code], env={PLAN: str(path)}, capture_output=True, text=True, check=False)
        assert found.returncode == 1
        assert "verl cannot load the plugin" in found.stderr


def test_turns_of_other_weights_end_the_run():
    check_versions([3, 3], expected=3, step=4)
    with pytest.raises(BackendError, match=r"step 4: .* with the weights of step 2, not with those of step 3"):
        check_versions([3, 2], expected=3, step=4)
    with pytest.raises(BackendError, match="weights that it cannot name"):
        check_versions([3, None], expected=3, step=4)


def test_a_policy_without_a_generation_config_ends_its_turns_where_it_does_elsewhere(tmp_path):
    config = Qwen3Config(vocab_size=64, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, eos_token_id=[5, 7])
    Qwen3ForCausalLM(config).save_pretrained(tmp_path)
    (tmp_path / "generation_config.json").unlink()
    loaded = Qwen3ForCausalLM.from_pretrained(tmp_path)
    assert generation_config_of(str(tmp_path)).eos_token_id == loaded.generation_config.eos_token_id == [5, 7]
