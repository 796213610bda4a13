"""The user guide's sections 3, 5 and 6 and its pitfall table, run with a tiny model in place of a download."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest
import torch

QUICKSTART = Path(__file__).parents[2] / "examples" / "qwen_05b_quickstart" / "run.py"


def forward_kl(weight):
    """The guide's options for the hint channel alone, with forward KL in place of the divergence between both ends."""
    from composer_replication.loss.compose import loss_options

    options = loss_options(alpha_sdpo=weight)
    return options.model_copy(update={"hint": options.hint.model_copy(update={"beta": 0.0})})


def test_section_3_quickstart(tmp_path, model, tokenizer, capsys):
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    spec = importlib.util.spec_from_file_location("quickstart_run", QUICKSTART)
    run = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(run)
    assert run.main(["--model", str(tmp_path), "--lr", "1e-3"]) == 0
    out = capsys.readouterr().out
    number = r"(\d+\.\d{4})"
    steps = re.findall(rf"step (\d): total={number} lm_ce={number} sdpo={number} dpo={number} finite=True", out)
    assert [int(step[0]) for step in steps] == [0, 1, 2, 3, 4]
    for _, total, lm_ce, sdpo, dpo in steps:
        assert float(total) == pytest.approx(float(lm_ce) + 0.1 * float(sdpo) + 0.05 * float(dpo), abs=2e-4)
        assert float(sdpo) > 0
        assert float(dpo) > 0
    assert float(steps[-1][4]) < float(steps[0][4])
    assert "Verdict: PASS" in out


def test_section_3_sdpo_is_off_without_a_teacher_context(model, tokenizer):
    from composer_replication import build_batch, compose_loss

    batch = build_batch(tokenizer, device="cpu")
    del batch["ctx_teacher_input_ids"]
    components = compose_loss(model, batch, alpha_sdpo=0.1, beta_replay=0.05)
    assert components.sdpo_jsd.item() == 0.0
    assert components.off == {"hint": "the batch has no ctx_teacher_input_ids"}
    assert components.trace_replay_dpo.item() > 0


def test_section_5_simpo(model, tokenizer):
    from composer_replication import build_batch, compose_loss

    batch = build_batch(tokenizer, device="cpu")
    components = compose_loss(
        model,
        batch,
        alpha_sdpo=0.1,
        beta_replay=0.05,
        dpo_variant="simpo",  # the only line that changes
        simpo_beta=2.0,  # paper default
        simpo_gamma=1.0,  # paper default
    )
    components.total.backward()
    del batch["dpo_chosen_ref_logprobs"], batch["dpo_rejected_ref_logprobs"]
    again = compose_loss(model, batch, alpha_sdpo=0.1, beta_replay=0.05, dpo_variant="simpo")
    assert torch.equal(components.total, again.total)


@pytest.mark.parametrize("alpha", [{}, {"alpha_sdpo": 0.1}])
def test_section_6_taid_schedule(model, tokenizer, alpha):
    from composer_replication import build_batch, compose_loss
    from composer_replication.distillation import TAIDScheduler

    batch = build_batch(tokenizer, device="cpu")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    num_train_steps = 6
    sched = TAIDScheduler(num_train_steps=num_train_steps)
    seen = []
    for step in range(num_train_steps):
        components = compose_loss(model, batch, sdpo_wrapper="taid", taid_t=sched.t, **alpha)
        components.total.backward()
        optimizer.step()
        sched.update_t(components.sdpo_jsd.detach(), global_step=step)
        seen.append(sched.t)
    assert seen[0] == 0.4
    assert seen == sorted(seen)
    assert seen[-1] >= 0.4 + 0.6 * 5 / 6 - 1e-9


def test_section_6_entropy_opd(model, tokenizer):
    from composer_replication import build_batch, compose_loss

    batch = build_batch(tokenizer, device="cpu")
    automatic = compose_loss(model, batch, alpha_sdpo=0.1, sdpo_wrapper="entropy_opd", entropy_opd_h_max=None)
    low = compose_loss(model, batch, alpha_sdpo=0.1, sdpo_wrapper="entropy_opd", entropy_opd_h_max=0.01)
    forward = compose_loss(model, batch, forward_kl(0.1))
    torch.testing.assert_close(low.sdpo_jsd, forward.sdpo_jsd)  # every token above h_max: pure forward KL
    assert not torch.allclose(automatic.sdpo_jsd, low.sdpo_jsd)


def test_pitfall_taid_without_its_coefficient(model, tokenizer):
    from composer_replication import build_batch, compose_loss

    with pytest.raises(ValueError, match="taid_t"):
        compose_loss(model, build_batch(tokenizer), alpha_sdpo=0.1, sdpo_wrapper="taid")


def test_pitfall_taid_at_one_is_plain_forward_kl(model, tokenizer):
    """Same gradient; the values differ by the teacher's entropy."""
    from composer_replication import build_batch, compose_loss

    batch = build_batch(tokenizer)
    taid = compose_loss(model, batch, alpha_sdpo=1.0, sdpo_wrapper="taid", taid_t=1.0)
    plain = compose_loss(model, batch, forward_kl(1.0))
    gradients = [torch.autograd.grad(one.sdpo_jsd, list(model.parameters())) for one in (taid, plain)]
    for a, b in zip(*gradients, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


def test_pitfall_taid_at_zero_ignores_the_teacher(model, tokenizer):
    from composer_replication import build_batch, compose_loss

    batch = build_batch(tokenizer)
    first = compose_loss(model, batch, alpha_sdpo=1.0, sdpo_wrapper="taid", taid_t=0.0).sdpo_jsd
    start = int(batch["teacher_response_idx"][0, 0])
    batch["ctx_teacher_input_ids"][0, : start - 1] = 5
    assert torch.equal(first, compose_loss(model, batch, alpha_sdpo=1.0, sdpo_wrapper="taid", taid_t=0.0).sdpo_jsd)
    gradients = torch.autograd.grad(first, list(model.parameters()))
    assert max(g.abs().max().item() for g in gradients) < 1e-5


def test_promised_names():
    import composer_replication
    from composer_replication import distillation

    for name in ("compose_loss", "LossComponents", "build_batch"):
        assert getattr(composer_replication, name)
    for name in (
        "TAIDScheduler",
        "taid_loss",
        "simpo_loss",
        "entropy_aware_opd_loss",
        "teacher_entropy",
        "generalized_jsd_loss",
        "dpo_loss",
    ):
        assert getattr(distillation, name)
