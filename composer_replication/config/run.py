"""Every field of a run file. The smallest file names a model, a folder of tasks and nothing else."""

from __future__ import annotations

import math
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from composer_replication.config.diloco import DilocoConfig
from composer_replication.config.loss import LossConfig, RewardConfig
from composer_replication.config.section import Decay, Name, Positive, ReadBy, Section, Share, Weight, flat, refuse
from composer_replication.config.substrate import SubstrateConfig

__all__ = [
    "CurriculumConfig",
    "EvalConfig",
    "ModelConfig",
    "OptimizerConfig",
    "RolloutConfig",
    "RunConfig",
    "SandboxConfig",
    "TasksConfig",
    "TeacherConfig",
    "TeachersFile",
]


_Override = dict[str, str | int | float | bool]


class ModelConfig(Section):
    """The policy."""

    path: str
    """A local folder or a Hugging Face model id, e.g. `Qwen/Qwen2.5-0.5B-Instruct`. It needs a chat template."""
    device: Annotated[str, Field(pattern=r"^(auto|cpu|cuda(:\d+)?)$")] = "auto"
    """`auto` (CUDA when there is one), `cpu`, `cuda` or `cuda:N`. Weights are float32: AdamW's small steps vanish in bfloat16."""


class TasksConfig(Section):
    """What to practise on."""

    train: Path
    """A folder of task folders, made by `composer tasks build`. Paths are relative to the run file's folder."""
    held_out: Path | None = None
    """A folder of tasks the policy never trains on, for pass@1."""
    held_out_share: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.0
    """Instead of such a folder: this share of the tasks in `train`, chosen by their ids. Neither: pass@1 is not measured.
    Tasks of one repository hold each other's solutions; only the tasks of another repository measure generalisation."""
    instruction: Literal["terse", "full", "ambiguous"] | None = None
    """How much agents are told, whatever the tasks were built with; by default what their folders say."""
    python: Path | None = None
    """The interpreter that runs their tests; by default the one they were built with, as `build.json` in their folder says,
    or with a remote sandbox that machine's."""


class SandboxConfig(Section):
    """Where untrusted code runs."""

    kind: Annotated[
        str,
        Field(pattern=r"^(auto|bubblewrap|namespaces|landlock|docker(:.+)?|remote:https?://[^@?#\s]+|unsafe-subprocess)$"),
    ] = "auto"
    """`auto` takes the strongest isolation the machine allows, but never the unsafe one nor `docker`, `docker:IMAGE` or
    `remote:URL`, the address of a SWE-ReX server whose key is in the environment variable COMPOSER_REMOTE_KEY."""
    memory_mb: Positive = 1024
    """MiB of memory of one box."""
    disk_mb: Positive = 256
    """MiB that one box may write."""
    processes: Positive = 64
    """Processes and threads of one box."""
    shell: bool = False
    """Offer agents commands of their own and patches over several files besides looking, editing, testing and submitting."""


_SERVED = ReadBy("engine", "vllm", "sglang")


class RolloutConfig(Section):
    """How trajectories are collected."""

    engine: Literal["transformers", "vllm", "sglang"] = "transformers"
    """What samples: the trainer's own model in its own process (transformers), or a server that is given the policy's weights
    after each step. A server computes other log-probs than the trainer does, and needs `loss.rlvr.importance`."""
    server_url: Annotated[Annotated[str, Field(pattern=r"^https?://[^@?#\s]+$")] | None, _SERVED] = None
    """Its address, `http://HOST:PORT`. A key, where it wants one, is in the environment variable COMPOSER_SERVER_KEY."""
    server_weights: Annotated[Path | None, _SERVED] = None
    """Folder through which the weights go, under the same path here and on the server's machine; by default the run's own."""
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
    """With `engine = "transformers"`: parts of a batch that take turns at the model, so that one samples while another's tests
    run. With a server every rollout goes on by itself, and this changes nothing."""
    refills: Annotated[int, Field(ge=0)] = 0
    """DAPO's dynamic sampling: how often in a step groups whose siblings all got the same verdict are made up for by groups of
    other tasks. Such groups are left out of the policy gradient then; their hints still teach."""
    stall_s: Annotated[float, Field(gt=0.0)] = 1800.0
    """Seconds without any model call, tool or test finishing after which a rollout counts as stuck, and the run stops. On a mesh
    the actor that is waited for is replaced, and so is one that does not answer, load, send weights or step in this time."""
    env_workers: Positive = 2
    """Threads for tools, tests and grades."""
    max_requests: Annotated[Positive | None, _SERVED] = None
    """Most turns asked of the server at a time; of the rollouts that wait, the one with the fewest turns goes first. By default
    the server gets the turn of every rollout as soon as it is ready."""
    timeout_s: Annotated[float, Field(gt=0.0)] | None = None
    """Most seconds of one rollout in its tools, tests, grade and requests to a server; by default there is no limit. Waiting for
    a free thread or for the server's turn under `max_requests` does not count, and neither does sampling in the trainer's own
    process. A rollout that takes longer is ended without a verdict, so that it enters no baseline, and the others go on."""

    @model_validator(mode="after")
    def _a_server_has_an_address(self) -> Self:
        if self.engine != "transformers" and self.server_url is None:
            refuse(f"server_url is missing with engine = {self.engine}", 'add server_url = "http://HOST:PORT"')
        return self


