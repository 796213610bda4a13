"""DPO, SimPO and the GRPO family beside liger's and TRL's: values and gradients at float32 rounding."""

from __future__ import annotations

import pytest
import torch
from datasets import Dataset
from liger_kernel.chunked_loss.dpo_loss import LigerFusedLinearDPOFunction
from liger_kernel.chunked_loss.grpo_loss import LigerFusedLinearGRPOFunction
from liger_kernel.chunked_loss.simpo_loss import LigerFusedLinearSimPOFunction
from torch.testing import assert_close
from transformers import Qwen3Config, Qwen3ForCausalLM
from trl import GRPOConfig, GRPOTrainer

from composer_replication.config import HintConfig, LossConfig, ReplayConfig, RlvrConfig
from composer_replication.distillation import dpo_loss, simpo_loss
from composer_replication.loss import compose_loss
from composer_replication.policy_gradient import importance_weights, kl_k3, sequence_weights, surrogate, surrogate_of
from composer_replication.tokens import byte_level_tokenizer

LENGTH = 9
OBJECTIVES = ["grpo", "bnpo", "dr_grpo", "dapo", "gspo", "cispo"]


def streams():
    """Log-probs now and when sampled, reference log-probs, advantages and a ragged mask."""
    torch.manual_seed(0)
    logps = (-1.5 + 0.5 * torch.randn(4, LENGTH)).requires_grad_()
    old, reference = (logps.detach() + 0.3 * torch.randn(4, LENGTH) for _ in range(2))
    mask = (torch.arange(LENGTH) < torch.tensor([[9], [4], [1], [7]])).long()
    return logps, old, reference, torch.randn(4), mask


def objective_loss(name, logps, old, reference, advantages, mask, *, low, high, kl_beta):
    weights, denominator = sequence_weights(mask, name, max_tokens=LENGTH)
    row, at = weights.nonzero(as_tuple=True)
    found = surrogate(
        surrogate_of(name), logps[row, at], old[row, at], advantages[row], epsilon_low=low, epsilon_high=high, sequence=row
    )
    losses = found.loss + kl_beta * kl_k3(logps[row, at], reference[row, at])
    return (weights[row, at] * losses).sum() / denominator


@pytest.mark.parametrize("name", OBJECTIVES)
@pytest.mark.parametrize("kl_beta", [0.0, 0.1])
def test_liger_grpo(name, kl_beta):
    logps, old, reference, advantages, mask = streams()
    low, high = (1.0, 0.28) if name == "cispo" else (0.2, 0.28)
    ours = objective_loss(name, logps, old, reference, advantages, mask, low=low, high=high, kl_beta=kl_beta)
    theirs, _ = LigerFusedLinearGRPOFunction.ppo_loss_fn(
        logps,
        mask,
        advantages,
        mask,
        ref_per_token_logps=reference,
        old_per_token_logps=old,
        epsilon_low=low,
        epsilon_high=1.0 + high if name == "cispo" else high,  # theirs is the limit itself
        beta=kl_beta,
        loss_type="grpo" if name == "gspo" else name,
        max_completion_length=LENGTH,
        importance_sampling_level="sequence" if name == "gspo" else "token",
    )
    assert_close(ours, theirs)
    assert_close(*(torch.autograd.grad(loss, logps)[0] for loss in (ours, theirs)))


