"""The parts of the PRIME-RL adapter that need no PRIME-RL: the loss on inputs of its shape, pairs as weights, what is refused."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from composer_replication.config import LossConfig, ReplayConfig, RunConfig, SubstrateConfig
from composer_replication.distillation import dpo_loss, simpo_loss
from composer_replication.loss import compose_loss
from composer_replication.loss.batch import collate
from composer_replication.policy_gradient import surrogate
from composer_replication.quickstart.policy import tiny_model, tiny_tokenizer
from composer_replication.recipes.prime_rl import algorithm, launcher, substrate
from composer_replication.recipes.prime_rl.composer_loss import loss_fn
from composer_replication.recipes.prime_rl.config import LOSS_FN, check, prime_rl_config
from composer_replication.recipes.prime_rl.import_metrics import measured
from composer_replication.recipes.prime_rl.scoring import Pairs
from composer_replication.recipes.prime_rl.settings import FROZEN_URL, RUN_FILE, read_run_file
from composer_replication.recipes.prime_rl.signed_advantages import signed_advantages
from composer_replication.recipes.prime_rl.traces import RESULTS, trajectory_of
from composer_replication.types import Pair
from composer_replication.types.errors import ConfigError, MissingExtraError


@dataclass
class Inputs:
    """PRIME-RL's LossInputs, as 0.7 and later have it."""

    trainer_logprobs: torch.Tensor
    inference_logprobs: torch.Tensor
    ref_logprobs: torch.Tensor | None
    advantages: torch.Tensor
    loss_mask: torch.Tensor
    loss_weights: torch.Tensor | None = None


@dataclass
class OlderInputs:
    """As 0.5 and 0.6 have it."""

    trainer_logprobs: torch.Tensor
    inference_logprobs: torch.Tensor
    teacher_logprobs: torch.Tensor | None
    advantages: torch.Tensor
    loss_mask: torch.Tensor


def inputs(n=12, **changes):
    g = torch.Generator().manual_seed(0)
    now = (-torch.rand(n, generator=g) * 2).requires_grad_()
    made = Inputs(
        trainer_logprobs=now,
        inference_logprobs=now.detach() + 0.3 * torch.randn(n, generator=g),
        ref_logprobs=now.detach() - 0.5,
        advantages=torch.randn(n, generator=g),
        loss_mask=torch.arange(n) % 3 != 0,
    )
    return replace(made, **changes)


# --- the rl component -------------------------------------------------------------------------------------------------


def test_the_loss_is_the_sum_of_our_surrogate_over_the_mask():
    given = inputs()
    mask = given.loss_mask
    found = loss_fn(given, objective="cispo")
    expected = surrogate("cispo", given.trainer_logprobs[mask], given.inference_logprobs[mask], given.advantages[mask])
    assert found.loss.item() == pytest.approx(expected.loss.sum().item())
    assert found.metrics["rlvr/tokens"].item() == int(mask.sum())
    (gradient,) = torch.autograd.grad(found.loss, given.trainer_logprobs)
    assert gradient[~mask].abs().max().item() == 0.0


def test_weights_scale_tokens():
    weights = torch.linspace(0, 2, 12)
    plain, weighted = inputs(), inputs(loss_weights=weights)
    (before,) = torch.autograd.grad(loss_fn(plain, objective="dapo").loss, plain.trainer_logprobs)
    (after,) = torch.autograd.grad(loss_fn(weighted, objective="dapo").loss, weighted.trainer_logprobs)
    assert torch.allclose(after, before * weights)


def test_tokens_without_a_finite_logprob_have_no_influence():
    given = inputs()
    broken = given.inference_logprobs.clone()
    broken[1] = -torch.inf
    found = loss_fn(replace(given, inference_logprobs=broken))
    (gradient,) = torch.autograd.grad(found.loss, given.trainer_logprobs)
    assert torch.isfinite(gradient).all()
    assert gradient[1].item() == 0.0
    assert found.metrics["rlvr/dropped/tokens"].item() == 1


