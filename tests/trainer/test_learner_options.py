"""Every field of the loss's sections is read: away from its default it changes the channel that it belongs to, and no other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from composer_replication.config import HintConfig, LossConfig, field_lines, load_config
from composer_replication.distillation import (
    TAID,
    EMATeacher,
    EntropyAwareOPD,
    EntropyGatedOPD,
    GeneralizedJSD,
    SampledToken,
    TopKJSD,
    make_self_teacher,
)
from composer_replication.loss import LossComponents, compose_loss
from composer_replication.loss.batch import build_batch
from composer_replication.loss.channels.hint import divergence_form
from composer_replication.loss.forward import HintLoss, sequence_logprobs
from composer_replication.loss.forward.models import load_policy
from composer_replication.trainer.learning import learner as learner_module
from composer_replication.trainer.learning.learner import Learner

DPO = {"loss.replay.variant": "dpo"}
READ: dict[str, tuple[Any, dict[str, Any]]] = {
    "loss.rlvr.objective": ("gspo", {}),
    "loss.rlvr.epsilon_low": (0.05, {}),
    "loss.rlvr.epsilon_high": (0.06, {}),
    "loss.rlvr.dppo_tau": (0.2, {"loss.rlvr.objective": "dppo"}),
    "loss.rlvr.ratio_cap": (1.1, {"loss.rlvr.epsilon_high": 0.05}),
    "loss.rlvr.off_policy_threshold": (0.0, {}),
    "loss.rlvr.entropy_bonus": (0.2, {}),
    "loss.rlvr.kl_beta": (0.07, {}),
    "loss.rlvr.kl_estimator": ("k2", {"loss.rlvr.kl_beta": 0.07}),
    "loss.rlvr.importance_level": ("sequence", {"loss.rlvr.importance": "tis"}),
    "loss.rlvr.importance": ("tis", {}),
    "loss.rlvr.importance_low": (0.9, {"loss.rlvr.importance": "icepop"}),
    "loss.rlvr.importance_high": (1.1, {"loss.rlvr.importance": "icepop"}),
    "loss.hint.weight": (0.8, {}),
    "loss.hint.temperature": (1.3, {}),
    "loss.hint.form": ("top_k_jsd", {}),
    "loss.replay.weight": (0.9, {}),
    "loss.replay.variant": ("simpo", {}),
    "loss.replay.anchor": (0.5, DPO),
    "loss.replay.dpo_beta": (0.3, DPO),
    "loss.replay.label_smoothing": (0.2, DPO),
    "loss.replay.simpo_beta": (2.5, {"loss.replay.variant": "simpo", "loss.replay.anchor": 0.001}),
    "loss.replay.simpo_gamma": (0.4, {"loss.replay.variant": "simpo"}),
}
"""Field that a channel reads: a value, and what has to be chosen for it to be read."""
FORMS: list[tuple[dict[str, Any], HintLoss]] = [
    ({"form": "jsd", "beta": 0.3, "scale": "continuous", "token_clip": 0.05}, GeneralizedJSD(0.3, "continuous", 0.05)),
    ({"form": "top_k_jsd", "beta": 0.3, "top_k": 7}, TopKJSD(7, 0.3)),
    ({"form": "taid"}, TAID(0.6)),
    ({"form": "entropy_opd", "entropy_h_max": 2.5}, EntropyAwareOPD(2.5)),
    ({"form": "entropy_gated", "entropy_tau": 0.3, "entropy_k": 5, "entropy_alpha": 0.7}, EntropyGatedOPD(0.3, 5, 0.7)),
    ({"form": "sampled_token"}, SampledToken()),
]
ELSEWHERE = {
    "loss.rlvr.advantage",
    *("loss.rlvr.entropy_target", "loss.rlvr.entropy_step"),  # tests/trainer/test_updates.py
    *(
        f"loss.hint.{name}"
        for name in (
            *("self_teacher", "rate", "reduction", "per_trajectory", "shuffle", "detectors", "generators", "demo", "useful_only"),
            "held_turns",  # tests/hints/test_holding.py
            "span",  # tests/hints/test_report.py
            "max_pull",  # tests/trainer/test_pull_cap.py
        )
    ),
    *(
        f"loss.replay.{name}"
        for name in (
            "learning_rate",  # tests/trainer/test_pair_steps.py
            "max_pull",  # tests/trainer/test_pull_cap.py
            *("soft_targets", "soft_top_k"),  # tests/loss/test_soft_targets.py, tests/trainer/test_soft_targets.py
            "dpo_positive_penalty",  # tests/loss/test_preferences.py
            *("traces_per_task", "agreement_threshold", "verify", "pairs_per_step", "pairs", "max_total_usd"),
            "judge",  # tests/teachers/replay/test_judged_mining.py
            "held_turns",  # tests/trainer/test_replay.py
            "reattempts",  # tests/trainer/test_reattempts.py
        )
    ),
    *(
        f"loss.replay.gate.{name}"  # tests/trainer/test_replay_gate.py
        for name in ("rule", "cheap", "uncertain", "findings", "doubtful", "audit", "reach")
    ),
    *(
        f"loss.replay.normalize.{name}"  # tests/trainer/test_replay_normalizer.py
        for name in ("enabled", "recipe", "backend", "ray_address")
    ),
}
"""What is read before there is a batch, or makes the self-teacher."""


def composed(run_file: Path, options: dict[str, Any]) -> LossComponents:
    """The loss of a batch whose policy has moved since it was sampled, under these fields of a run file."""
    config = load_config(run_file, [f"--{key}={value}" for key, value in options.items()])
    torch.manual_seed(0)
    policy, tokenizer = load_policy(config.model)
    teacher = make_self_teacher("frozen", policy)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(0.02 * torch.randn_like(parameter))
    batch = build_batch(tokenizer, model=policy)
    now = sequence_logprobs(policy, batch["input_ids"], batch["attention_mask"], batch["response_mask"]).detach()
    noise = 0.6 * torch.randn_like(now)
    batch |= {"advantages": -noise - 0.3, "old_logprobs": now + noise, "ref_logprobs": now + 0.1}
    batch |= {"sampler_logprobs": now - noise, "dpo_chosen_ref_logprobs": batch["dpo_chosen_ref_logprobs"] - 0.5}
    return compose_loss(policy, batch, config.loss, temperature=config.rollout.temperature, self_teacher=teacher, strict=True)


@pytest.mark.parametrize("field", READ)
def test_a_field_changes_its_channel_and_no_other(run_file: Path, field: str) -> None:
    value, chosen = READ[field]
    before, after = composed(run_file, chosen), composed(run_file, chosen | {field: value})
    channel = field.split(".")[1]
    changed = {
        name for name in ("rlvr", "hint", "replay") if value_of(before, name) != pytest.approx(value_of(after, name), rel=1e-5)
    }
    assert changed == (set() if field.endswith(".weight") else {channel})  # a weight changes the total alone
    if field.endswith(".weight"):
        assert before.total.item() != after.total.item()


def value_of(loss: LossComponents, channel: str) -> float:
    return {"rlvr": loss.rlvr, "hint": loss.sdpo_jsd, "replay": loss.trace_replay_dpo}[channel].item()


def test_the_learner_hands_on_the_options_themselves(run_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run file's objects, whole: what a channel gains as an option needs no line in between."""
    seen: list[tuple[tuple[Any, ...], dict[str, Any]]] = []

    def listening(*inputs: Any, **given: Any) -> LossComponents:
        seen.append((inputs, given))
        return compose_loss(*inputs, **given)

    monkeypatch.setattr(learner_module, "compose_loss", listening)
    changes = ("--loss.hint.form=taid", "--loss.hint.self_teacher=ema", "--loss.hint.rate=0.2", "--rollout.temperature=0.7")
    changes += ("--optimizer.channel_gradients_every=0",)
    config = load_config(run_file, changes)
    torch.manual_seed(0)
    policy, tokenizer = load_policy(config.model)
    Learner(policy, config).update(build_batch(tokenizer, model=policy))
    assert len(seen) == 1, "rows and pairs together"
    for inputs, given in seen:
        assert inputs[2] is config.loss
        assert (given["taid_t"], given["temperature"]) == (0.4, 0.7)
        assert (type(given["self_teacher"]), given["self_teacher"].rate) == (EMATeacher, 0.2)


@pytest.mark.parametrize(("options", "expected"), FORMS, ids=lambda x: x.get("form") if isinstance(x, dict) else "")
def test_a_form_has_the_parameters_of_its_section(options: dict[str, Any], expected: HintLoss) -> None:
    assert divergence_form(HintConfig(**options), 0.6 if options["form"] == "taid" else None) == expected


def test_the_forms_are_given_every_parameter_away_from_its_default() -> None:
    """So that one which is lost shows."""
    for options, expected in FORMS:
        assert set(options) - {"form"} == {name for name in HintConfig.model_fields if _read_by(name, options["form"])}
        taid_t = 0.4 if options["form"] == "taid" else None
        assert divergence_form(HintConfig(form=options["form"]), taid_t) != expected or len(options) == 1
        assert all(options[name] != HintConfig.model_fields[name].default for name in options if name != "form")


def _read_by(field: str, form: str) -> bool:
    return any(rule.chooser == "form" and form in rule.choices for rule in HintConfig.readers(field))


def test_no_field_reaches_nothing() -> None:
    of_a_form = {f"loss.hint.{name}" for options, _ in FORMS for name in options}
    named = {line.key for line in field_lines(LossConfig, "loss.")}
    assert set(READ) | of_a_form | ELSEWHERE == named
