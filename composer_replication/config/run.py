"""Every field of a run file. The smallest file names a model, a folder of tasks and nothing else."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

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
    "is_name",
]

_NAME = r"^[A-Za-z0-9_][A-Za-z0-9_.-]*$"
Name = Annotated[str, Field(pattern=_NAME)]
Positive = Annotated[int, Field(ge=1)]
Weight = Annotated[float, Field(ge=0.0)]
Share = Annotated[float, Field(ge=0.0, le=1.0)]
Decay = Annotated[float, Field(ge=0.0, lt=1.0)]


_Override = dict[str, str | int | float | bool]


def _flat(arm: Any) -> Any:
    """TOML reads an unquoted `loss.hint.weight = 0` as nested tables: the same override, with its key in one piece."""
    if not isinstance(arm, dict):
        return arm
    flat: dict[str, Any] = {}
    for key, value in arm.items():
        flat |= {f"{key}.{rest}": v for rest, v in _flat(value).items()} if isinstance(value, dict) else {key: value}
    return flat


def is_name(text: str) -> bool:
    """Whether a run, an arm or a teacher may have this name."""
    return re.fullmatch(_NAME, text) is not None


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
    """A folder of task folders, made by `composer tasks build`. Paths are relative to the run file's folder."""
    held_out: Path | None = None
    """A folder of tasks the policy never trains on, for pass@1."""
    held_out_share: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.0
    """Instead of such a folder: this share of the tasks in `train`, chosen by their ids. Neither: pass@1 is not measured.
    Tasks of one repository hold each other's solutions; only the tasks of another repository measure generalisation."""
    python: Path | None = None
    """The interpreter that runs their tests; by default the one they were built with, as `build.json` in their folder says."""


class SandboxConfig(_Section):
    """Where untrusted code runs."""

    kind: Literal["auto", "bubblewrap", "namespaces", "landlock", "unsafe-subprocess"] = "auto"
    """`auto` takes the strongest isolation the machine allows, and never the unsafe one."""
    memory_mb: Positive = 1024
    """MiB of memory of one box."""
    disk_mb: Positive = 256
    """MiB that one box may write."""
    processes: Positive = 64
    """Processes and threads of one box."""


class RolloutConfig(_Section):
    """How trajectories are collected."""

    groups: Positive = 8
    """Tasks per step."""
    group_size: Annotated[int, Field(ge=2)] = 8
    """Siblings per task."""
    temperature: Annotated[float, Field(gt=0.0)] = 1.0
    """Of sampling, in training and evaluation."""
    turn_tokens: Positive = 1024
    """Most tokens sampled in one turn."""
    trajectory_tokens: Positive = 8192
    """Most tokens sampled in a trajectory."""
    context_tokens: Positive = 16384
    """Most tokens of a trajectory, prompt and replies included; the model's own window is the limit if it is smaller."""
    max_turns: Positive = 32
    """Most turns of a trajectory."""
    cohorts: Positive = 2
    """Parts of a batch that take turns at the engine, so that one samples while another's tests run."""
    env_workers: Positive = 2
    """Threads for tools, tests and grades."""


class RlvrConfig(_Section):
    """Channel 1: policy gradient on the tests' verdict."""

    objective: Literal["grpo", "bnpo", "dr_grpo", "dapo", "gspo", "cispo", "dppo"] = "dapo"
    """The loss of a token and how tokens are averaged. PPO's clipped ratio, averaged per sequence (grpo), over a constant length
    (dr_grpo) or over all tokens of the batch (dapo, bnpo); the ratio of the whole sequence (gspo); a clipped weight that drops
    no token (cispo); tokens dropped by how far their probability has moved (dppo)."""
    advantage: Literal["grpo", "dr_grpo", "rloo"] = "grpo"
    """Reward minus the group's mean, divided by its deviation (grpo) or not (dr_grpo); or minus the siblings' mean (rloo)."""
    epsilon_low: Share = 0.2
    """The ratio to the sampling policy is clipped below 1 - epsilon_low."""
    epsilon_high: Weight = 0.28
    """The ratio is clipped above 1 + epsilon_high; larger than epsilon_low it is DAPO's clip-higher."""
    kl_beta: Weight = 0.0
    """Weight of the k3 estimate of KL(policy || reference) in the loss."""