def test_the_importance_correction_weighs_by_the_ratio_to_the_engine():
    given = inputs()
    mask = given.loss_mask
    ratio = (given.trainer_logprobs - given.inference_logprobs).detach().exp()
    (found,) = torch.autograd.grad(
        loss_fn(given, objective="dapo", importance="tis", importance_high=1.1).loss, given.trainer_logprobs
    )
    assert torch.allclose(found, torch.where(mask, -given.advantages * ratio.clamp(max=1.1), 0.0))


def test_the_reference_has_either_name():
    given = inputs()
    older = OlderInputs(given.trainer_logprobs, given.inference_logprobs, given.ref_logprobs, given.advantages, given.loss_mask)
    assert loss_fn(older, kl_beta=0.3).loss.item() == loss_fn(given, kl_beta=0.3).loss.item()
    assert loss_fn(given, kl_beta=0.3).loss.item() > loss_fn(given).loss.item()
    with pytest.raises(ValueError, match="teacher_logprobs"):
        loss_fn(inputs(ref_logprobs=None), kl_beta=0.3)


def test_a_sequence_without_tokens_has_loss_zero_and_a_gradient():
    given = inputs(loss_mask=torch.zeros(12, dtype=torch.bool))
    found = loss_fn(given, objective="gspo")
    found.loss.backward()
    assert (found.loss.item(), given.trainer_logprobs.grad.abs().max().item()) == (0.0, 0.0)


def published(given: Inputs, high: float, low: float, adv_tau: float, kl_tau: float) -> torch.Tensor:
    """PRIME-RL's default loss as seed 003, recipe C, writes it down."""
    log_ir = given.trainer_logprobs - given.inference_logprobs
    moved = given.trainer_logprobs.exp() - given.inference_logprobs.exp()
    invalid = torch.where(given.advantages > 0, moved > high, moved < -low)
    keep = given.loss_mask & ~invalid
    return (-(keep * adv_tau * given.advantages * log_ir.exp()) + kl_tau * given.loss_mask * log_ir**2).sum()


@pytest.mark.parametrize("keywords", [{}, {"dppo_mask_high": 0.05, "dppo_mask_low": 0.01, "adv_tau": 0.5, "kl_tau": 0.3}])
def test_without_an_objective_it_is_the_published_default(keywords):
    given = inputs(64)
    high, low = keywords.get("dppo_mask_high", 0.2), keywords.get("dppo_mask_low", 0.2)
    expected = published(given, high, low, keywords.get("adv_tau", 1.0), keywords.get("kl_tau", 1e-3))
    found = loss_fn(given, **keywords).loss
    assert found.item() == pytest.approx(expected.item(), rel=1e-5)
    ours, theirs = (torch.autograd.grad(value, given.trainer_logprobs)[0] for value in (found, expected))
    torch.testing.assert_close(ours, theirs)


def test_the_other_channels_are_not_in_the_loss():
    with pytest.raises(NotImplementedError, match=r"ref_kl component: set loss\.hint\.weight"):
        loss_fn(inputs(), alpha_sdpo=0.1)
    with pytest.warns(UserWarning, match=r"beta_dpo has no effect: the replay channel travels in the trainer's ce component"):
        loss_fn(inputs(), beta_dpo=0.1)
    with pytest.raises(ValueError, match="give epsilon_low, epsilon_high and dppo_tau instead"):
        loss_fn(inputs(), objective="dapo", kl_tau=0.5)
    with pytest.raises(ValueError, match="epsilon_low"):
        loss_fn(inputs(), dppo_mask_low=-0.1)


# --- pairs ------------------------------------------------------------------------------------------------------------


