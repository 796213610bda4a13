"""verl's settings, made from a run file, and the settings that a run file may not override."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from composer_replication.config import RunConfig
from composer_replication.policy_gradient import Objective
from composer_replication.recipes.limits import refuse
from composer_replication.recipes.verl.plan import CPU_ROLLOUT
from composer_replication.types.errors import ConfigError

_OURS = tuple(
    table + name
    for table, names in {
        "": "actor_rollout_ref.hybrid_engine algorithm. data. critic. distillation. model_engine reward. reward_model.",
        "actor_rollout_ref.actor.": (
            "checkpoint. clip_ratio entropy_coeff fsdp_config.ulysses_sequence_parallel_size kl_loss_ loss_ qat. "
            "optim. policy_loss. ppo_ ulysses_sequence_parallel_size use_dynamic_bsz use_kl_loss"
        ),
        "actor_rollout_ref.model.": ("custom_chat_template hf_config_path mtp. override_config tokenizer_path use_fused_kernels"),
        "actor_rollout_ref.rollout.": (
            "agent. calculate_log_probs do_sample engine_kwargs ignore_eos logprobs_mode mode prompt_length "
            "quantization repetition_penalty response_length temperature top_ val_kwargs."
        ),
        "trainer.": "balance_batch critic_warmup resume_ total_ val_only v1.",
    }.items()
    for name in names.split()
)
"""Prefixes of the settings that the channels depend on, in addition to all that follow from the run file."""
_FREE = tuple(
    table + name
    for table, names in {
        "": "actor_rollout_ref.ref.log_prob_ ray_kwargs.ray_init. reward.num_workers transfer_queue.",
        "actor_rollout_ref.actor.": "use_torch_compile",
        "actor_rollout_ref.rollout.": (
            "agent.num_workers engine_kwargs.vllm.block_size engine_kwargs.vllm.compilation_config "
            "engine_kwargs.vllm.disable_custom_all_reduce log_prob_ tensor_model_parallel_size"
        ),
        "trainer.": "experiment_name logger max_actor_ckpt_to_keep n_gpus_per_node nnodes project_name",
    }.items()
    for name in names.split()
)
"""Of these, settings that change where and how fast a run goes, not what it computes or where its state is."""
AGGREGATION: Mapping[Objective, str] = {
    "grpo": "seq-mean-token-mean",
    "gspo": "seq-mean-token-mean",
    "sapo": "seq-mean-token-mean",
    "dr_grpo": "seq-mean-token-sum-norm",
    "dapo": "token-mean",
    "bnpo": "token-mean",
    "cispo": "token-mean",
    "dppo": "token-mean",
}
"""verl's name for how an objective averages its tokens."""
_LORA = "actor_rollout_ref.model.lora"
_LOGGER = "trainer.logger"
_RANKS = ("trainer.nnodes", "trainer.n_gpus_per_node")


@dataclass(frozen=True, slots=True)
class Files:
    """The files that a run of verl reads and writes."""

    train: Path
    held_out: Path | None
    checkpoints: Path
    outputs: Path
    """Hydra's folder."""
    ray: Path
    """Ray's folder of sockets, whose paths must be short."""
    environment: Mapping[str, str]
    """Environment variables of every process of the run."""
    begun: bool = False
    """True when the run continues from a checkpoint: its start was evaluated before."""


def check(config: RunConfig) -> None:
    """Raise ConfigError when an arm asks for what verl cannot express, ModelError for CUDA where there is none."""
    refuse(config, "verl")
    _check_options(config)
    rows, ranks = config.rollout.groups * config.rollout.group_size, _ranks(config)
    if rows % ranks:
        raise ConfigError(
            f"{ranks} ranks cannot share {rows} trajectories a step evenly, as verl wants",
            fix="change rollout.groups, rollout.group_size, or trainer.nnodes and trainer.n_gpus_per_node in substrate.options",
        )


