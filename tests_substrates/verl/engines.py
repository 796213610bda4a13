"""verl's engine around the case that all substrates share."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import one_gradient
import torch
from tensordict import NonTensorStack, TensorDict

from composer_replication.recipes.verl.agent_loop import tokens_of
from composer_replication.recipes.verl.columns import Row, pack


def engine(policy: Path, strategy: str = "fsdp2", learning_rate: float = 1e-3) -> Any:
    """The one that verl's registry gives for a policy, on gloo and in float32."""
    from verl.trainer.config import CheckpointConfig
    from verl.workers.config import FSDPEngineConfig, FSDPOptimizerConfig, HFModelConfig
    from verl.workers.engine.base import EngineRegistry

    fp32 = {"param_dtype": "fp32", "reduce_dtype": "fp32", "buffer_dtype": "fp32"}
    made = EngineRegistry.new(
        model_type="language_model",
        backend=strategy,
        model_config=HFModelConfig(
            path=str(policy), use_remove_padding=False, override_config={"attn_implementation": "eager"}, enable_gradient_checkpointing=False
        ),
        engine_config=FSDPEngineConfig(strategy=strategy, mixed_precision=fp32, use_torch_compile=False, use_remove_padding=False),
        optimizer_config=FSDPOptimizerConfig(lr=learning_rate, clip_grad=1e9, weight_decay=0.0, total_training_steps=10),
        checkpoint_config=CheckpointConfig(),
    )
    made.initialize()
    return made


def loss_function(objective: str = "dapo", max_tokens: int | None = None) -> Any:
    """verl's own, with our policy loss in it."""
    from verl.workers.config import FSDPActorConfig
    from verl.workers.utils.losses import ppo_loss

    from composer_replication.recipes.verl.policy_loss import AGGREGATION

    config = FSDPActorConfig(
        strategy="fsdp2",
        rollout_n=1,
        ppo_mini_batch_size=4,
        ppo_micro_batch_size_per_gpu=1,
        policy_loss={"loss_mode": "composer"},
        loss_agg_mode=AGGREGATION[objective],
        loss_scale_factor=max_tokens,
    )
    return partial(ppo_loss, config=config)


def batch_of(case: one_gradient.Case, micro_batch_size: int) -> TensorDict:
    """The case as verl's V1 trainer has it before an update: what our agent loop puts out, with advantages."""
    columns: dict[str, list[Any]] = {}
    for number, (trajectory, advantage) in enumerate(zip(case.trajectories, case.advantages, strict=True)):
        ids, mask, logprobs = tokens_of(trajectory)
        if advantage is None:
            mask = [0] * len(ids)
        prompt = torch.tensor(trajectory.prompt_ids)
        response, response_mask = torch.tensor(ids), torch.tensor(mask)
        whole = torch.cat([prompt, response])
        hints = tuple(h for h in case.hinted if h.trajectory_id == trajectory.trajectory_id)
        row = {
            "prompts": prompt,
            "responses": response,
            "input_ids": whole,
            "position_ids": torch.arange(len(whole)),
            "response_mask": response_mask,
            "loss_mask": response_mask,
            "old_log_probs": torch.tensor(logprobs),
            "advantages": (0.0 if advantage is None else advantage) * response_mask,
            "extra_fields": pack(Row(trajectory.trajectory_id, hints, tuple(case.pairs) if number == 0 else ())),
            "num_turns": len(trajectory.turns),
        }
        for name, value in row.items():
            columns.setdefault(name, []).append(value)
    data = {
        name: torch.nested.as_nested_tensor(values, layout=torch.jagged) if isinstance(values[0], torch.Tensor) else NonTensorStack(*values)
        for name, values in columns.items()
    }
    return settled(TensorDict(data, batch_size=[len(case.trajectories)]), micro_batch_size)


def settled(data: TensorDict, micro_batch_size: int) -> TensorDict:
    """With what verl's worker adds."""
    from verl.utils import tensordict_utils as tu
    from verl.utils.dataset.dataset_utils import DatasetPadMode

    tu.assign_non_tensor(
        data,
        temperature=1.0,
        micro_batch_size_per_gpu=micro_batch_size,
        use_dynamic_bsz=False,
        use_remove_padding=False,
        global_batch_size=len(data),
        calculate_entropy=False,
        pad_mode=DatasetPadMode.NO_PADDING,
        max_token_len_per_gpu=512,
    )
    return data


def gradient(made: Any) -> dict[str, torch.Tensor]:
    """What has accumulated, whole, by parameter name."""
    return {name: getattr(p.grad, "full_tensor", p.grad.clone)().detach().clone() for name, p in made.module.named_parameters()}