@pytest.mark.parametrize(
    ("name", "corrected"),
    [*((n, None) for n in OBJECTIVES), *((n, kind) for n in OBJECTIVES if n != "gspo" for kind in ("tis", "icepop"))],
)
@pytest.mark.parametrize("kl_beta", [0.0, 0.1])
def test_trl_grpo(name, kl_beta, corrected, tmp_path):
    """The trainer's own loss on a real model, against `compose_loss` on the same batch. GSPO has no common correction: theirs
    spreads the mean over a sequence's tokens, ours, in the per-token form, weighs every token with its own."""
    low, high = (1.0, 0.28) if name == "cispo" else (0.2, 0.28)
    trainer = trl_trainer(tmp_path, name, low, 1.0 + high if name == "cispo" else high, kl_beta, corrected is not None)
    torch.manual_seed(0)
    prompts, answers = torch.randint(1, 250, (4, 5)), torch.randint(1, 250, (4, LENGTH))
    _, _, _, advantages, mask = streams()
    ids = torch.cat([prompts, answers], 1)
    attention = torch.cat([torch.ones_like(prompts), mask], 1)
    with torch.no_grad():
        logits = trainer.model(ids, attention).logits[:, 4:-1] / trainer.temperature
        now = logits.log_softmax(-1).gather(-1, answers[..., None])[..., 0]
    old, reference, sampled = (now + 0.3 * torch.randn(4, LENGTH) for _ in range(3))
    inputs = {
        "prompt_ids": prompts,
        "prompt_mask": torch.ones_like(prompts),
        "completion_ids": answers,
        "completion_mask": mask,
        "advantages": advantages,
        "old_per_token_logps": old,
        "ref_per_token_logps": reference,
        "num_items_in_batch": mask.sum(),
        "importance_sampling_ratio": importance_weights(old, sampled, corrected or "tis", low=0.8, high=1.3),
    }
    trainer.model.train()
    trainer.current_gradient_accumulation_steps = 1
    theirs = trainer._compute_loss(trainer.model, inputs)
    parameters = list(trainer.model.parameters())
    expected = torch.autograd.grad(theirs, parameters)

    def whole(values):
        return torch.cat([torch.zeros_like(prompts, dtype=torch.float32), values], 1)

    in_loss = torch.cat([torch.zeros_like(mask)[:, :5], mask], 1)
    weights, denominator = sequence_weights(in_loss, name, max_tokens=LENGTH)
    interval = {"importance_high": 1.3} | ({"importance_low": 0.8} if corrected == "icepop" else {})
    correction = {"importance": corrected, **interval} if corrected else {}
    rlvr = RlvrConfig(objective=name, epsilon_low=low, epsilon_high=high, kl_beta=kl_beta, **correction)
    ours = compose_loss(
        trainer.model,
        {
            "input_ids": ids,
            "attention_mask": attention,
            "response_mask": in_loss,
            "rlvr_weights": weights,
            "rlvr_denominator": denominator,
            "advantages": advantages,
            "old_logprobs": whole(old),
            "ref_logprobs": whole(reference),
            "sampler_logprobs": whole(sampled),
        },
        LossConfig(rlvr=rlvr, hint=HintConfig(weight=0.0), replay=ReplayConfig(weight=0.0)),
        temperature=trainer.temperature,
    )
    assert_close(ours.total, theirs)
    assert_close(torch.autograd.grad(ours.total, parameters), expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize(("kind", "mode"), [("tis", "truncate"), ("icepop", "mask")])
def test_trl_importance(level, kind, mode, tmp_path):
    """The trainer's own ratios, on tokens and log-probs that a rollout function brings."""
    trainer = trl_trainer(tmp_path, "grpo", 0.2, 0.2, 0.0, True)
    torch.manual_seed(0)
    answers = [torch.randint(1, 250, (n,)).tolist() for n in (9, 4, 1, 7)]
    rollout = {"prompt_ids": [[5, 6, 7]] * 4, "completion_ids": answers, "logprobs": [[0.0] * len(ids) for ids in answers]}
    trainer.rollout_func = lambda prompts, trainer: dict(rollout)
    trainer._last_loaded_step = trainer.state.global_step  # no engine whose weights would have to follow
    trainer.vllm_importance_sampling_mode = f"{level}_{mode}"
    trainer.vllm_importance_sampling_clip_min, trainer.vllm_importance_sampling_clip_max = (0.8 if mode == "mask" else None), 1.3
    trainer.model.train()
    scored = trainer._generate_and_score_completions([{"prompt": "a"}] * 4)["old_per_token_logps"]
    rollout["logprobs"] = [(scored[i, : len(ids)] + 0.3 * torch.randn(len(ids))).tolist() for i, ids in enumerate(answers)]
    found = trainer._generate_and_score_completions([{"prompt": "a"}] * 4)
    theirs = found["importance_sampling_ratio"].expand(4, LENGTH)
    row, at = found["completion_mask"].nonzero(as_tuple=True)
    sequence = row if level == "sequence" else None
    old, sampled = found["old_per_token_logps"][row, at], found["sampling_per_token_logps"][row, at]
    ours = importance_weights(old, sampled, kind, low=0.8, high=1.3, sequence=sequence)
    assert_close(ours, theirs[row, at])
    assert 1 < len(ours.unique()) < len(row), "some weights are cut, and some are not"


def trl_trainer(folder, name, low, high, kl_beta, corrected):
    tokenizer = byte_level_tokenizer()
    torch.manual_seed(0)
    model = Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=len(tokenizer),
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=8,
            pad_token_id=tokenizer.pad_token_id,
            eos_token_id=tokenizer.eos_token_id,
            bos_token_id=None,
        )
    )
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(2.0)
    config = GRPOConfig(
        output_dir=str(folder),
        loss_type="grpo" if name == "gspo" else name,
        importance_sampling_level="sequence" if name == "gspo" else "token",
        epsilon=low,
        epsilon_high=high,
        use_bias_correction_kl=False,
        max_completion_length=LENGTH,
        temperature=0.9,
        per_device_train_batch_size=4,
        num_generations=4,
        report_to=[],
        use_cpu=True,
        bf16=False,
    )
    trainer = GRPOTrainer(
        model=model,
        reward_funcs=lambda completions, **_: [0.0] * len(completions),
        args=config,
        train_dataset=Dataset.from_dict({"prompt": ["a"] * 4}),
        processing_class=tokenizer,
    )
    trainer.beta = kl_beta  # set here, it makes no reference model: the batch brings the reference's log-probs
    trainer.use_vllm = trainer.vllm_importance_sampling_correction = corrected  # nothing is generated here
    return trainer


def test_liger_dpo():
    torch.manual_seed(0)
    chosen, rejected = (torch.randn(6, requires_grad=True) for _ in range(2))
    ref_chosen, ref_rejected = torch.randn(2, 6)
    ours = dpo_loss(chosen, rejected, ref_chosen, ref_rejected, 0.3)
    theirs = LigerFusedLinearDPOFunction.preference_loss_fn(
        chosen, rejected, torch.zeros(12, 1), ref_chosen_logps=ref_chosen, ref_rejected_logps=ref_rejected, beta=0.3
    )[0]
    assert_close(ours, theirs)
    assert_close(*(torch.autograd.grad(loss, (chosen, rejected)) for loss in (ours, theirs)))


def test_liger_simpo():
    torch.manual_seed(0)
    chosen, rejected = (torch.randn(6, requires_grad=True) for _ in range(2))
    ours = simpo_loss(chosen, rejected, 2.0, 1.0)
    theirs = LigerFusedLinearSimPOFunction.preference_loss_fn(chosen, rejected, torch.zeros(12, 1), beta=2.0, gamma=1.0)[0]
    assert_close(ours, theirs)
    assert_close(*(torch.autograd.grad(loss, (chosen, rejected)) for loss in (ours, theirs)))
