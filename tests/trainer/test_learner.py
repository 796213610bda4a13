"""What the optimizer step owns beside the policy: schedules, self-teachers, the TAID clock; and all of it in the checkpoint."""

from __future__ import annotations

import copy
import json
import shutil
import time
from pathlib import Path

import psutil
import pytest
import torch
from learn import go_on, learn, learn_and_save
from peft import LoraConfig, get_peft_model
from ranks import on_ranks
from transformers import OPTConfig, OPTForCausalLM
from world import World, finish

from composer_replication.config import RunConfig, load_config
from composer_replication.distillation import AdaptersOffTeacher
from composer_replication.loss.batch import build_batch
from composer_replication.loss.forward import LogprobCache, enable_checkpointing, update_mode
from composer_replication.loss.forward.model_checkpoint import (
    latest_checkpoint,
    load_checkpoint,
    read_checkpoint,
    save_checkpoint,
)
from composer_replication.loss.forward.models import load_policy
from composer_replication.observe.metrics import deterministic
from composer_replication.trainer.learning import reference
from composer_replication.trainer.learning.learner import Learner
from composer_replication.trainer.learning.memory import saying_what_to_lower
from composer_replication.trainer.learning.utilisation import utilisation
from composer_replication.types import Pair
from composer_replication.types.errors import CheckpointError, ModelError


def learner(config: RunConfig, *, moved: bool = False) -> Learner:
    """`moved`: the policy has gone on from where it started, so that whatever is not restored shows."""
    torch.manual_seed(0)
    policy, _ = load_policy(config.model)
    made = Learner(policy, config)
    if moved:
        for parameter in made.policy.parameters():
            parameter.data.add_(0.1)
    return made


def batch(config: RunConfig) -> dict[str, torch.Tensor]:
    model, tokenizer = load_policy(config.model)
    return build_batch(tokenizer, device="cpu", model=model)


def test_a_linear_schedule_falls_to_zero_at_the_end(run_file: Path) -> None:
    words = ["--optimizer.schedule", "linear", "--optimizer.warmup_steps", "1", "--optimizer.learning_rate", "1.0"]
    config = load_config(run_file, [*words, "--loss.hint.weight", "0", "--loss.replay.weight", "0"])
    trained = learner(config)
    inputs = batch(config)
    rates = [trained.optimizer.param_groups[0]["lr"]]
    for _ in range(config.steps):
        trained.update(inputs)
        rates.append(trained.optimizer.param_groups[0]["lr"])
    assert rates == pytest.approx([0.5, 0.75, 0.5, 0.25, 0.0])


def test_gradients_are_freed_when_they_have_been_used(run_file: Path) -> None:
    """A server that shares the GPU may need their memory during the next rollouts."""
    trained = learner(load_config(run_file, ["--loss.replay.weight", "0"]))
    trained.update(batch(trained.config))
    assert all(parameter.grad is None for parameter in trained.policy.parameters())


def test_the_run_file_chooses_the_optimizer(run_file: Path) -> None:
    """AdamW's first step moves all entries of a block's matrix equally far, Muon's does not; embeddings move alike."""
    words = ["--loss.hint.weight", "0", "--loss.replay.weight", "0", "--optimizer.warmup_steps", "0"]
    name, outside = "model.layers.0.self_attn.q_proj.weight", "model.embed_tokens.weight"
    moved = {}
    for kind in ("adamw", "muon"):
        trained = learner(load_config(run_file, [*words, "--optimizer.type", kind]))
        before = trained.weights()
        trained.update(batch(trained.config))
        moved[kind] = {key: value - before[key] for key, value in trained.weights().items()}
    shares = {kind: found[name].abs() / found[name].abs().max() for kind, found in moved.items()}
    assert shares["adamw"].quantile(0.5) > 0.9
    assert shares["muon"].quantile(0.5) < 0.5
    assert torch.equal(moved["muon"][outside], moved["adamw"][outside])