def _check_options(config: RunConfig) -> None:
    nowhere = Path("nowhere")
    files = Files(nowhere, None, nowhere, nowhere, nowhere, {})
    ours = {name.lstrip("+") for cpu in (False, True) for name in settings(config, files, cpu=cpu)}
    for name in config.substrate.options:
        plain = name.lstrip("+~")
        if plain.startswith(_LORA):
            raise ConfigError(
                f"substrate.options.{name} cannot be expressed on verl: hints and checkpoints are of whole weights",
                fix='leave it out, or set substrate.type = "trl" and model.lora.rank',
            )
        if (plain in ours or plain.startswith(_OURS)) and not plain.startswith(_FREE):
            raise ConfigError(
                f"substrate.options.{name} follows from the run file, or the channels rest on it",
                fix="leave it out, and set what it follows from",
            )


def _ranks(config: RunConfig) -> int:
    options = {name.lstrip("+"): (name, value) for name, value in config.substrate.options.items()}
    found = 1
    for field in _RANKS:
        name, value = options.get(field, (field, 1))
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ConfigError(f"substrate.options.{name} = {value!r} is no number of ranks", fix="set it to 1 or more")
        found *= value
    return found


def command_line(config: RunConfig, files: Files, *, cpu: bool) -> list[str]:
    """Return the arguments of `python -m verl.trainer.main_ppo`. The dotted names of `substrate.options` come last."""
    words = [f"{name}={_word(value)}" for name, value in settings(config, files, cpu=cpu).items()]
    options: dict[str, Any] = dict(config.substrate.options)
    if _LOGGER in options:  # what verl writes to its file is what this run reads
        options[_LOGGER] = list(dict.fromkeys(["file", *re.findall(r"\w+", str(options[_LOGGER]))]))
    return words + [f"{name}={_word(value)}" for name, value in options.items()]


def settings(config: RunConfig, files: Files, *, cpu: bool) -> dict[str, Any]:
    """Return verl's settings by dotted name, as hydra takes them."""
    rollout = config.rollout
    rows = rollout.groups * rollout.group_size // _ranks(config)
    micro = config.trajectories_per_pass(rows)
    validates = files.held_out is not None
    found: dict[str, Any] = {
        "hydra.run.dir": files.outputs,
        "data.train_files": files.train,
        "data.val_files": files.held_out or files.train,
        "data.train_batch_size": rollout.groups,
        "data.shuffle": False,
        "data.dataloader_num_workers": 0,
        "data.max_prompt_length": rollout.context_tokens,
        "data.max_response_length": rollout.context_tokens,
        "algorithm.adv_estimator": "composer",
        "actor_rollout_ref.model.path": config.model.path,
        "actor_rollout_ref.model.use_remove_padding": False,
        "actor_rollout_ref.model.enable_gradient_checkpointing": config.optimizer.checkpoints(on_gpu=not cpu),
        "actor_rollout_ref.rollout.n": rollout.group_size,
        "actor_rollout_ref.rollout.temperature": rollout.temperature,
        "actor_rollout_ref.rollout.agent.default_agent_loop": "composer",
        "actor_rollout_ref.rollout.agent.num_workers": 1,
        "actor_rollout_ref.rollout.tensor_model_parallel_size": 1,
        "actor_rollout_ref.rollout.max_model_len": rollout.context_tokens,
        "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu": micro,
        "actor_rollout_ref.rollout.val_kwargs.n": config.eval.samples,
        "actor_rollout_ref.rollout.val_kwargs.do_sample": True,
        "actor_rollout_ref.rollout.val_kwargs.temperature": rollout.temperature,
        "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu": micro,
        "reward.num_workers": 1,
        "trainer.use_v1": True,
        "trainer.v1.trainer_mode": "sync",
        "trainer.nnodes": 1,
        "trainer.n_gpus_per_node": 1,
        "trainer.logger": ["file"],
        "trainer.project_name": "composer",
        "trainer.experiment_name": config.name,
        "trainer.total_epochs": 1,
        "trainer.total_training_steps": config.steps,
        "trainer.save_freq": config.checkpoint_every,
        "trainer.test_freq": config.eval.every if validates else -1,
        "trainer.val_before_train": validates and not files.begun,
        "trainer.default_local_dir": files.checkpoints,
        "trainer.max_actor_ckpt_to_keep": 2,
        "trainer.resume_mode": "auto",
    }
    found |= {f"+ray_kwargs.ray_init.runtime_env.env_vars.{name}": value for name, value in files.environment.items()}
    return (
        found
        | _actor(config, micro, AGGREGATION[config.loss.rlvr.objective])
        | _correction(config)
        | _model(config, cpu)
        | _device(config, files, cpu)
    )


