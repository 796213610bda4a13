"""The options of GRPOConfig that follow from a run file, and those that it cannot express."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from composer_replication.config import RunConfig
from composer_replication.policy_gradient import thresholds
from composer_replication.recipes.limits import on_cpu, precision_of, refuse
from composer_replication.types.errors import ConfigError, one_of

if TYPE_CHECKING:
    from trl import GRPOConfig

_LOSS_TYPES = {"bnpo": "dapo", "gspo": "grpo"}
"""Where TRL says it otherwise: its `bnpo` depends on how a batch is cut, and its GSPO is a level of importance sampling."""
_OURS = frozenset(
    {
        *("output_dir", "max_steps", "num_train_epochs", "seed", "temperature", "use_vllm", "num_iterations"),
        *("per_device_train_batch_size", "gradient_accumulation_steps", "steps_per_generation", "generation_batch_size"),
        *("num_generations", "max_completion_length", "learning_rate", "weight_decay", "max_grad_norm", "optim"),
        *("save_strategy", "save_steps", "save_total_limit", "logging_strategy", "logging_steps", "ignore_data_skip"),
        *("shuffle_dataset", "mask_truncated_completions", "auto_find_batch_size", "eval_strategy", "resume_from_checkpoint"),
        *("save_only_model", "load_best_model_at_end", "use_cpu", "gradient_checkpointing", "activation_checkpointing"),
        *("lr_scheduler_type", "lr_scheduler_kwargs", "warmup_steps", "warmup_ratio", "optim_args"),
        *("adam_beta1", "adam_beta2", "adam_epsilon"),
        *("scale_rewards", "reward_weights", "multi_objective_aggregation"),
        *("top_p", "top_k", "min_p", "repetition_penalty", "generation_kwargs", "cache_implementation"),
        *("max_tool_calling_iterations", "chat_template_kwargs"),
        *("label_smoothing_factor", "num_generations_eval", "eval_on_start", "data_seed", "train_sampling_strategy"),
        *("neftune_noise_alpha", "fp16", "bf16", "disable_dropout"),
    }
)
"""Options that are refused: the run file or our checkpoints decide them, or TRL would not read them, because optimizer,
advantages and rollouts are ours."""
_CHOICES = {
    "loss_type": ("grpo", "bnpo", "dr_grpo", "dapo", "cispo", "sapo", "vespo", "luspo"),
    "importance_sampling_level": ("token", "sequence"),
}
"""Options whose words TRL reads only in the first update, when rollouts and teachers are paid for."""


def check(config: RunConfig) -> None:
    """Raise ConfigError when an arm asks for what GRPOTrainer cannot express, or sets an option that is not free."""
    refuse(config, "trl")
    for name, value in config.substrate.options.items():
        if name in _OURS or name.startswith("vllm_"):
            raise ConfigError(
                f"substrate.options.{name} is not free on substrate trl: it follows from the run file, or rollouts rest on it",
                fix="leave it out, and set the run file's own field where there is one",
            )
        if name in _CHOICES and value not in _CHOICES[name]:
            raise ConfigError(
                f"substrate.options.{name} = {value!r} is none that TRL has", fix=f"use one of {', '.join(_CHOICES[name])}"
            )


def grpo_options(config: RunConfig, folder: Path) -> dict[str, Any]:
    """Return the fields of GRPOConfig that follow from an arm's configuration; `substrate.options` override them."""
    rlvr, rollout, optimizer = config.loss.rlvr, config.rollout, config.optimizer
    rollouts = rollout.groups * rollout.group_size
    micro = config.trajectories_per_pass(rollouts)
    low, high = thresholds("cispo" if rlvr.objective == "cispo" else "ppo", rlvr.epsilon_low, rlvr.epsilon_high)
    if rlvr.objective == "gspo":
        low, high = thresholds("gspo", rlvr.epsilon_low, rlvr.epsilon_high)
    own = {
        "output_dir": str(folder),
        "max_steps": config.steps,
        "seed": config.seed % (1 << 32),
        "per_device_train_batch_size": micro,
        "gradient_accumulation_steps": rollouts // micro,
        "num_generations": rollout.group_size,
        "max_completion_length": rollout.trajectory_tokens,  # what dr_grpo divides by; our budgets cut, not this
        "temperature": rollout.temperature,
        "loss_type": _LOSS_TYPES.get(rlvr.objective, rlvr.objective),
        "importance_sampling_level": "sequence" if rlvr.objective == "gspo" else "token",
        "epsilon": low,
        "epsilon_high": 1.0 + high if rlvr.objective == "cispo" else high,  # there TRL limits the ratio itself
        "beta": rlvr.kl_beta,
        "use_bias_correction_kl": rlvr.kl_estimator == "unbiased",
        "delta": rlvr.ratio_cap,
        "off_policy_mask_threshold": rlvr.off_policy_threshold,
        "learning_rate": optimizer.learning_rate,
        "max_grad_norm": optimizer.max_grad_norm,
        "activation_checkpointing": optimizer.checkpoints(on_gpu=not on_cpu(config)),
        "disable_dropout": True,  # with it the policy that learns would be another than the one that sampled
        "bf16": precision_of(config) != "float32",
        "shuffle_dataset": False,
        "ignore_data_skip": True,  # its rows are placeholders: the step decides which tasks are rolled out
        "logging_steps": 1,
        "save_strategy": "steps",
        "save_steps": config.checkpoint_every,
        "report_to": [],
        "disable_tqdm": True,
    }
    return own | config.substrate.options


def make_grpo_config(config: RunConfig, folder: Path, *, cpu: bool) -> GRPOConfig:
    """Make the GRPOConfig of an arm.

    Raises ConfigError when `substrate.options` names no field of GRPOConfig, or has a value that GRPOConfig refuses.
    """
    import dataclasses

    from trl import GRPOConfig

    known = {f.name for f in dataclasses.fields(GRPOConfig)}
    options = grpo_options(config, folder)
    if "activation_checkpointing" not in known:  # transformers before 5.20
        options["gradient_checkpointing"] = options.pop("activation_checkpointing")
    for name in config.substrate.options:
        if name not in known:
            fix = "set model.lora.rank" if name.startswith("peft.") else one_of(name, known)
            raise ConfigError(f"substrate.options.{name} is no field of GRPOConfig", fix=fix)
    try:
        made = GRPOConfig(**options, use_cpu=cpu)
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"substrate.options: GRPOConfig refuses them: {error}", fix="correct the option that it names"
        ) from error
    made._n_gpu = min(made.n_gpu, 1)  # several visible devices would become DataParallel
    return made