@pytest.mark.parametrize(
    "options",
    [
        {"loss.hint.form": "taid"},
        {"loss.hint.form": "entropy_opd"},
        {"loss.hint.self_teacher": "ema", "loss.hint.rate": "0.5"},
        {"loss.hint.self_teacher": "trust_region", "loss.hint.rate": "0.5"},
        {"loss.hint.self_teacher": "live"},
        {"optimizer.type": "muon"},
        {"loss.rlvr.kl_beta": "0.1"},
        {"loss.rlvr.kl_beta": "0.1", "loss.hint.self_teacher": "ema"},
    ],
    ids=str,
)
def test_a_checkpoint_holds_everything(run_file: Path, world: World, tmp_path: Path, options: dict[str, str]) -> None:
    """Two steps, a checkpoint, two more from another start: as four steps without one, whatever else the channel keeps."""
    words = [word for key, value in options.items() for word in (f"--{key}", value)]
    config = load_config(run_file, ["--loss.hint.weight", "0.5", "--loss.replay.weight", "0.5", *words])
    inputs = batch(config)
    if config.loss.rlvr.kl_beta > 0:
        inputs |= {"advantages": torch.ones(len(inputs["input_ids"]))}
    whole = learner(config)
    expected = [deterministic(whole.update(inputs).metrics) for _ in range(4)]
    first = learner(config)
    for _ in range(2):
        first.update(inputs)
    save_checkpoint(tmp_path / "ckpt", 2, first, load_policy(config.model)[1], {})
    second = learner(config, moved=True)
    saved = latest_checkpoint(tmp_path / "ckpt")
    assert saved is not None
    load_checkpoint(saved, second)
    assert second.version == 2
    seen = [deterministic(second.update(inputs).metrics) for _ in range(2)]
    assert seen == expected[2:]
    assert expected[0]["hint/loss"] != 0.0
    if config.loss.rlvr.kl_beta > 0:
        assert expected[2]["rlvr/kl_ref/mean"] > 0.0
    if "loss.hint.form" in options and options["loss.hint.form"] == "taid":
        clock = [metrics["hint/taid_t"] for metrics in expected]
        assert clock == sorted(clock)
        assert clock[-1] > clock[0]


def test_one_copy_of_the_start_serves_reference_and_self_teacher(run_file: Path) -> None:
    frozen = learner(load_config(run_file, ["--loss.hint.self_teacher", "frozen", "--loss.rlvr.kl_beta", "0.1"]))
    assert frozen.reference is frozen.self_teacher is not None
    assert frozen.state_dict()["reference"] is None
    ema = learner(load_config(run_file, ["--loss.hint.self_teacher", "ema", "--loss.rlvr.kl_beta", "0.1"]))
    assert ema.reference is not ema.self_teacher
    assert {ema.state_dict()[which]["kind"] for which in ("reference", "self_teacher")} == {"frozen", "ema"}