def _actor(config: RunConfig, micro: int, aggregation: str) -> dict[str, Any]:
    optimizer, rlvr = config.optimizer, config.loss.rlvr
    values: dict[str, Any] = {
        "strategy": "fsdp2",
        "ppo_mini_batch_size": config.rollout.groups,
        "ppo_micro_batch_size_per_gpu": micro,
        "policy_loss.loss_mode": "composer",
        "loss_agg_mode": aggregation,
        "use_torch_compile": False,
        "grad_clip": optimizer.max_grad_norm,
        "optim.lr": optimizer.learning_rate,
        "optim.betas": list(optimizer.betas),
        "optim.weight_decay": optimizer.weight_decay,
        "optim.clip_grad": optimizer.max_grad_norm,
        "checkpoint.save_contents": ["model", "optimizer", "extra", "hf_model"],
    }
    if aggregation == "seq-mean-token-sum-norm":
        values["loss_scale_factor"] = config.rollout.trajectory_tokens
    if rlvr.kl_beta > 0:
        values |= {"use_kl_loss": True, "kl_loss_coef": 0.0}  # verl scores by the reference, and the engine adds the term
    return {f"actor_rollout_ref.actor.{name}": value for name, value in values.items()}


def _correction(config: RunConfig) -> dict[str, Any]:
    """Return the settings of the importance correction; without it the sampler's log-probs are taken as the old policy's."""
    rlvr = config.loss.rlvr
    if rlvr.importance == "none":
        return {"algorithm.rollout_correction.bypass_mode": True}
    high = f"{rlvr.importance_high}"
    limits = high if rlvr.importance == "tis" else f"{rlvr.importance_low}_{high}"
    level = rlvr.importance_level
    return {"algorithm.rollout_correction.rollout_is": level, "algorithm.rollout_correction.rollout_is_threshold": limits}


def _model(config: RunConfig, cpu: bool) -> dict[str, Any]:
    """Return the settings of precision, attention and memory; verl keeps float32 weights by itself."""
    mixed = config.model.precision == "mixed" or (config.model.precision == "auto" and not cpu)
    computed = "bf16" if mixed else "fp32"
    types = {"param_dtype": computed, "reduce_dtype": "fp32", "buffer_dtype": "fp32"}
    found = {f"+actor_rollout_ref.actor.fsdp_config.mixed_precision.{name}": dtype for name, dtype in types.items()}
    attention = "eager" if cpu and config.model.attention == "auto" else config.model.attention
    if attention != "auto":
        found["+actor_rollout_ref.model.override_config.attn_implementation"] = attention
    return found | {"actor_rollout_ref.actor.fsdp_config.optimizer_offload": config.optimizer.offload}


def _device(config: RunConfig, files: Files, cpu: bool) -> dict[str, Any]:
    if not cpu:
        return {"trainer.device": "cuda", "actor_rollout_ref.rollout.name": "vllm"}
    return {
        "trainer.device": "cpu",
        "actor_rollout_ref.rollout.name": CPU_ROLLOUT,
        "transfer_queue.backend.SimpleStorage.num_data_storage_units": 1,
        "ray_kwargs.ray_init.num_cpus": 32,  # logical: verl's actors ask for one each and mostly wait
        "+ray_kwargs.ray_init.num_gpus": 1 + _ranks(config),  # likewise
        "+ray_kwargs.ray_init.include_dashboard": False,
        "+ray_kwargs.ray_init.object_store_memory": 256 << 20,
        "+ray_kwargs.ray_init._temp_dir": files.ray,
    }


def _word(value: Any) -> str:
    """Format a value for hydra's command line."""
    if isinstance(value, list):
        return "[" + ",".join(map(_word, value)) + "]"
    if isinstance(value, bool | int | float):
        return str(value)
    quoted = str(value).replace("\\", "\\\\").replace("'", "\\'")
    return f"'{quoted}'"