def test_weights_are_the_derivatives_of_the_losses():
    chosen, rejected = [-1.0, -2.0, -0.5], [-0.3, -0.9]
    signed = signed_advantages(
        chosen, rejected, ReplayConfig(variant="dpo", anchor=0.0, dpo_beta=0.3), reference=(-4.0, -1.0), confidence=0.5
    )
    margin = 0.3 * ((-3.5 + 4.0) - (-1.2 + 1.0))
    assert signed.margin == pytest.approx(margin)
    assert signed.chosen == pytest.approx(0.5 * 0.3 * torch.sigmoid(torch.tensor(-margin, dtype=torch.float64)).item())
    assert signed.rejected == pytest.approx(-signed.chosen)
    assert signed.loss == pytest.approx(dpo_loss(*(torch.tensor([x]) for x in (-3.5, -1.2, -4.0, -1.0)), 0.3).item())
    simpo = signed_advantages(chosen, rejected, ReplayConfig(variant="simpo", anchor=0.0))
    means = torch.tensor([-3.5 / 3]), torch.tensor([-0.6])
    assert simpo.loss == pytest.approx(simpo_loss(*means).item())
    assert simpo.chosen * 3 == pytest.approx(-simpo.rejected * 2)  # per token, so each side has the same sum
    sft = signed_advantages(chosen, rejected, ReplayConfig(), confidence=0.5)
    assert (sft.chosen, sft.rejected, sft.loss, sft.margin) == (0.5, 0.0, 3.5, None)
    anchored = signed_advantages(chosen, rejected, ReplayConfig(variant="dpo", dpo_beta=0.3), reference=(-4.0, -1.0))
    assert (anchored.chosen, anchored.rejected) == pytest.approx((2 * signed.chosen + 1.0, 2 * signed.rejected))
    with pytest.raises(ValueError, match="reference"):
        signed_advantages(chosen, rejected, ReplayConfig(variant="dpo"))
    with pytest.raises(ValueError, match="at least one token"):
        signed_advantages([], rejected, ReplayConfig(variant="simpo"))


@pytest.mark.parametrize("variant", ["sft", "dpo", "dpo_positive", "ipo", "apo_zero", "simpo"])
def test_signed_advantages_give_the_gradient_of_the_replay_channel(variant):
    tokenizer = tiny_tokenizer()
    model = tiny_model(tokenizer, 0, hidden=32, layers=1).double()
    pairs = [
        Pair(pair_id="a", prompt_ids=(9, 10, 11), chosen_ids=(12, 13, 14, 15), rejected_ids=(16, 17), confidence=1.0),
        Pair(pair_id="b", prompt_ids=(20, 21), chosen_ids=(22,), rejected_ids=(23, 24, 25), confidence=0.5),
    ]
    pairs = [replace(pair, ref_chosen_logprob=-20.0 - i, ref_rejected_logprob=-14.0) for i, pair in enumerate(pairs)]
    options = ReplayConfig(variant=variant, **({"dpo_beta": 0.2} if variant == "dpo" else {}))
    batch = {k: v.double() if v.is_floating_point() else v for k, v in collate([], None, (), pairs, pad_id=0).items()}
    compose_loss(
        model, batch, LossConfig(hint={"weight": 0.0}, replay=options.model_copy(update={"weight": 0.6}))
    ).total.backward()
    expected = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
    model.zero_grad()
    total, tokens = 0.0, 0
    config = SimpleNamespace(loss=SimpleNamespace(replay=options))
    scale = Pairs(config, tuple(pairs), Path()).tokens_per_token
    for pair in pairs:
        sides = []
        for answer in (pair.chosen_ids, pair.rejected_ids):
            ids = torch.tensor([[*pair.prompt_ids, *answer]])
            sides.append(model(input_ids=ids).logits[0, :-1].log_softmax(-1).gather(-1, ids[0, 1:, None])[-len(answer) :, 0])
            tokens += len(answer) if variant != "sft" or answer == pair.chosen_ids else 0
        reference = (pair.ref_chosen_logprob, pair.ref_rejected_logprob)
        signed = signed_advantages(*(s.tolist() for s in sides), options, confidence=pair.confidence, reference=reference)
        total = total - 0.6 * scale * (signed.chosen * sides[0].sum() + signed.rejected * sides[1].sum())
    (total / tokens).backward()
    found = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
    assert float((found - expected).norm() / expected.norm()) < 1e-7


# --- traces -----------------------------------------------------------------------------------------------------------


def node(role, content="", *, ids=(), scaffold=0, sampled=False, **message):
    size = len(ids) - scaffold
    return SimpleNamespace(
        message=SimpleNamespace(role=role, content=content, **message),
        sampled=sampled,
        token_ids=list(ids),
        mask=[False] * scaffold + [sampled] * size,
        logprobs=[-0.5] * size if sampled else [],
    )


