"""The engine's gradient and log-probs beside those of `compose_loss` and of the plain model."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

TOLERANCE = 2e-5
"""Of ||difference|| / ||gradient||, in float32."""


@pytest.fixture
def made(policy, planned, alone):
    """A function from a loss section to verl's engine."""

    def engine(loss):
        planned(policy, loss=loss)
        import engines

        return engines.engine(policy)

    return engine


@pytest.mark.parametrize("size", [4, 2, 1])
def test_one_gradient(case, made, size):
    import engines
    import one_gradient

    found, metrics = engines.step(made(one_gradient.LOSS), engines.batch_of(case, size))
    assert one_gradient.relative_error(found, one_gradient.local_gradient(case)) < TOLERANCE
    for name in ("rlvr/loss", "hint/loss", "replay/loss"):
        assert metrics[name] != 0.0
    assert metrics["hint/turns"] == 2.0
    assert metrics["replay/pairs"] == 2.0
    assert metrics["rlvr/ratio/max"] > 1.0


def test_one_gradient_of_two_ranks(case, policy, tmp_path):
    """Each has two of the rows, and the pairs and hints lie on one or the other."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = os.environ | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2", "OMP_NUM_THREADS": "1"}
    processes = [
        subprocess.Popen(
            [sys.executable, str(HERE / "rank.py"), str(policy), str(tmp_path)],
            env=environment | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        said = [process.communicate(timeout=900)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0, 0], "\n".join(said)[-3000:]
    import one_gradient

    for kind in ("frozen", "live"):
        expected = one_gradient.local_gradient(case) if kind == "frozen" else torch.load(tmp_path / "live-expected.pt")
        assert one_gradient.relative_error(torch.load(tmp_path / f"{kind}.pt"), expected) < TOLERANCE


@pytest.mark.parametrize("objective", ["grpo", "dr_grpo", "gspo", "cispo", "dppo"])
def test_every_objective_is_averaged_as_here(case, made, objective):
    import engines
    import one_gradient

    from composer_replication.config import LossConfig, RlvrConfig
    from composer_replication.loss import compose_loss
    from composer_replication.loss.batch import collate

    loss = LossConfig(rlvr=RlvrConfig(objective=objective), hint={"weight": 0.0}, replay={"weight": 0.0})
    found, _ = engines.step(made(loss), engines.batch_of(case, 2), objective=objective, max_tokens=20)
    batch = collate(case.trajectories, case.advantages, pad_id=0, objective=objective, max_tokens=20)
    case.model.zero_grad()
    compose_loss(case.model, batch, loss).total.backward()
    assert one_gradient.relative_error(found, one_gradient.gradient_of(case.model)) < TOLERANCE
    case.model.zero_grad()


@pytest.mark.parametrize("form", ["top_k_jsd", "sampled_token", "taid", "entropy_opd", "entropy_gated"])
def test_every_form_of_the_hint(case, made, form):
    import engines
    import one_gradient

    from composer_replication.config import HintConfig
    from composer_replication.distillation import make_self_teacher
    from composer_replication.loss import compose_loss

    hint = HintConfig(weight=0.7, form=form)
    loss = one_gradient.LOSS.model_copy(update={"hint": hint})
    engine = made(loss)
    found, metrics = engines.step(engine, engines.batch_of(case, 2))
    teacher = make_self_teacher("frozen", case.model)
    case.model.zero_grad()
    taid_t = 0.4 if form == "taid" else None
    compose_loss(case.model, case.batch, loss, taid_t=taid_t, self_teacher=teacher, strict=True).total.backward()
    expected = one_gradient.gradient_of(case.model)
    case.model.zero_grad()
    assert metrics["hint/loss"] != 0.0
    if form == "taid":
        assert metrics["hint/taid_t"] == pytest.approx(0.4)
    assert one_gradient.relative_error(found, expected) < TOLERANCE


def test_log_probs_are_those_of_the_plain_model(case, made):
    import engines
    import one_gradient

    from composer_replication.loss import sequence_logprobs

    engine = made(one_gradient.LOSS)
    with engine.eval_mode():
        output = engine.infer_batch(engines.batch_of(case, 2), loss_function=None)
    for trajectory, found in zip(case.trajectories, output["model_output"]["log_probs"].unbind(), strict=True):
        ids = torch.tensor([trajectory.context_ids(len(trajectory.turns))])
        wanted = torch.ones_like(ids).index_fill_(1, torch.tensor([0]), 0)
        expected = sequence_logprobs(case.model, ids, torch.ones_like(ids), wanted)[0, 1:]
        assert torch.allclose(found[:-1], expected, atol=2e-5)


def test_rows_that_fill_up_a_batch_teach_nothing(case, made):
    """They copy another row's fields, hints and pairs among them."""
    import engines
    import one_gradient

    data = engines.batch_of(case, 1, filled_up=2)
    found, metrics = engines.step(made(one_gradient.LOSS), data)
    assert metrics["hint/turns"] == 2.0
    assert one_gradient.relative_error(found, one_gradient.local_gradient(case)) < TOLERANCE


def test_the_self_teacher_follows_and_is_saved(case, made, tmp_path):
    import engines
    import one_gradient

    from composer_replication.config import HintConfig

    loss = one_gradient.LOSS.model_copy(update={"hint": HintConfig(self_teacher="ema", rate=0.5)})
    engine = made(loss)
    (part,) = engine.self_teacher.parts(engine.module)
    before = {name: p.clone() for name, p in part.model.named_parameters()}
    engines.step(engine, engines.batch_of(case, 4))
    now = dict(engine.module.named_parameters())
    for name, average in part.model.named_parameters():
        assert torch.allclose(average, 0.5 * before[name] + 0.5 * now[name].full_tensor(), atol=1e-6)
    engine.save_checkpoint(str(tmp_path / "actor"), global_step=1)
    after = {name: p.clone() for name, p in part.model.named_parameters()}
    engines.step(engine, engines.batch_of(case, 4))
    engine.load_checkpoint(str(tmp_path / "actor"))
    assert all(torch.equal(after[name], p) for name, p in part.model.named_parameters())


def test_the_rate_falls_as_on_one_machine(policy, planned, alone):
    import engines
    import one_gradient

    from composer_replication.config import OptimizerConfig

    planned(policy, loss=one_gradient.LOSS, steps=4, optimizer=OptimizerConfig(schedule="linear", warmup_steps=1))
    engine = engines.engine(policy, learning_rate=1.0)
    found = []
    for _ in range(4):
        found.append(engine.lr_scheduler.get_last_lr()[0])
        engine.lr_scheduler_step()
    assert found == pytest.approx([0.5, 0.75, 0.5, 0.25])


def test_a_gradient_that_is_not_finite_ends_the_run(case, made):
    import engines
    import one_gradient

    from composer_replication.types.errors import ModelError

    broken = replace(case, advantages=[float("inf"), -1.1, None, 0.6])
    with pytest.raises((ModelError, ValueError), match="finite"):
        engines.step(made(one_gradient.LOSS), engines.batch_of(broken, 4))
