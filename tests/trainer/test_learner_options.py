"""Every field of the loss's sections reaches what it is for: away from its default it changes one argument, and to its value."""

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
    TrustRegionTeacher,
)
from composer_replication.loss import LossComponents, compose_loss
from composer_replication.loss.batch import build_batch
from composer_replication.loss.forward import HintLoss
from composer_replication.loss.forward.models import load_policy
from composer_replication.trainer import learner as learner_module
from composer_replication.trainer.learner import Learner, hint_loss

ICEPOP, SIMPO = {"loss.rlvr.importance": "icepop"}, {"loss.replay.variant": "simpo"}
READ: dict[str, tuple[Any, dict[str, Any], str, Any]] = {
    "rollout.temperature": (0.7, {}, "temperature", 0.7),
    "loss.rlvr.objective": ("gspo", {}, "surrogate", "gspo"),
    "loss.rlvr.epsilon_low": (0.05, {}, "epsilon_low", 0.05),
    "loss.rlvr.epsilon_high": (0.06, {}, "epsilon_high", 0.06),
    "loss.rlvr.kl_beta": (0.07, {}, "kl_beta", 0.07),
    "loss.rlvr.importance": ("tis", {}, "importance", "tis"),
    "loss.rlvr.importance_low": (0.6, ICEPOP, "importance_low", 0.6),
    "loss.rlvr.importance_high": (1.6, ICEPOP, "importance_high", 1.6),
    "loss.hint.weight": (0.8, {}, "alpha_sdpo", 0.8),
    "loss.hint.temperature": (1.3, {}, "sdpo_temperature", 1.3),
    "loss.hint.form": ("top_k_jsd", {}, "hint_loss", TopKJSD(100, 0.0)),
    "loss.hint.self_teacher": ("trust_region", {}, "self_teacher", (TrustRegionTeacher, 0.05)),
    "loss.hint.rate": (0.2, {"loss.hint.self_teacher": "ema"}, "self_teacher", (EMATeacher, 0.2)),
    "loss.replay.weight": (0.9, {}, "beta_replay", 0.9),
    "loss.replay.variant": ("simpo", {}, "dpo_variant", "simpo"),
    "loss.replay.dpo_beta": (0.3, {}, "dpo_beta", 0.3),
    "loss.replay.simpo_beta": (2.5, SIMPO, "simpo_beta", 2.5),
    "loss.replay.simpo_gamma": (0.4, SIMPO, "simpo_gamma", 0.4),
}
"""Field: a value, what has to be chosen for it to be read, and the argument of `compose_loss` that it sets, and to what."""
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
    *(
        f"loss.hint.{name}"
        for name in ("reduction", "per_trajectory", "shuffle", "detectors", "generators", "demo", "useful_only")
    ),
    *(
        f"loss.replay.{name}"
        for name in ("traces_per_task", "agreement_threshold", "verify", "pairs_per_step", "pairs", "max_total_usd")
    ),
}
"""What is read before there is a batch."""


def arguments(run_file: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]) -> dict[str, Any]:
    """Those with which one optimizer step calls `compose_loss`; a self-teacher as its kind and rate."""
    seen: list[dict[str, Any]] = []

    def listening(*inputs: Any, **given: Any) -> LossComponents:
        seen.append(given)
        return compose_loss(*inputs, **given)

    monkeypatch.setattr(learner_module, "compose_loss", listening)
    config = load_config(run_file, [f"--{key}={value}" for key, value in options.items()])
    torch.manual_seed(0)
    policy, tokenizer = load_policy(config.model)
    Learner(policy, config).update(build_batch(tokenizer, model=policy))
    (given,) = seen
    teacher = given["self_teacher"]
    return given | {"self_teacher": (type(teacher), getattr(teacher, "rate", 0.05))}


@pytest.mark.parametrize("field", READ)
def test_a_field_sets_its_argument_and_no_other(run_file: Path, monkeypatch: pytest.MonkeyPatch, field: str) -> None:
    value, chosen, argument, expected = READ[field]
    before = arguments(run_file, monkeypatch, chosen)
    after = arguments(run_file, monkeypatch, chosen | {field: value})
    assert after[argument] == expected
    assert before[argument] != expected
    assert {name for name in after if after[name] != before[name]} == {argument}


@pytest.mark.parametrize(("options", "expected"), FORMS, ids=lambda x: x.get("form") if isinstance(x, dict) else "")
def test_a_form_has_the_parameters_of_its_section(options: dict[str, Any], expected: HintLoss) -> None:
    assert hint_loss(HintConfig(**options), 0.6) == expected


def test_the_forms_are_given_every_parameter_away_from_its_default() -> None:
    """So that one which is lost shows."""
    for options, expected in FORMS:
        assert set(options) - {"form"} == {name for name in HintConfig.model_fields if _read_by(name, options["form"])}
        assert hint_loss(HintConfig(form=options["form"]), 0.4) != expected or len(options) == 1
        assert all(options[name] != HintConfig.model_fields[name].default for name in options if name != "form")


def _read_by(field: str, form: str) -> bool:
    return any(rule.chooser == "form" and form in rule.choices for rule in HintConfig.readers(field))


def test_the_learner_hands_on_taids_present_t(run_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert arguments(run_file, monkeypatch, {"loss.hint.form": "taid"})["hint_loss"] == TAID(0.4)


def test_no_field_reaches_nothing() -> None:
    of_a_form = {f"loss.hint.{name}" for options, _ in FORMS for name in options}
    named = {line.key for line in field_lines(LossConfig, "loss.")}
    assert (set(READ) - {"rollout.temperature"}) | of_a_form | ELSEWHERE == named
