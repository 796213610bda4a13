"""Every field of a run file. The smallest file names a model, a folder of tasks and nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

__all__ = [
    "EvalConfig",
    "HintConfig",
    "LossConfig",
    "ModelConfig",
    "OptimizerConfig",
    "ReplayConfig",
    "RlvrConfig",
    "RolloutConfig",
    "RunConfig",
    "SandboxConfig",
    "TasksConfig",
    "TeacherConfig",
]

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]*$")]
Positive = Annotated[int, Field(ge=1)]
Weight = Annotated[float, Field(ge=0.0)]
Share = Annotated[float, Field(ge=0.0, le=1.0)]


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, strict=False)


class ModelConfig(_Section):
    """The policy."""

    path: str
    """A local folder or a Hugging Face model id, e.g. `Qwen/Qwen2.5-0.5B-Instruct`. It needs a chat template."""
    device: Annotated[str, Field(pattern=r"^(auto|cpu|cuda(:\d+)?)$")] = "auto"
    """`auto` (CUDA when there is one), `cpu`, `cuda` or `cuda:N`. Weights are float32: AdamW's small steps vanish in bfloat16."""


class TasksConfig(_Section):
    """What to practise on."""

    train: Path
    """A folder of task folders, made by `composer tasks build`."""
    held_out: Path | None = None
    """Tasks the policy never trains on, for pass@1; None evaluates on nothing."""
    python: Path | None = None
    """The interpreter that runs their tests; None takes the one they were built with, by the `build.json` of their folder."""


class SandboxConfig(_Section):
    """Where untrusted code runs."""

    kind: Literal["auto", "bubblewrap", "namespaces", "landlock", "unsafe-subprocess"] = "auto"
    memory_mb: Positive = 1024
    disk_mb: Positive = 256
    processes: Positive = 64


class RolloutConfig(_Section):
    """How trajectories are collected."""

    groups: Positive = 8
    """Tasks per step."""
    group_size: Annotated[int, Field(ge=2)] = 8
    """Siblings per task."""
    temperature: Annotated[float, Field(gt=0.0)] = 1.0
    turn_tokens: Positive = 1024
    trajectory_tokens: Positive = 8192
    context_tokens: Positive = 16384
    max_turns: Positive = 32
    cohorts: Positive = 2
    """Parts of a batch that take turns at the engine, so that one samples while another's tests run."""
    env_workers: Positive = 2
    """Threads for tools, tests and grades."""


class RlvrConfig(_Section):
    """Channel 1: policy gradient on the tests' verdict."""

    objective: Literal["grpo", "dr_grpo", "dapo"] = "dapo"
    advantage: Literal["grpo", "dr_grpo", "rloo"] = "grpo"
    epsilon_low: Share = 0.2
    epsilon_high: Weight = 0.28
    kl_beta: Weight = 0.0
    """Weight of the k3 estimate of KL(policy || reference) in the loss."""


class HintConfig(_Section):
    """Channel 2: the policy with a hint teaches the policy without it, at the turn that went wrong."""

    weight: Weight = 1.0
    beta: Share = 0.0
    """Generalized Jensen-Shannon divergence: 0 is forward KL(teacher || student), 1 reverse KL."""
    scale: Literal["trl", "continuous"] = "trl"
    wrapper: Literal["none", "taid", "entropy_opd"] = "none"
    entropy_h_max: float | None = None
    self_teacher: Literal["live", "frozen", "ema", "trust_region"] = "frozen"
    rate: Annotated[float, Field(gt=0.0, le=1.0)] = 0.05
    """Of the EMA or of the trust region."""
    reduction: Literal["turn", "token"] = "turn"
    """`turn`: sum over a turn's tokens, mean over turns. `token`: mean over all tokens."""
    per_trajectory: Positive = 1
    shuffle: bool = False
    """Control arm: give every error turn another task's hint."""


class ReplayConfig(_Section):
    """Channel 3: teachers re-answer frozen traces; verified disagreements become preference pairs."""

    weight: Weight = 1.0
    variant: Literal["dpo", "simpo"] = "dpo"
    dpo_beta: Annotated[float, Field(gt=0.0)] = 0.1
    simpo_beta: Annotated[float, Field(gt=0.0)] = 2.0
    simpo_gamma: Weight = 1.0
    traces_per_task: Positive = 1
    """Trajectories of the starting policy that are frozen for replay, per training task."""
    agreement_threshold: Positive = 2
    verify: bool = True
    """Carry out each chosen action in the sandbox: an edit must pass the tests, others must work where the student failed."""
    pairs_per_step: Positive = 8
    max_total_usd: Weight = 0.0
    """Hard spending cap. 0 allows only teachers whose price is zero."""


class LossConfig(_Section):
    """The three channels; weight 0 turns one off."""

    rlvr: RlvrConfig = RlvrConfig()
    hint: HintConfig = HintConfig()
    replay: ReplayConfig = ReplayConfig()


class OptimizerConfig(_Section):
    """AdamW with linear warm-up."""

    learning_rate: Annotated[float, Field(gt=0.0)] = 1e-6
    schedule: Literal["constant", "linear"] = "constant"
    """After warm-up: the same rate, or one that falls linearly to zero at the end of the run."""
    betas: tuple[Share, Share] = (0.9, 0.99)
    weight_decay: Weight = 0.0
    warmup_steps: Annotated[int, Field(ge=0)] = 2
    max_grad_norm: Annotated[float, Field(gt=0.0)] = 1.0
    micro_batch_size: Positive = 4
    """Trajectories per forward and backward pass; memory grows with it, results do not change."""


class EvalConfig(_Section):
    """pass@1 on the held-out tasks."""

    every: Positive = 10
    """Steps between evaluations; the first and the last step are always evaluated."""
    samples: Positive = 4
    """Rollouts per held-out task."""


class TeacherConfig(_Section):
    """An outside model asked over HTTP."""

    name: str
    model: str
    base_url: str = "https://openrouter.ai/api/v1"
    api_key_env: str | None = "OPENROUTER_API_KEY"
    """Environment variable with the key; an empty string for an endpoint without keys."""
    family: str = ""
    usd_per_million_input: float | None = None
    usd_per_million_output: float | None = None
    max_tokens: Positive = 4096
    max_concurrency: Positive = 8


class RunConfig(_Section):
    """One run: `composer train RUN.toml`."""

    name: Name = "run"
    out: Path = Path("runs")
    """The run directory is `out/name`."""
    seed: Annotated[int, Field(ge=0)] = 0
    steps: Positive = 100
    checkpoint_every: Positive = 10
    threads: Annotated[int, Field(ge=0)] = 0
    """CPU threads of torch; 0 leaves torch's choice. With 1 a resumed run is bit-identical to an uninterrupted one."""
    model: ModelConfig
    tasks: TasksConfig
    sandbox: SandboxConfig = SandboxConfig()
    rollout: RolloutConfig = RolloutConfig()
    loss: LossConfig = LossConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    eval: EvalConfig = EvalConfig()
    teachers: tuple[TeacherConfig, ...] = ()
    arms: Annotated[dict[Name, dict[str, str | int | float | bool]], Field(min_length=1)] = {"main": {}}
    """Variants trained one after the other from the same start: a name and the dotted keys in which it differs. What the arms
    share (`name`, `out`, `threads`, `tasks`, `sandbox`, `rollout.env_workers`) cannot differ."""