def trace(**info):
    return SimpleNamespace(
        id="t",
        task=SimpleNamespace(data=SimpleNamespace(task_id="mend")),
        tools=[SimpleNamespace(name="look", description="d", parameters={"type": "object"})],
        reward=1.0,
        stop_condition="max_turns",
        info=info,
    )


def path():
    call = SimpleNamespace(id="c", name="look", arguments='{"path": "a"}')
    return [
        node("system", "Be brief.", ids=(1, 2)),
        node("user", [SimpleNamespace(type="text", text="Mend it.")], ids=(3,)),
        node("assistant", "", ids=(4, 5, 6), scaffold=1, sampled=True, tool_calls=[call]),
        node("tool", "No such tool available: look", ids=(7, 8), tool_call_id="c"),
        node("assistant", "Done.", ids=(4, 9), scaffold=1, sampled=True, tool_calls=None),
    ]


def test_a_path_is_a_trajectory_of_the_same_tokens():
    found = trajectory_of(trace(), path())
    assert found.context_ids(2) == (1, 2, 3, 4, 5, 6, 7, 8, 4, 9)
    assert [t.action_ids for t in found.turns] == [(5, 6), (9,)]
    assert [found.action_start(i) for i in range(2)] == [4, 9]
    assert [m["content"] for m in found.messages] == ["Be brief.", "Mend it."]
    assert (found.task_id, found.reward, found.turns[0].tool_calls[0].arguments) == ("mend", 1.0, {"path": "a"})
    assert found.turns[0].results[0].status == "unknown_tool"  # told by its text
    known = {"c": {"status": "path_not_found", "details": {"path": "a"}}}
    assert trajectory_of(trace(**{RESULTS: known}), path()).turns[0].results[0].status == "path_not_found"


@pytest.mark.parametrize("spoil", ["nothing sampled", "no prompt", "a hole in an answer", "no log-probs"])
def test_what_is_no_path_of_ours_is_none(spoil):
    nodes = path()
    if spoil == "nothing sampled":
        nodes = nodes[:2]
    elif spoil == "no prompt":
        nodes = [nodes[4]]
        nodes[0].token_ids, nodes[0].mask = [9], [True]
    elif spoil == "a hole in an answer":
        nodes[2].token_ids, nodes[2].mask = [4, 5, 6, 7], [False, True, False, True]
    else:
        nodes[2].logprobs = []
    assert trajectory_of(trace(), nodes) is None


# --- what is refused --------------------------------------------------------------------------------------------------


def run(tmp_path, **sections):
    loss = {
        "rlvr": {},
        "hint": {"form": "sampled_token", "self_teacher": "live", "reduction": "token"},
        **sections.pop("loss", {}),
    }
    return RunConfig.model_validate(
        {
            "model": {"path": "org/model"},
            "tasks": {"train": tmp_path},
            "substrate": {"type": "prime_rl"},
            "loss": loss,
            **sections,
        }
    )


def test_what_can_be_expressed_is_not_refused(tmp_path):
    check(run(tmp_path))
    kwargs = prime_rl_config(run(tmp_path), tmp_path)["trainer"]["loss"]
    assert (kwargs["import_path"], kwargs["kwargs"]) == (LOSS_FN, {"objective": "dapo"})
    changed = run(tmp_path, loss={"rlvr": {"objective": "cispo", "epsilon_high": 3.0}})
    assert prime_rl_config(changed, tmp_path)["trainer"]["loss"]["kwargs"] == {"objective": "cispo", "epsilon_high": 3.0}
    module, _, name = LOSS_FN.rpartition(".")
    assert getattr(sys.modules[module], name) is loss_fn


FORMS = ("jsd", "top_k_jsd", "taid", "entropy_opd", "entropy_gated")
TEACHERS = ("frozen", "ema", "trust_region")
TOKEN = {"form": "sampled_token", "self_teacher": "live", "reduction": "token"}


