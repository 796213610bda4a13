"""The engine's gradient beside the local learner's, for options of a run file that change it."""

from __future__ import annotations

import copy
import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))

TOLERANCE = 2e-5
"""Of ||difference|| / ||gradient||, in float32."""
NO_CLIP = {"max_grad_norm": 1e9, "micro_batch_tokens": 64, "learning_rate": 1e-3}
TIS = {"importance": "tis", "importance_high": 1.1}
ICEPOP = {"importance": "icepop", "importance_low": 0.8, "importance_high": 1.2}
SEQUENCES = {"importance_level": "sequence", "importance_high": 4.0}
"""The limits are wider: a row's weight is the product of its tokens'."""


@pytest.fixture
def both(case, policy, planned, alone):
    """A function from sections of a run file to the gradients and metrics of verl's engine and of the local learner; `moved` is
    how far the reference's weights are from the policy's."""
    import engines

    def gradients(rlvr, hint, temperature=1.0, moved=0.0):
        import one_gradient

        from composer_replication.loss.batch import collate
        from composer_replication.recipes.verl.import_metrics import _measured
        from composer_replication.trainer.learning.learner import Learner

        loss = one_gradient.LOSS.model_copy(
            update={
                "rlvr": one_gradient.LOSS.rlvr.model_validate({"epsilon_low": None, "epsilon_high": None, **rlvr}),
                "hint": one_gradient.LOSS.hint.model_validate({**one_gradient.LOSS.hint.model_dump(exclude_unset=True), **hint}),
            }
        )
        rollout = {"temperature": temperature, "trajectory_tokens": 20}
        config = planned(policy, loss=loss, rollout=rollout, optimizer=NO_CLIP).config
        learner = Learner(copy.deepcopy(case.model), config)
        batch = collate(
            case.trajectories,
            case.advantages,
            case.hinted,
            case.pairs,
            pad_id=0,
            objective=loss.rlvr.objective,
            max_tokens=config.rollout.trajectory_tokens,
            hint_reduction=loss.hint.reduction,
        )
        reference = _moved(learner, batch, moved) if loss.rlvr.kl_beta > 0 else None
        metrics = learner.update(batch).metrics
        made = engines.engine(policy)
        data, measured = engines.batch_of_run(made, case, config, reference)
        options = engines.actor_settings(config)
        found, said = engines.step(made, data, loss.rlvr.objective, config.rollout.trajectory_tokens, **options)
        return one_gradient.relative_error(found, one_gradient.gradient_of(learner.policy)), said | _measured(measured), metrics

    return gradients


def _moved(learner, batch, far):
    """Log-probs of a reference whose weights are moved, here and in the learner."""
    (part,) = learner.reference.parts(learner.policy)
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(1)
        for parameter in part.model.parameters():
            parameter.add_(far * torch.randn_like(parameter))
    return learner._reference_logprobs(batch)


@pytest.mark.parametrize("reduction", ["turn", "token"])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize(
    "correction",
    [{}, TIS, ICEPOP, TIS | SEQUENCES, ICEPOP | SEQUENCES | {"importance_low": 0.2}],
    ids=["none", "tis", "icepop", "tis of sequences", "icepop of sequences"],
)
def test_corrections_temperature_and_reduction(both, correction, temperature, reduction):
    error, said, metrics = both({"objective": "dapo", **correction}, {"reduction": reduction}, temperature)
    print(f"{correction.get('importance')}, temperature {temperature}, {reduction}: {error:.1e}")
    assert error < TOLERANCE
    names = ["rlvr/loss", "hint/loss", "replay/loss", "loss/total", "rlvr/kl_k3", "rlvr/ratio/max", "rlvr/clip_frac"]
    if correction:
        names += ["rlvr/importance/mean", "rlvr/importance/max"]
        assert metrics["rlvr/importance/mean"] != pytest.approx(1.0, abs=0.01), "the sampler's log-probs are others"
    for name in names:
        assert said[name] == pytest.approx(metrics[name], rel=1e-4, abs=1e-6), name


@pytest.mark.parametrize("objective", ["grpo", "dr_grpo", "gspo", "bnpo", "cispo", "sapo", "dppo"])
@pytest.mark.parametrize("correction", [{}, TIS], ids=["none", "tis"])
def test_every_objective_at_another_temperature(both, objective, correction):
    error, _, _ = both({"objective": objective, **correction}, {"reduction": "token"}, 0.7)
    assert error < TOLERANCE


@pytest.mark.parametrize("objective", ["dapo", "grpo", "dr_grpo"])
@pytest.mark.parametrize("correction", [{}, TIS], ids=["none", "tis"])
def test_a_large_kl_pulls_as_hard_as_here(both, objective, correction):
    """verl's own KL term has no gradient where it is above 10."""
    error, said, metrics = both({"objective": objective, "kl_beta": 0.1, **correction}, {"self_teacher": "live"}, 0.7, moved=0.5)
    assert metrics["rlvr/kl_ref/mean"] > 10.0
    assert error < TOLERANCE
    for name in ("rlvr/loss", "rlvr/kl_ref/mean", "loss/total"):
        assert said[name] == pytest.approx(metrics[name], rel=1e-4), name