class HintConfig(_Section):
    """Channel 2: the policy with a hint teaches the policy without it, at the turn that went wrong."""

    weight: Weight = 1.0
    """Of the channel in the loss."""
    beta: Share = 0.0
    """Generalized Jensen-Shannon divergence: 0 is forward KL(teacher || student), 1 reverse KL."""
    scale: Literal["trl", "continuous"] = "trl"
    """How the divergence is scaled at beta 0 and 1: as TRL does, or continuous in beta."""
    wrapper: Literal["none", "taid", "entropy_opd"] = "none"
    """`taid` moves the target from student to teacher over training; `entropy_opd` is forward KL where the teacher is unsure,
    reverse KL where it is sure."""
    entropy_h_max: Annotated[float, Field(gt=0.0)] | None = None
    """Entropy in nats at which entropy_opd is all forward KL; by default that of the uniform distribution."""
    self_teacher: Literal["live", "frozen", "ema", "trust_region"] = "frozen"
    """Which weights read the hint: the policy's own, its start, a moving average, or a mixture with its start."""
    rate: Annotated[float, Field(gt=0.0, le=1.0)] = 0.05
    """Of the EMA or of the trust region."""
    reduction: Literal["turn", "token"] = "turn"
    """`turn`: sum over a turn's tokens, mean over turns. `token`: mean over all tokens."""
    per_trajectory: Positive = 1
    """Most hints of one trajectory, earliest error turns first."""
    shuffle: bool = False
    """Control arm: give every error turn another task's hint."""


class ReplayConfig(_Section):
    """Channel 3: teachers re-answer frozen traces; verified disagreements become preference pairs."""

    weight: Weight = 1.0
    """Of the channel in the loss."""
    variant: Literal["dpo", "simpo"] = "dpo"
    """The loss on pairs: against the starting policy's log-probs (dpo), or length-normalized without a reference (simpo)."""
    dpo_beta: Annotated[float, Field(gt=0.0)] = 0.1
    """DPO's temperature."""
    simpo_beta: Annotated[float, Field(gt=0.0)] = 2.0
    """SimPO's temperature."""
    simpo_gamma: Weight = 1.0
    """SimPO's target margin."""
    traces_per_task: Positive = 1
    """Trajectories of the starting policy that are frozen for replay, per training task."""
    agreement_threshold: Positive = 2
    """Teachers that must choose the same action, another than the student's."""
    verify: bool = True
    """Carry out each chosen action in the sandbox: an edit must pass the tests, others must work where the student failed."""
    pairs_per_step: Positive = 8
    """Pairs in one optimizer step; the list is read round and round."""
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
    """After warm-up."""
    schedule: Literal["constant", "linear"] = "constant"
    """After warm-up: the same rate, or one that falls linearly to zero at the end of the run."""
    betas: tuple[Decay, Decay] = (0.9, 0.99)
    """Decay of AdamW's two moments."""
    weight_decay: Weight = 0.0
    """Decoupled, as AdamW has it."""
    warmup_steps: Annotated[int, Field(ge=0)] = 2
    """Steps in which the rate rises linearly."""
    max_grad_norm: Annotated[float, Field(gt=0.0)] = 1.0
    """The gradient is scaled down to this norm."""
    micro_batch_size: Positive = 4
    """Trajectories per forward and backward pass; memory grows with it, results do not change."""
    gradient_checkpointing: bool = False
    """Keep only each layer's input in the forward pass and compute the rest again in the backward pass: about a third more work,
    a fraction of the memory, the same results."""


class EvalConfig(_Section):
    """pass@1 on the held-out tasks."""

    every: Positive = 10
    """Steps between evaluations; the first and the last step are always evaluated."""
    samples: Positive = 4
    """Rollouts per held-out task."""


class TeacherConfig(_Section):
    """An outside model asked over HTTP."""

    name: str
    """Yours, for terminal, ledger and report."""
    model: str
    """The endpoint's name of the model."""
    base_url: str = "https://openrouter.ai/api/v1"
    """Any OpenAI-compatible endpoint."""
    api_key_env: str | None = "OPENROUTER_API_KEY"
    """Environment variable with the key; an empty string for an endpoint without keys."""
    family: str = ""
    """Teachers of one family have one vote together; empty is a family of its own."""
    usd_per_million_input: Weight | None = None
    """Price of a million prompt tokens; without prices a spending cap cannot be kept and the run is refused."""
    usd_per_million_output: Weight | None = None
    """Price of a million answer tokens."""
    max_tokens: Positive = 4096
    """Of one answer."""
    max_concurrency: Positive = 8
    """Requests in flight at a time."""


class RunConfig(_Section):
    """One run: `composer train RUN.toml`."""

    name: Name = "run"
    """Letters, digits, `_`, `-` and `.`."""
    out: Path = Path("runs")
    """The run directory is `out/name`."""
    seed: Annotated[int, Field(ge=0, lt=1 << 63)] = 0
    """Decides every draw."""
    steps: Positive = 100
    """Optimizer steps of an arm."""
    checkpoint_every: Positive = 10
    """Steps between checkpoints; the newest two are kept."""
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
    """Whom the replay channel asks."""
    arms: Annotated[dict[Name, Annotated[_Override, BeforeValidator(_flat)]], Field(min_length=1)] = {"main": {}}
    """Variants trained one after the other from the same start: a name and the dotted keys in which it differs. What the arms
    share (`name`, `out`, `threads`, `model`, `tasks`, `sandbox`, `rollout.env_workers`) cannot differ."""
