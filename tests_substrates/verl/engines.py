"""verl's engine around the case that all substrates share."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import one_gradient
import torch
from tensordict import NonTensorStack, TensorDict

from composer_replication.config import RunConfig
from composer_replication.recipes.verl.columns import Row, pack, tokens_of
from composer_replication.recipes.verl.overrides import Files, settings
from composer_replication.types import Pair, Trajectory


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
            path=str(policy),
            use_remove_padding=False,
            override_config={"attn_implementation": "eager"},
            enable_gradient_checkpointing=False,
        ),
        engine_config=FSDPEngineConfig(
            strategy=strategy, mixed_precision=fp32, use_torch_compile=False, use_remove_padding=False
        ),
        optimizer_config=FSDPOptimizerConfig(lr=learning_rate, clip_grad=1e9, weight_decay=0.0, total_training_steps=10),
        checkpoint_config=CheckpointConfig(),
    )
    made.initialize()
    return made


def loss_function(objective: str = "dapo", max_tokens: int | None = None, **options: Any) -> Any:
    """verl's own, with our policy loss in it; `options` are more of its actor's settings."""
    from verl.workers.config import FSDPActorConfig
    from verl.workers.utils.losses import ppo_loss

    from composer_replication.recipes.verl.overrides import AGGREGATION

    config = FSDPActorConfig(
        strategy="fsdp2",
        rollout_n=1,
        ppo_mini_batch_size=4,
        ppo_micro_batch_size_per_gpu=1,
        policy_loss={"loss_mode": "composer"},
        loss_agg_mode=AGGREGATION[objective],
        loss_scale_factor=max_tokens,
        **options,
    )
    return partial(ppo_loss, config=config)


def batch_of(case: one_gradient.Case, micro_batch_size: int, *, rows: slice = slice(None), filled_up: int = 0) -> TensorDict:
    """The case as verl's V1 trainer has it before an update: what our agent loop puts out, with advantages. `filled_up` rows more
    are verl's own, and `rows` are those of one rank."""
    found = [
        _row(case, trajectory, advantage, case.pairs if number == 0 else [])
        for number, (trajectory, advantage) in enumerate(zip(case.trajectories, case.advantages, strict=True))
    ]
    found += [_filler(found[1]) for _ in range(filled_up)]
    chosen = found[rows]
    data = {name: _column([row[name] for row in chosen]) for name in chosen[0]}
    return settled(TensorDict(data, batch_size=[len(chosen)]), micro_batch_size)


def batch_of_run(
    made: Any, case: one_gradient.Case, config: RunConfig, reference: torch.Tensor | None
) -> tuple[TensorDict, dict[str, float]]:
    """The case with what verl's trainer makes of the rollouts before an update, by the settings of a run file: log-probs scored
    again and corrections of the sampler's, where they are wanted; and what it measures of these. `reference` [B, T] are log-probs
    at positions of whole rows."""
    from verl import DataProto
    from verl.trainer.config.algorithm import RolloutCorrectionConfig
    from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_and_add_to_batch
    from verl.workers.utils.padding import response_from_nested, response_to_nested

    temperature = config.rollout.temperature
    data = settled(batch_of(case, 2), 2, temperature)
    mask = data["response_mask"]
    if reference is not None:
        pieces = [
            reference[i, len(t.prompt_ids) :][: len(one)]
            for i, (t, one) in enumerate(zip(case.trajectories, mask.unbind(), strict=True))
        ]
        data["ref_log_prob"] = _column(pieces)
    correction = RolloutCorrectionConfig(**chosen_settings(config, "algorithm.rollout_correction."))
    if correction.bypass_mode:
        return data, {}
    data["rollout_log_probs"] = data.pop("old_log_probs")
    with made.eval_mode():
        output = made.infer_batch(settled(batch_of(case, 2), 2, temperature), loss_function=None)
    data["old_log_probs"] = response_from_nested(output["model_output"]["log_probs"], mask)
    some = data.select("rollout_log_probs", "old_log_probs", "response_mask").to_padded_tensor()
    proto, measured = compute_rollout_correction_and_add_to_batch(DataProto(batch=some), correction)
    data["rollout_is_weights"] = response_to_nested(proto.batch["rollout_is_weights"], mask)
    return data, measured