_IF_ENABLED = ReadBy("enabled", True)


class CurriculumConfig(Section):
    """Choosing tasks by how often the policy solves them, instead of all in turn."""

    enabled: bool = False
    """Off, every pass takes every task once. On, tasks are drawn by their pass rates in this run, `4 p (1 - p)`."""
    levels: Annotated[Positive, _IF_ENABLED] = 1
    """Parts of the tasks, sorted by estimated difficulty, that are taken up one after the other."""
    promote_at: Annotated[Share, _IF_ENABLED] = 0.7
    """Mean pass rate of the tasks taken up, at which the next part is added."""
    floor: Annotated[float, Field(gt=0.0, le=1.0), _IF_ENABLED] = 0.05
    """Least weight of a task, so that what is solved is still looked at."""
    decay: Annotated[Decay, _IF_ENABLED] = 0.8
    """How much of what was seen of a task counts at its next visit."""
    quarantine_after: Annotated[Positive, _IF_ENABLED] = 3
    """Visits in a row on which every sibling failed, after which a task is left alone."""
    probe_every: Annotated[Positive, _IF_ENABLED] = 20
    """Steps after which such a task may be drawn again."""
    visible_tests: Annotated[tuple[Annotated[float, Field(gt=0.0, le=1.0)], ...], Field(min_length=1), _IF_ENABLED] = (1.0,)
    """Shares of a task's fail-to-pass tests that the agent sees, from the largest down; all are graded. A task that is solved at
    `promote_at` shows the next share, one that `quarantine_after` would leave alone the one before."""
    join_up_to: Annotated[Positive, _IF_ENABLED] = 1
    """Functions of the largest task made while the run goes on, by joining two solved ones of one source; 1 makes none."""

    @model_validator(mode="after")
    def _fewer_and_fewer(self) -> Self:
        if any(after >= before for before, after in pairwise(self.visible_tests)):
            refuse(f"visible_tests = {list(self.visible_tests)} does not fall", "write for example [1.0, 0.5]")
        return self

    def unreachable(self, group_size: int) -> float | None:
        """The pass rate that a task solved on every visit by groups of this size comes to, where `promote_at` waits for more.

        None where it is reached, and where nothing follows from it.
        """
        if not self.enabled or (self.levels == self.join_up_to == len(self.visible_tests) == 1):
            return None
        remembered = group_size / (1.0 - self.decay)
        most = (remembered + 1) / (remembered + 2)
        # counts that fade do not come to their limit
        reached = self.promote_at < most or (self.decay == 0 and self.promote_at == most)
        return None if reached else most


class OptimizerConfig(Section):
    """What takes the optimizer steps, with linear warm-up."""

    type: Literal["adamw", "muon"] = "adamw"
    """Choose which optimizer trains the policy. `adamw` updates all parameters with AdamW. `muon` updates the matrices inside the
    model's blocks with Muon (orthogonalized momentum, arXiv:2502.16982) and everything else with AdamW; both use the same
    learning_rate, because Muon's updates are scaled to the size of AdamW's. Try `muon` when you train all weights, above all
    with DiLoCo, and search the learning rate again. The substrates verl and prime_rl refuse it."""
    learning_rate: Annotated[float, Field(gt=0.0)] = 1e-6
    """After warm-up."""
    schedule: Literal["constant", "linear"] = "constant"
    """After warm-up: the same rate, or one that falls linearly to zero at the end of the run."""
    betas: tuple[Decay, Decay] = (0.9, 0.99)
    """Decay of AdamW's two moments. Muon's momentum is always 0.95."""
    weight_decay: Weight = 0.0
    """Decoupled, as AdamW has it, for both optimizers."""
    warmup_steps: Annotated[int, Field(ge=0)] = 2
    """Steps in which the rate rises linearly."""
    max_grad_norm: Annotated[float, Field(gt=0.0)] = 1.0
    """The gradient is scaled down to this norm."""
    micro_batch_size: Positive = 4
    """Trajectories per forward and backward pass; memory grows with it, results do not change."""
    gradient_checkpointing: bool = False
    """Keep only each layer's input in the forward pass and compute the rest again in the backward pass: about a third more work,
    a fraction of the memory, the same results."""


class EvalConfig(Section):
    """pass@1 on the held-out tasks."""

    every: Positive = 10
    """Steps between evaluations; the first and the last step are always evaluated."""
    samples: Positive = 4
    """Rollouts per held-out task."""