def test_a_checkpoint_of_other_starting_weights_is_refused(run_file: Path) -> None:
    """It keeps no copy of them: the frozen self-teacher and the reference are made again from the model of the run file."""
    config = load_config(run_file, ["--loss.hint.self_teacher", "ema", "--loss.rlvr.kl_beta", "0.1"])
    first = learner(config)
    first.update(batch(config))
    saved, weights = copy.deepcopy((first.state_dict(), first.weights()))
    assert "model" not in saved["reference"]
    learner(config, moved=True).load_state_dict(saved, weights)
    policy, _ = load_policy(config.model)
    for parameter in policy.parameters():
        parameter.data.mul_(1.01)
    with pytest.raises(CheckpointError, match="other weights than the model that this run starts from"):
        Learner(policy, config).load_state_dict(saved, weights)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sharded", "optimizer"),
    [(False, "adamw"), (True, "adamw"), (False, "muon"), (True, "muon")],
    ids=["ddp", "fsdp2", "ddp-muon", "fsdp2-muon"],
)
def test_two_processes_take_the_steps_of_one(run_file: Path, tmp_path: Path, sharded: bool, optimizer: str) -> None:
    """Each has a part of the batch; weights, metrics and the TAID clock are those of one process with all of it."""
    words = ["--loss.hint.form", "taid", "--loss.rlvr.kl_beta", "0.1", "--optimizer.warmup_steps", "2"]
    words += ["--optimizer.type", optimizer]
    config = load_config(run_file, [*words, "--optimizer.micro_batch_tokens", "1"])
    one = batch(config)
    inputs = {key: value.repeat(3, *[1] * (value.dim() - 1)) if value.dim() else 3 * value for key, value in one.items()}
    inputs |= {"student_row": torch.arange(3), "advantages": torch.tensor([1.0, -0.5, 0.3])}
    expected = learn(0, config, inputs, 3)
    first, second = on_ranks(tmp_path, learn, config, inputs, 3, sharded)
    assert first["taid"] == second["taid"]
    assert first["taid"]["momentum"] != 0.0
    coarse = 100.0 if optimizer == "muon" else 1.0  # it orthogonalizes in bfloat16
    assert first["taid"] == pytest.approx(expected["taid"], rel=coarse * 1e-5)
    assert first["metrics"] == second["metrics"]
    for ours, theirs in zip(first["metrics"], expected["metrics"], strict=True):
        assert ours.pop("optimizer/positions_per_token") >= theirs.pop("optimizer/positions_per_token"), (
            "made-up rows are read too"
        )
        assert ours == pytest.approx(theirs, rel=min(1e-2, coarse * 1e-3), abs=coarse * 1e-6)
    assert first["off"] == second["off"] == expected["off"] == [{}, {}, {}]
    for name, value in expected["weights"].items():
        assert torch.equal(first["weights"][name], second["weights"][name])
        torch.testing.assert_close(first["weights"][name], value, rtol=1e-4, atol=coarse * 1e-5)


@pytest.mark.slow
def test_ranks_that_share_the_weights_out_save_what_one_process_has(run_file: Path, tmp_path: Path) -> None:
    """Their checkpoint is gone on from by them and by one process, and its weights are a policy; one process's by them."""
    words = ["--loss.hint.self_teacher", "ema", "--loss.rlvr.kl_beta", "0.1", "--optimizer.micro_batch_tokens", "1"]
    config = load_config(run_file, words)
    inputs = {
        key: value.repeat(2, *[1] * (value.dim() - 1)) if value.dim() else 2 * value for key, value in batch(config).items()
    }
    inputs |= {"student_row": torch.arange(2), "advantages": torch.tensor([1.0, -0.5])}
    ahead, _ = on_ranks(tmp_path, learn_and_save, config, inputs, tmp_path / "theirs")
    theirs = tmp_path / "theirs" / "step_00002"
    read_checkpoint(theirs)
    alone = learner(config)
    for _ in range(2):
        alone.update(inputs)
    ours = save_checkpoint(tmp_path / "ours", 2, alone, load_policy(config.model)[1], {})
    read, _ = load_policy(config.model.model_copy(update={"path": str(theirs)}))
    for name, value in alone.weights().items():
        torch.testing.assert_close(read.state_dict()[name], value, rtol=1e-4, atol=1e-5)
    other = learner(config, moved=True)
    load_checkpoint(theirs, other)
    other.update(inputs)
    found = [other.weights()]
    for saved in (theirs, ours):
        folder = tmp_path / f"go_on-{saved.parent.name}"
        folder.mkdir()
        first, second = on_ranks(folder, go_on, config, inputs, saved)
        assert all(torch.equal(first[name], second[name]) for name in first)
        found.append(first)
    assert all(torch.equal(found[1][name], value) for name, value in ahead.items()), "nothing is lost in between"
    for weights in found:
        for name, value in ahead.items():
            torch.testing.assert_close(weights[name], value, rtol=1e-4, atol=1e-5)