def chosen_settings(config: RunConfig, prefix: str) -> dict[str, Any]:
    """Those that `composer train` gives verl below a prefix."""
    nowhere = Path("nowhere")
    found = settings(config, Files(nowhere, None, nowhere, nowhere, nowhere, {}), cpu=True)
    return {name.removeprefix(prefix): value for name, value in found.items() if name.startswith(prefix)}


def actor_settings(config: RunConfig) -> dict[str, Any]:
    """Of verl's actor, those of its loss."""
    found = chosen_settings(config, "actor_rollout_ref.actor.")
    return {name: value for name, value in found.items() if name in ("use_kl_loss", "kl_loss_coef", "kl_loss_type")}


def _row(case: one_gradient.Case, trajectory: Trajectory, advantage: float | None, pairs: list[Pair]) -> dict[str, Any]:
    ids, mask, logprobs = tokens_of(trajectory)
    if advantage is None:
        mask = [0] * len(ids)
    prompt = torch.tensor(trajectory.prompt_ids)
    response, response_mask = torch.tensor(ids), torch.tensor(mask)
    whole = torch.cat([prompt, response])
    hints = tuple(h for h in case.hinted if h.trajectory_id == trajectory.trajectory_id)
    return {
        "prompts": prompt,
        "responses": response,
        "input_ids": whole,
        "position_ids": torch.arange(len(whole)),
        "response_mask": response_mask,
        "loss_mask": response_mask,
        "old_log_probs": torch.tensor(logprobs),
        "advantages": torch.where(response_mask != 0, 0.0 if advantage is None else advantage, 0.0),
        "extra_fields": pack(Row(trajectory.trajectory_id, hints, tuple(pairs))),
        "num_turns": len(trajectory.turns),
    }


def _filler(row: dict[str, Any]) -> dict[str, Any]:
    """As verl makes them: the fields of another row around a prompt and one token of padding."""
    none = torch.zeros(1, dtype=torch.int64)
    return row | {
        "prompts": torch.zeros(9, dtype=torch.int64),
        "responses": none,
        "input_ids": torch.zeros(10, dtype=torch.int64),
        "position_ids": torch.arange(10),
        "response_mask": none,
        "loss_mask": none,
        "old_log_probs": torch.zeros(1),
        "advantages": torch.zeros(1),
        "num_turns": 0,
    }


def _column(values: list[Any]) -> Any:
    nested = isinstance(values[0], torch.Tensor)
    return torch.nested.as_nested_tensor(values, layout=torch.jagged) if nested else NonTensorStack(*values)


def step(
    made: Any, data: TensorDict, objective: str = "dapo", max_tokens: int | None = None, **options: Any
) -> tuple[dict[str, Any], dict[str, float]]:
    """The gradient of one optimizer step and its metrics."""
    kept: dict[str, torch.Tensor] = {}
    stepped = type(made).optimizer_step

    def note() -> float:
        kept.update(gradient(made))
        return float(stepped(made))

    made.optimizer_step = note
    with made.train_mode():
        outputs = made.train_batch(data, loss_function(objective, max_tokens, **options))
    return kept, {name: value[0] for name, value in outputs["metrics"].items() if isinstance(value, list)}


def settled(data: TensorDict, micro_batch_size: int, temperature: float = 1.0) -> TensorDict:
    """With what verl's worker adds."""
    from verl.utils import tensordict_utils as tu
    from verl.utils.dataset.dataset_utils import DatasetPadMode

    tu.assign_non_tensor(
        data,
        temperature=temperature,
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