@pytest.mark.parametrize(
    ("sections", "field"),
    [
        *(({"loss": {"hint": {**TOKEN, "form": form}}}, "loss.hint.form") for form in FORMS),
        *(({"loss": {"hint": {**TOKEN, "self_teacher": kind}}}, "loss.hint.self_teacher") for kind in TEACHERS),
        *(({"loss": {"rlvr": {"objective": kind}}}, "loss.rlvr.objective") for kind in ("grpo", "dr_grpo", "gspo")),
        ({"loss": {"hint": {**TOKEN, "reduction": "turn"}}}, "loss.hint.reduction"),
        ({"loss": {"hint": {**TOKEN, "shuffle": True}}}, "loss.hint.shuffle"),
        ({"loss": {"hint": {**TOKEN, "useful_only": True}}}, "loss.hint.useful_only"),
        ({"loss": {"hint": {**TOKEN, "generators": ["judge"]}}}, "loss.hint.generators"),
        ({"loss": {"hint": {**TOKEN, "temperature": 0.7}}, "rollout": {"temperature": 0.7}}, "rollout.temperature"),
        ({"loss": {"rlvr": {"kl_beta": 0.1}}}, "loss.rlvr.kl_beta"),
        ({"teachers": [{"name": "t", "model": "m"}]}, "teachers"),
        ({"reward": {"effort": {"weight": 0.1}}}, "reward.effort.weight"),
        ({"rollout": {"timeout_s": 60.0}}, "rollout.timeout_s"),
        ({"reward": {"overlong_tokens": 8}}, "reward.overlong_tokens"),
        ({"reward": {"kl_weight": 0.1}}, "reward.kl_weight"),
        ({"reward": {"prm": {"path": ".", "weight": 0.1}}}, "reward.prm.weight"),
        ({"curriculum": {"enabled": True}}, "curriculum.enabled"),
        ({"optimizer": {"type": "muon"}}, "optimizer.type"),
        ({"model": {"path": "org/model", "device": "cpu"}}, "model.device"),
    ],
)  # fmt: skip
def test_what_cannot_be_expressed_is_refused_by_name(tmp_path, sections, field):
    with pytest.raises(ConfigError, match=r"substrate\.type = prime_rl") as refused:
        check(run(tmp_path, **sections))
    assert field in refused.value.message
    assert "local" in refused.value.fix
    assert "monarch or ray" in refused.value.fix


def test_all_that_is_refused_is_said_at_once(tmp_path):
    with pytest.raises(ConfigError, match=r"\(and 2 more: .*ema.*curriculum"):
        check(run(tmp_path, loss={"hint": {**TOKEN, "form": "jsd", "self_teacher": "ema"}}, curriculum={"enabled": True}))


def test_a_frozen_policy_that_is_served_can_be_read(tmp_path, monkeypatch):
    frozen = run(tmp_path, loss={"hint": {**TOKEN, "self_teacher": "frozen"}})
    monkeypatch.setenv(FROZEN_URL, "http://127.0.0.1:9000/v1")
    check(frozen)
    assert prime_rl_config(frozen, tmp_path)["orchestrator"]["env_vars"][FROZEN_URL] == "http://127.0.0.1:9000/v1"
    monkeypatch.delenv(FROZEN_URL)
    options = {f"orchestrator.env_vars.{FROZEN_URL}": "http://127.0.0.1:9000/v1"}
    check(frozen.model_copy(update={"substrate": SubstrateConfig(type="prime_rl", options=options)}))


@pytest.mark.parametrize(
    "key",
    [
        *(
            "max_steps",
            "output_dir",
            "seq_len",
            "model.name",
            "ckpt",
            "ckpt.interval",
            "ckpt.resume_step",
            "file_monitor.filename",
        ),
        *("trainer", "trainer.loss", "trainer.loss.kwargs.kl_beta", "trainer.optim.lr", "trainer.model.lora.rank"),
        *("orchestrator.algo", "orchestrator.algo.type", "orchestrator.batch_size", "orchestrator.token_batch_size"),
        *("orchestrator.train.sampling.temperature", "orchestrator.train.source", "orchestrator.eval.interval"),
        *("orchestrator.env_vars", f"orchestrator.env_vars.{RUN_FILE}", f"env_vars.{RUN_FILE}"),
        *("inference", "inference.seed", "inference.model", "inference.model.max_model_len", "inference.vllm_extra"),
    ],
)
def test_an_option_that_the_channels_rest_on_is_refused(tmp_path, key):
    with pytest.raises(ConfigError, match=f"substrate.options.{key} follows from the run file") as refused:
        check(run(tmp_path, substrate={"type": "prime_rl", "options": {key: 1}}))
    assert "docs/prime_rl.md" in refused.value.fix