@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated:FutureWarning")
def test_a_model_with_adapters_is_its_own_reference(run_file: Path) -> None:
    """The KL term and the self-teacher read the model beneath: nothing is copied, and only adapters move."""
    config = load_config(run_file, ["--loss.rlvr.kl_beta", "0.1", "--optimizer.learning_rate", "0.05"])
    torch.manual_seed(0)
    policy, _ = load_policy(config.model)
    before = {name: parameter.clone() for name, parameter in policy.named_parameters()}
    inputs = batch(config) | {"advantages": torch.ones(1)}
    trained = Learner(get_peft_model(policy, LoraConfig(r=2, target_modules=["q_proj", "down_proj"])), config)
    assert isinstance(trained.self_teacher, AdaptersOffTeacher)
    assert trained.reference is trained.self_teacher
    distances = [trained.update(inputs).metrics["rlvr/kl_ref/mean"] for _ in range(3)]
    assert distances[0] == pytest.approx(0.0, abs=1e-9)  # it may read the same rows beside others
    assert min(distances[1:]) > 1e-6
    beneath = trained.policy.unload()
    for name, parameter in beneath.named_parameters():
        assert torch.equal(parameter, before[name])


@pytest.mark.parametrize("text", ["", "torn", "0" * 64 + "  config.json\n"])
def test_a_damaged_manifest_is_no_manifest(run_file: Path, tmp_path: Path, text: str) -> None:
    config = load_config(run_file)
    save_checkpoint(tmp_path / "ckpt", 1, learner(config), load_policy(config.model)[1], {})
    saved = tmp_path / "ckpt" / "step_00001"
    (saved / "MANIFEST.sha256").write_text(text)
    with pytest.raises(CheckpointError, match="MANIFEST"):
        read_checkpoint(saved)


def test_the_update_is_of_the_policy_that_sampled(run_file: Path, world: World, tmp_path: Path) -> None:
    """Sampling and references have no dropout: with it, the update would be of another policy. Checkpointing trains layers."""
    shutil.copytree(world.policy, tmp_path / "drops")
    file = tmp_path / "drops" / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"attention_dropout": 0.5}))
    weights, calls = [], []
    for path, checkpointing in ((world.policy, "false"), (tmp_path / "drops", "false"), (tmp_path / "drops", "true")):
        config = load_config(run_file, ["--model.path", str(path), "--optimizer.gradient_checkpointing", checkpointing])
        trained = learner(config)
        trained.policy.train()
        calls.append(0)

        def count(*_: object) -> None:
            calls[-1] += 1

        trained.policy.model.layers[0].mlp.register_forward_pre_hook(count)
        trained.update(batch(config))
        weights.append(trained.policy.state_dict())
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    assert calls[0] == calls[1] < calls[2]
    for name, value in weights[2].items():
        torch.testing.assert_close(value, weights[0][name])


def test_layers_that_drop_by_themselves_do_not_when_checkpointed() -> None:
    torch.manual_seed(0)
    model = OPTForCausalLM(
        OPTConfig(vocab_size=50, hidden_size=16, ffn_dim=32, num_hidden_layers=2, num_attention_heads=2, dropout=0.5)
    )
    ids = torch.tensor([[1, 2, 3, 4]])
    expected = model.eval()(ids).logits
    enable_checkpointing(model)
    update_mode(model)
    assert any(module.training for module in model.modules())
    torch.testing.assert_close(model(ids, use_cache=False).logits, expected)


@pytest.mark.slow
def test_what_a_policy_is_not_spared_is_said(run_file: Path, world: World, tmp_path: Path) -> None:
    shutil.copytree(world.policy, tmp_path / "long")
    file = tmp_path / "long" / "config.json"
    config = json.loads(file.read_text())
    config["rope_parameters"] |= {"rope_type": "dynamic", "factor": 2.0}
    file.write_text(json.dumps(config))
    output = finish("train", str(run_file), "--steps", "1", "--model.path", str(tmp_path / "long"), cwd=run_file.parent)
    assert output.count("once per sequence: its rotary frequencies depend on the length of the whole sequence") == 1


