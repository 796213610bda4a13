"""The engine's gradient and log-probs beside those of `compose_loss` and of the plain model."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="module")
def case():
    import one_gradient

    return one_gradient.case()


@pytest.fixture(scope="module")
def policy(case, tmp_path_factory):
    return case.save(tmp_path_factory.mktemp("policy") / "policy")


def step(made, case, size, loss_function):
    """The gradient and the metrics of one optimizer step."""
    import engines

    kept = {}
    stepped = made.optimizer_step

    def note():
        kept.update(engines.gradient(made))
        return stepped()

    made.optimizer_step = note
    with made.train_mode():
        outputs = made.train_batch(engines.batch_of(case, size), loss_function)
    return kept, {name: value[0] for name, value in outputs["metrics"].items() if isinstance(value, list)}


@pytest.mark.parametrize("size", [4, 2, 1])
def test_one_gradient(case, policy, planned, alone, size):
    import one_gradient

    planned(policy, loss=one_gradient.LOSS)
    import engines

    found, metrics = step(engines.engine(policy), case, size, engines.loss_function())
    assert one_gradient.relative_error(found, one_gradient.local_gradient(case)) < 2e-5
    for name in ("rlvr/loss", "hint/loss", "replay/loss"):
        assert metrics[name] != 0.0