class TeacherConfig(Section):
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
    usd_per_million_cache_read: Weight | None = None
    """Price of a million prompt tokens from the endpoint's cache; by default that of any other."""
    usd_per_million_cache_write: Weight | None = None
    """Price of a million prompt tokens put into it; by default that of any other."""
    mark_cache: bool = False
    """Mark how far a prompt may be cached, as Anthropic's models need; other endpoints may refuse the marks."""
    temperature: Weight | Literal["endpoint"] = 0.0
    """Of sampling; `endpoint` leaves it to the endpoint, as models that refuse the field need."""
    max_tokens: Positive = 4096
    """Of one answer."""
    max_concurrency: Positive = 8
    """Requests in flight at a time."""
    requests_per_minute: Annotated[float, Field(gt=0.0)] | None = None
    """Most requests a minute, evenly spaced."""
    timeout_s: Annotated[float, Field(gt=0.0)] = 120.0
    """Seconds one request may take. One that reaches this limit may be billed: it counts, and is not sent again by itself."""
    max_retries: Annotated[int, Field(ge=0)] = 4
    """Further attempts after failures that cost nothing: rate limits, server errors, refused connections."""


class TeachersFile(Section):
    """Teachers without a run: `composer replay --teachers FILE`."""

    teachers: Annotated[tuple[TeacherConfig, ...], Field(min_length=1)]
    """Whom to ask."""


class RunConfig(Section):
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
    substrate: SubstrateConfig = SubstrateConfig()
    sandbox: SandboxConfig = SandboxConfig()
    rollout: RolloutConfig = RolloutConfig()
    curriculum: CurriculumConfig = CurriculumConfig()
    reward: RewardConfig = RewardConfig()
    loss: LossConfig = LossConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    eval: EvalConfig = EvalConfig()
    diloco: DilocoConfig = DilocoConfig()
    teachers: tuple[TeacherConfig, ...] = ()
    """Whom the replay channel asks."""
    arms: Annotated[dict[Name, Annotated[_Override, BeforeValidator(flat)]], Field(min_length=1)] = {"main": {}}  # noqa: RUF012 - copied
    """Variants trained one after the other from the same start: a name and the dotted keys in which it differs. What the arms
    share (`name`, `out`, `threads`, `model`, `tasks`, `substrate`, `sandbox`, `diloco`, `rollout.env_workers`) cannot differ."""

    @model_validator(mode="after")
    def _sections_agree(self) -> Self:
        overlong, budget = self.reward.overlong_tokens, self.rollout.trajectory_tokens
        if overlong > budget:
            refuse(
                f"reward.overlong_tokens = {overlong} is more than rollout.trajectory_tokens = {budget}",
                "lower reward.overlong_tokens, to an eighth of the budget or so",
            )
        if self.rollout.engine != "transformers" and self.loss.rlvr.importance == "none":
            refuse(
                f"rollout.engine = {self.rollout.engine} and loss.rlvr.importance = none: the server's log-probs are not the "
                "trainer's, and the ratio of the two would be clipped as if the policy had moved",
                "set loss.rlvr.importance = tis or icepop",
            )
        curriculum, siblings = self.curriculum, self.rollout.group_size
        if (most := curriculum.unreachable(siblings)) is not None:
            below = math.floor(1000 * most) / 1000
            refuse(
                f"curriculum.promote_at = {curriculum.promote_at} is never reached: with curriculum.decay = {curriculum.decay} "
                f"and rollout.group_size = {siblings}, a task that always passes counts with a pass rate of at most {most:.4f}",
                f"set curriculum.promote_at below {below}, or raise curriculum.decay or rollout.group_size",
            )
        if self.diloco.enabled and self.steps % self.diloco.window:
            refuse(
                f"steps = {self.steps} ends in the middle of a round: diloco holds one every {self.diloco.window} steps",
                f"set steps to a multiple of {self.diloco.window}",
            )
        if self.diloco.enabled and self.diloco.shard_tasks and self.rollout.groups % self.diloco.replicas:
            refuse(
                f"rollout.groups = {self.rollout.groups} cannot be shared out among {self.diloco.replicas} replicas",
                f"set rollout.groups to a multiple of {self.diloco.replicas}, or diloco.shard_tasks = false",
            )
        if self.diloco.enabled and self.substrate.type != "local":
            refuse(
                f"diloco.enabled = true and substrate.type = {self.substrate.type}: a replica is one process with whole weights",
                "set substrate.type = local",
            )
        hint, sampled_at = self.loss.hint, self.rollout.temperature
        if hint.weight > 0 and hint.form in ("sampled_token", "entropy_gated") and hint.temperature != sampled_at:
            refuse(
                f"loss.hint.temperature = {hint.temperature} is not rollout.temperature = {sampled_at}: {hint.form} is estimated "
                "on sampled tokens, and biased for another distribution than the one they are drawn from",
                f"set loss.hint.temperature = {sampled_at}, or choose a loss.hint.form over the vocabulary (jsd, top_k_jsd)",
            )
        return self

    @model_validator(mode="after")
    def _turns_are_scored_by_a_model(self) -> Self:
        readers = {"reward.prm.weight": self.reward.prm.weight, "loss.replay.gate.doubtful": self.loss.replay.gate.doubtful}
        for field, value in readers.items():
            if value > 0 and self.reward.prm.path is None:
                refuse(
                    f"{field} = {value} and reward.prm.path is missing: nothing scores the turns",
                    "set reward.prm.path to the folder `model` that `composer prm train` wrote",
                )
        return self