@pytest.mark.parametrize(
    "key",
    [
        *("deployment.num_train_gpus", "ckpt.keep_last", "wandb.project", "env_vars.NCCL_DEBUG"),
        *("orchestrator.max_off_policy_steps", f"orchestrator.env_vars.{FROZEN_URL}", "orchestrator.model.client.base_url"),
        *(
            "inference.gpu_memory_utilization",
            "inference.model.dtype",
            "inference.vllm_extra.swap_space",
            "trainer.model.ac.freq",
        ),
    ],
)
def test_other_options_are_free(tmp_path, key):
    check(run(tmp_path, substrate={"type": "prime_rl", "options": {key: 1}}))


def test_an_option_inside_a_value_is_refused(tmp_path):
    given = run(tmp_path, substrate={"type": "prime_rl", "options": {"max_steps.deeper": 1}})
    with pytest.raises(ConfigError, match="max_steps"):
        prime_rl_config(given, tmp_path)


# --- starting it ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_modules_import_without_prime_rl():
    names = (
        "composer_loss",
        "algorithm",
        "scoring",
        "settings",
        "signed_advantages",
        "traces",
        "config",
        "launcher",
        "substrate",
    )
    lines = [f"import composer_replication.recipes.prime_rl.{name}" for name in names]
    code = "\n".join(["import sys", *lines, "assert not {'prime_rl', 'verifiers'} & set(sys.modules)"])
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.fixture
def without_prime_rl(monkeypatch):
    monkeypatch.setitem(sys.modules, "prime_rl", None)
    monkeypatch.delenv(substrate.CHECKOUT, raising=False)
    algorithm.algorithm_class.cache_clear()


@pytest.mark.usefixtures("without_prime_rl")
def test_a_missing_prime_rl_is_one_error(capsys):
    with pytest.raises(MissingExtraError, match="PRIME-RL's orchestrator cannot be imported"):
        algorithm.ComposerAlgorithm  # noqa: B018
    assert launcher.main(["orchestrator", "@", "x.toml"]) == 2
    assert "docs/prime_rl.md" in capsys.readouterr().err
    assert launcher.main(["trainer"]) == 2


def test_too_few_gpus_are_one_error(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(ConfigError, match="two GPUs"):
        asyncio.run(substrate.train(run(tmp_path), SimpleNamespace(path=tmp_path), None))


def test_nothing_to_import_is_one_error(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(substrate, "find_spec", lambda _: None)
    monkeypatch.setenv(substrate.CHECKOUT, str(tmp_path))
    with pytest.raises(MissingExtraError, match="neither installed nor in a checkout"):
        asyncio.run(substrate.train(run(tmp_path), SimpleNamespace(path=tmp_path), None))


def test_the_algorithm_wants_its_run_file(monkeypatch):
    with pytest.raises(ConfigError, match=RUN_FILE):
        read_run_file({})


def test_metrics_of_all_processes_are_one_row_a_step(tmp_path):
    for name, line in (
        ("run_default", '{"step": 1, "time": 5.0, "reward/mean": 0.5, "note": "x"}'),
        ("", '{"step": 1, "loss": 2}'),
    ):
        (tmp_path / name).mkdir(exist_ok=True)
        (tmp_path / name / "metrics.jsonl").write_text(line + "\n")
    assert measured(tmp_path) == {1: {"reward/mean": 0.5, "loss": 2.0}}


@pytest.mark.slow
def test_the_command_orchestrator_is_ours(tmp_path):
    command = launcher.orchestrator_command(tmp_path)
    said = subprocess.run([command, "--nothing"], capture_output=True, text=True, check=False)
    assert said.returncode == 2
    assert "PRIME-RL" in said.stderr