def test_arms_that_start_from_one_policy_score_a_pair_once(run_file: Path, tmp_path: Path) -> None:
    pairs = [Pair(pair_id="pair", prompt_ids=(1, 2), chosen_ids=(3, 4), rejected_ids=(5,))]
    found = []
    for moved in (False, False, True):
        known = LogprobCache(tmp_path / "reference.sqlite")
        trained = learner(load_config(run_file), moved=moved)
        trained.pair_logprobs = known
        found.append((trained.with_reference_logprobs(pairs), known.hits))
        known.close()
    assert found[0][0] == found[1][0] != found[2][0]
    assert [hits for _, hits in found] == [0, 2, 0]


def test_a_gradient_that_is_not_finite_is_refused(run_file: Path) -> None:
    """AdamW would carry it into every weight."""
    config = load_config(run_file, ["--loss.replay.variant", "dpo"])
    inputs = batch(config)
    trained = learner(config)
    before = {name: p.clone() for name, p in trained.policy.named_parameters()}
    with pytest.raises(ModelError, match="the gradient of step 1 is not finite"):
        trained.update(inputs | {"dpo_weights": inputs["dpo_weights"] * float("nan")})
    assert trained.version == 0
    assert all(torch.equal(p, before[name]) for name, p in trained.policy.named_parameters())


def test_exhausted_memory_names_what_to_lower(run_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def exhausted(*_: object) -> None:
        raise torch.OutOfMemoryError("no room")

    config = load_config(run_file)
    trained = learner(config)
    pair = Pair(pair_id="pair", prompt_ids=(1, 2), chosen_ids=(3,), rejected_ids=(4,))
    with monkeypatch.context() as patch:
        patch.setattr(reference, "sequence_logprobs", exhausted)
        with pytest.raises(ModelError, match="scoring a preference pair of 3 tokens: no room"):
            trained.with_reference_logprobs([pair])
    monkeypatch.setattr(trained, "_backward", exhausted)
    with pytest.raises(ModelError, match="ran out of memory while learning in step 1: no room") as raised:
        trained.update(batch(config))
    assert "set optimizer.gradient_checkpointing = true" in str(raised.value)


@pytest.mark.parametrize(
    ("options", "context", "fix"),
    [
        ({"gradient_checkpointing": False}, 4096, "set optimizer.gradient_checkpointing = true, lower optimizer.micro_batch_tok"),
        ({"gradient_checkpointing": True}, 4096, "lower optimizer.micro_batch_tokens (now 8192), then go on with --resume"),
        ({"gradient_checkpointing": False}, 8192, "set optimizer.gradient_checkpointing = true, then go on with --resume"),
        (
            {"gradient_checkpointing": True},
            8192,
            "in a new run, set model.lora.rank = 16, or model.frozen_copies = cpu, or lower",
        ),
    ],
)
def test_what_to_lower_is_what_helps(options: dict[str, bool], context: int, fix: str, run_file: Path) -> None:
    """Smaller passes are no help where each trajectory is a pass by itself."""
    config = load_config(run_file)
    optimizer = config.optimizer.model_copy(update={"micro_batch_tokens": 8192, **options})
    rollout = config.rollout.model_copy(update={"context_tokens": context})
    config = config.model_copy(update={"optimizer": optimizer, "rollout": rollout})
    with pytest.raises(ModelError) as raised, saying_what_to_lower("learning", config):
        raise torch.OutOfMemoryError("no room")
    assert raised.value.fix is not None
    assert raised.value.fix.startswith(fix)


def test_the_speed_of_an_update_is_that_of_its_tokens(run_file: Path) -> None:
    trained = learner(load_config(run_file))
    inputs = batch(trained.config)
    trained.update(inputs)  # sets up what later ones use, and measures what the device attains
    began = time.perf_counter()
    metrics = trained.update(inputs).metrics
    most_s = time.perf_counter() - began
    rate = metrics["time/update_tokens_per_s"]
    assert metrics["optimizer/tokens"] / most_s <= rate < 100 * metrics["optimizer/tokens"] / most_s
    assert metrics["time/update_utilisation"] == pytest.approx(utilisation(trained.policy, rate, 1))
    resident = psutil.Process().memory_info().rss / 2**30
    assert resident <= metrics["memory/peak_gib"] * 1.01 <= psutil.virtual_memory().total / 2**30
