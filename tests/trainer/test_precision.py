"""A policy in each precision, whole or with adapters: what is stored and trained, and that a run resumes to the same bits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM
from typer.testing import CliRunner
from world import World, composer, finish

from composer_replication.cli import app
from composer_replication.config import ModelConfig, RunConfig, load_config
from composer_replication.loss import compose_loss
from composer_replication.loss.batch import build_batch
from composer_replication.loss.batch_keys import Batch
from composer_replication.loss.forward import compute_dtype, evaluating, models, sequence_logprobs
from composer_replication.loss.forward.adapters import policy_weights
from composer_replication.loss.forward.model_checkpoint import latest_checkpoint, load_checkpoint, save_checkpoint
from composer_replication.loss.forward.models import load_architecture, load_policy, load_to_sample, save_policy
from composer_replication.observe import RunDir
from composer_replication.rollouts.protocol import SampleRequest
from composer_replication.rollouts.transformers_engine import TransformersEngine
from composer_replication.trainer.learning.learner import Learner
from composer_replication.types.errors import CheckpointError, ConfigError, ModelError

LORA = ["--model.lora.rank", "4"]
FIRST = "model.layers.0.self_attn.q_proj.weight"


def learner(config: RunConfig) -> Learner:
    torch.manual_seed(0)
    policy, _ = load_policy(config.model)
    return Learner(policy, config)


def a_batch(config: RunConfig) -> Batch:
    model, tokenizer = load_policy(ModelConfig(path=config.model.path, device="cpu"))
    return build_batch(tokenizer, device="cpu", model=model)


def trained(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: p.detach().clone() for name, p in model.named_parameters() if p.requires_grad}


@pytest.mark.parametrize(
    ("words", "frozen", "learnt", "computed"),
    [
        ([], None, torch.float32, None),
        (["--model.precision", "mixed"], None, torch.float32, torch.bfloat16),
        (["--model.precision", "bfloat16"], None, torch.bfloat16, torch.bfloat16),
        (LORA, torch.float32, torch.float32, None),
        ([*LORA, "--model.precision", "mixed"], torch.bfloat16, torch.float32, torch.bfloat16),
        ([*LORA, "--model.precision", "bfloat16"], torch.bfloat16, torch.float32, torch.bfloat16),
    ],
    ids=str,
)
def test_what_is_stored_and_computed_in_which_type(
    run_file: Path, words: list[str], frozen: Any, learnt: torch.dtype, computed: torch.dtype | None
) -> None:
    model, _ = load_policy(load_config(run_file, words).model)
    types: dict[bool, set[torch.dtype]] = {True: set(), False: set()}
    for parameter in model.parameters():
        types[parameter.requires_grad].add(parameter.dtype)
    assert types == {True: {learnt}, False: {frozen} - {None}}
    assert compute_dtype(model) == computed


@pytest.mark.parametrize("precision", ["mixed", "bfloat16"])
def test_the_loss_is_that_of_the_models_own_precision_wherever_it_is_asked(run_file: Path, precision: str) -> None:
    """In updates, in readings without gradient and in rollouts; without an autocast around any of them."""
    config = load_config(run_file, ["--model.precision", precision])
    model, _ = load_policy(config.model)
    batch = a_batch(config)
    exact, _ = load_policy(load_config(run_file).model)
    with torch.autocast("cpu", torch.bfloat16):
        expected = compose_loss(exact, batch, alpha_sdpo=0.5).total.item()
    found = compose_loss(model, batch, alpha_sdpo=0.5).total.item()
    assert found == pytest.approx(expected, rel=0.02)
    if precision == "mixed":
        assert found == expected
    rows = batch["input_ids"], batch["attention_mask"], batch["response_mask"]
    with evaluating(model):
        assert model.lm_head(torch.randn(2, 32)).dtype == torch.bfloat16
        scored = sequence_logprobs(model, *rows)
    assert scored.dtype == torch.float32
    with evaluating(exact):
        torch.testing.assert_close(scored, sequence_logprobs(exact, *rows), rtol=0.05, atol=0.05)


@pytest.mark.parametrize("teacher", ["frozen", "ema", "trust_region"])
@pytest.mark.parametrize(
    "words",
    [
        ["--model.precision", "mixed", "--model.frozen_copies", "cpu"],
        ["--model.precision", "bfloat16"],
        ["--model.precision", "bfloat16", "--optimizer.offload", "true"],
        [*LORA, "--model.precision", "mixed", "--optimizer.gradient_checkpointing", "true"],
    ],
    ids=lambda words: " ".join(words),
)
def test_a_restored_learner_takes_the_same_step(run_file: Path, tmp_path: Path, words: list[str], teacher: str) -> None:
    config = load_config(run_file, [*words, "--loss.hint.self_teacher", teacher, "--loss.replay.weight", "0"])
    batch = a_batch(config)
    one = learner(config)
    _, tokenizer = load_policy(ModelConfig(path=config.model.path, device="cpu"))
    losses = [one.update(batch).metrics["loss/total"] for _ in range(3)]
    assert losses[-1] < losses[0]
    saved = save_checkpoint(tmp_path, one.version, one, tokenizer, {})
    other = learner(config)
    load_checkpoint(saved, other)
    for trainer in (one, other):
        torch.manual_seed(5)
        trainer.update(batch)
    assert all(torch.equal(a, b) for a, b in zip(trained(one.policy).values(), trained(other.policy).values(), strict=True))


def test_adapters_are_all_that_is_trained_and_saved(run_file: Path, tmp_path: Path) -> None:
    config = load_config(run_file, [*LORA, "--loss.hint.weight", "0", "--loss.replay.weight", "0"])
    one, batch = learner(config), a_batch(config)
    _, tokenizer = load_policy(ModelConfig(path=config.model.path, device="cpu"))
    before = {name: tensor.clone() for name, tensor in one.policy.state_dict().items()}
    for _ in range(3):
        one.update(batch)
    moved = {name for name, tensor in one.policy.state_dict().items() if not torch.equal(tensor, before[name])}
    assert moved
    assert all("lora_" in name for name in moved)
    folder = save_checkpoint(tmp_path, one.version, one, tokenizer, {})
    assert not (folder / "model.safetensors").exists()
    expected = sequence_logprobs(one.policy, batch["input_ids"], batch["attention_mask"], batch["response_mask"])
    merged, _ = load_policy(ModelConfig(path=str(folder), device="cpu"))
    assert not hasattr(merged, "peft_config")
    theirs = AutoModelForCausalLM.from_pretrained(folder)
    for model in (merged, theirs):
        found = sequence_logprobs(model, batch["input_ids"], batch["attention_mask"], batch["response_mask"])
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    with pytest.raises(ConfigError, match=r"model.lora.rank = 4 asks for others on top(.|\n)*composer weights merge"):
        load_policy(config.model.model_copy(update={"path": str(folder)}))
    other = learner(load_config(run_file, ["--model.lora.rank", "4", "--model.lora.targets", '["q_proj"]']))
    with pytest.raises(CheckpointError, match="other LoRA adapters"):
        load_checkpoint(folder, other)


def test_two_loads_have_the_same_adapters_and_leave_the_generator_alone(run_file: Path) -> None:
    config = load_config(run_file, LORA)
    found = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        model, _ = load_policy(config.model)
        found.append((trained(model), torch.rand(1)))
    assert all(torch.equal(a, b) for a, b in zip(found[0][0].values(), found[1][0].values(), strict=True))
    torch.manual_seed(1)
    load_policy(load_config(run_file).model)
    assert torch.equal(found[0][1], torch.rand(1))


def test_adapters_that_are_sampled_from_in_bfloat16_are_not_rounded_away(run_file: Path, tmp_path: Path) -> None:
    """Added to the weights, a small change of them would mostly be."""
    config = load_config(run_file, [*LORA, "--model.precision", "bfloat16"])
    model, tokenizer = load_policy(config.model)
    torch.manual_seed(0)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            parameter.data.normal_(std=2e-3)
    save_policy(model, tokenizer, tmp_path)
    sampled, _ = load_to_sample(str(tmp_path), "bfloat16")
    assert {p.dtype for n, p in sampled.named_parameters() if "lora_" not in n} == {torch.bfloat16}
    assert compute_dtype(sampled) == torch.bfloat16
    found, exact = policy_weights(sampled), policy_weights(model)
    assert found.keys() == exact.keys()
    for name, weight in exact.items():
        assert found[name].dtype == torch.float32
        assert found[name].equal(weight), name
    ids = torch.arange(2, 40)[None]
    with evaluating(model), evaluating(sampled):
        assert sampled(input_ids=ids).logits.equal(model(input_ids=ids).logits)
    assert load_architecture(str(tmp_path)).to_dict()["hidden_size"] == model.config.hidden_size, "that of what they stand on"
    whole, _ = load_to_sample(str(tmp_path), "float32")
    assert {p.dtype for p in whole.parameters()} == {torch.float32}
    assert not any("lora_" in name for name, _ in whole.named_parameters())
    assert {p.dtype for p in load_to_sample(config.model.path, "bfloat16")[0].parameters()} == {torch.bfloat16}


@pytest.mark.parametrize("words", [[], LORA], ids=["whole", "adapters"])
def test_weights_on_their_way_to_a_server_are_rounded_to_its_type(run_file: Path, tmp_path: Path, words: list[str]) -> None:
    """Once each, tied ones too; adapters stay as they are."""
    model, tokenizer = load_policy(load_config(run_file, words).model)
    save_policy(model, tokenizer, tmp_path, None, torch.bfloat16)
    (file,) = tmp_path.glob("*.safetensors")
    kept = load_file(file)
    assert {value.dtype for value in kept.values()} == {torch.float32 if words else torch.bfloat16}
    assert {value.dtype for value in model.parameters()} == {torch.float32}, "a copy is rounded"
    if not words:
        exact = model.state_dict()
        assert kept.keys() <= exact.keys()
        assert all(value.equal(exact[name].to(torch.bfloat16)) for name, value in kept.items())
        assert sum(value.numel() for value in kept.values()) == sum(value.numel() for value in model.parameters())


def test_an_architecture_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no such folder"):
        load_architecture(str(tmp_path / "nowhere"))


def test_targets_that_no_layer_has_are_named(run_file: Path) -> None:
    with pytest.raises(ConfigError, match=r"model.lora.targets = \['nonesuch'\](.|\n)*name linear layers"):
        load_policy(load_config(run_file, [*LORA, "--model.lora.targets", '["nonesuch"]']).model)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--model.lora.alpha", "8"], "alpha is not read with rank = 0"),
        ([*LORA, "--model.frozen_copies", "cpu"], "there are no copies"),
        (["--optimizer.type", "muon", "--model.precision", "bfloat16"], "most of Muon's steps"),
        (["--optimizer.type", "muon", "--optimizer.moments", "8bit"], "moments = 8bit is not read with type = muon"),
        (["--optimizer.offload", "true", "--optimizer.moments", "8bit"], "offload = true is not read with moments = 8bit"),
        (["--diloco.enabled", "true", "--steps", "10", "--model.precision", "bfloat16"], "a round's steps are smaller"),
        (["--diloco.enabled", "true", "--steps", "10", "--optimizer.offload", "true"], "a round changes the weights"),
    ],
    ids=str,
)
def test_what_does_not_go_together_is_refused(run_file: Path, words: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_config(run_file, words)


@pytest.mark.slow
@pytest.mark.long
def test_a_lora_run_killed_and_resumed_ends_the_same_and_merges(run_file: Path, world: World) -> None:
    words = [*LORA, "--model.precision", "mixed", "--optimizer.learning_rate", "1e-2", "--loss.replay.weight", "0", "--seed", "1"]
    finish("train", str(run_file), *words, "--name", "whole", cwd=run_file.parent)
    runs = run_file.parent / "runs"
    process = composer("train", str(run_file), *words, "--name", "killed", cwd=run_file.parent)
    while not list((runs / "killed").glob("ckpt/main/step_00002/MANIFEST.sha256")):
        assert process.poll() is None, process.communicate()[0]
    process.kill()
    process.communicate()
    finish("train", str(run_file), *words, "--name", "killed", "--resume", cwd=run_file.parent)
    ends = [latest_checkpoint(RunDir(runs / name).ckpt_path / "main") for name in ("whole", "killed")]
    adapters = [(end / "adapter_model.safetensors").read_bytes() for end in ends if end is not None]
    assert adapters[0] == adapters[1]
    into = run_file.parent / "merged"
    done = CliRunner().invoke(app, ["weights", "merge", str(ends[0]), str(into)])
    assert done.exit_code == 0, done.output
    config = json.loads((into / "config.json").read_text())
    assert config["dtype"] == "bfloat16"
    merged, _ = load_policy(ModelConfig(path=str(into), device="cpu"))
    start, _ = load_policy(ModelConfig(path=str(world.policy), device="cpu"))
    assert not torch.equal(merged.state_dict()[FIRST], start.state_dict()[FIRST].bfloat16().float())
    again = CliRunner().invoke(app, ["weights", "merge", str(ends[0]), str(into)])
    assert "is not empty" in str(again.exception)


def test_what_is_sampled_has_the_log_probs_that_the_trainer_finds(run_file: Path) -> None:
    """As near as bfloat16 lets two passes over the same tokens be: the head adds nothing to it."""
    config = load_config(run_file, ["--model.precision", "mixed"])
    model, tokenizer = load_policy(config.model)
    with torch.no_grad():
        model.lm_head.weight.mul_(4.0)  # sharp logits, whose rounding would show
    engine = TransformersEngine(model, tokenizer)
    prompt = tokenizer.encode("def total(prices):", add_special_tokens=False)
    requests = [SampleRequest(session=f"s{i}", new_ids=tuple(prompt), max_new_tokens=24, seed=i) for i in range(8)]
    apart = []
    for sample in engine.sample(requests, temperature=1.0):
        ids = torch.tensor([[*prompt, *sample.ids]])
        wanted = torch.zeros_like(ids)
        wanted[:, len(prompt) :] = 1
        with evaluating(model):
            found = sequence_logprobs(model, ids, None, wanted)[0, len(prompt) :]
        apart += (found - torch.tensor(sample.logprobs)).abs().tolist()
    assert sum(apart) / len(apart) < 2e-3


@pytest.mark.parametrize(
    ("asked", "device", "on"), [("auto", "cpu", False), ("auto", "cuda", True), ("true", "cpu", True), ("false", "cuda", False)]
)
def test_checkpointing_is_on_by_default_on_a_gpu(
    run_file: Path, monkeypatch: pytest.MonkeyPatch, asked: str, device: str, on: bool
) -> None:
    monkeypatch.setattr(models, "resolve_device", lambda _: torch.device(device))
    config = load_config(run_file, ["--optimizer.gradient_checkpointing", asked])
    assert models.resolve_checkpointing(config) is on
    cannot = torch.nn.Linear(2, 2)
    assert models.resolve_checkpointing(config, cannot) is (on and asked == "true"), "auto leaves alone what has no checkpoints"
