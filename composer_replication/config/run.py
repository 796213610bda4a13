"""All fields of a run file. The smallest file names only a model and a folder of tasks."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from composer_replication.config.curriculum import CurriculumConfig
from composer_replication.config.diloco import DilocoConfig
from composer_replication.config.env import EnvConfig
from composer_replication.config.loss import LossConfig, RewardConfig
from composer_replication.config.model import ModelConfig
from composer_replication.config.optimizer import OptimizerConfig
from composer_replication.config.pretrain import PretrainConfig
from composer_replication.config.rollout import RolloutConfig
from composer_replication.config.section import Name, Positive, Section, Weight, flat, refuse
from composer_replication.config.sft import SftConfig
from composer_replication.config.substrate import SubstrateConfig
from composer_replication.types import InstructionStyle
from composer_replication.types.errors import ConfigError

_Override = dict[str, str | int | float | bool]


class TasksConfig(Section):
    """The tasks to train and evaluate on."""

    train: Path | None = None
    """Train on this folder of task folders, made by `composer tasks build`. A run needs it unless `[env]` names another
    environment. Paths are relative to the run file's folder."""
    held_out: Path | None = None
    """Measure pass@1 on the tasks in this folder; the policy never trains on them."""
    held_out_share: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.0
    """Hold out this share of the tasks in `train`, chosen by their ids, instead of naming a folder. Without either, pass@1 is not
    measured. Tasks of one repository contain each other's solutions; only tasks of another repository measure generalisation."""
    forgeable: bool = False
    """Train and evaluate also on tasks whose reward a program that does not implement the feature could get, because no held-out
    program tells it from the real one. They are left out by default; `composer tasks list` shows which they are. Turn it on only
    for a policy whose trajectories you read."""
    instruction: InstructionStyle | None = None
    """Override how much the prompt tells agents about a task. Defaults to the level the tasks were built with."""
    python: Path | None = None
    """Run the tests with this interpreter. Defaults to the one the tasks were built with, as recorded in their folder's
    `build.json`, or to the remote machine's with a remote sandbox."""

    @property
    def folder(self) -> Path:
        """The folder of `train`. Raises ConfigError where the run names none."""
        if self.train is None:
            raise ConfigError("tasks.train is missing", fix="name a folder of tasks, or an environment in [env]")
        return self.train


class SandboxConfig(Section):
    """Where untrusted code runs."""

    kind: Annotated[
        str,
        Field(pattern=r"^(auto|bubblewrap|namespaces|landlock|docker(:.+)?|remote:https?://[^@?#\s]+|unsafe-subprocess)$"),
    ] = "auto"
    """Choose the isolation. `auto` takes the strongest one this machine allows, but never the unsafe one, `docker`,
    `docker:IMAGE` or `remote:URL`, the address of a SWE-ReX server whose key is in the environment variable
    COMPOSER_REMOTE_KEY."""
    memory_mb: Positive = 1024
    """Limit the memory of each sandbox to this many MiB."""
    disk_mb: Positive = 256
    """Let each sandbox write at most this many MiB."""
    processes: Positive = 64
    """Limit each sandbox to this many processes and threads."""
    shell: bool = False
    """Let agents run shell commands and apply multi-file patches, besides reading, editing, testing and submitting."""


class EvalConfig(Section):
    """pass@1 on the held-out tasks."""

    every: Positive = 10
    """Evaluate every this many steps; the first and the last step are always evaluated."""
    samples: Positive = 4
    """Roll out each held-out task this many times."""


class TeacherConfig(Section):
    """An external model asked over HTTP."""

    name: Annotated[str, Field(min_length=1)]
    """Show the teacher under this name in the terminal, ledger and report."""
    model: Annotated[str, Field(min_length=1)]
    """Ask the endpoint for this model, by the endpoint's name for it."""
    base_url: str = "https://openrouter.ai/api/v1"
    """Send requests to this OpenAI-compatible endpoint."""
    api_key_env: str | None = "OPENROUTER_API_KEY"
    """Read the key from this environment variable. Set an empty string for an endpoint without keys."""
    family: str = ""
    """Give all teachers of one family a single vote together. An empty name makes the teacher its own family."""
    usd_per_million_input: Weight | None = None
    """Price a million prompt tokens at this many US dollars. Without prices a spending cap cannot be enforced and the run is
    refused."""
    usd_per_million_output: Weight | None = None
    """Price a million answer tokens at this many US dollars."""
    usd_per_million_cache_read: Weight | None = None
    """Price a million prompt tokens read from the endpoint's cache. Defaults to `usd_per_million_input`."""
    usd_per_million_cache_write: Weight | None = None
    """Price a million prompt tokens written to the endpoint's cache. Defaults to `usd_per_million_input`."""
    mark_cache: bool = False
    """Mark how much of a prompt may be cached, as Anthropic's models need; other endpoints may reject the marks."""
    temperature: Annotated[
        Weight | Literal["endpoint"], BeforeValidator(lambda given: "endpoint" if given is None else given)
    ] = 0.0
    """Sample answers at this temperature. `endpoint` omits the field, for models that reject it."""
    max_tokens: Positive = 4096
    """Limit each answer to this many tokens, those of its reasoning included where the endpoint bills them."""
    limit_field: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    """Send the limit under this name. Choose `max_completion_tokens` for models that reason and refuse the other."""
    extra_body: dict[str, Any] = {}  # noqa: RUF012 - copied
    """Add these fields to every request, such as reasoning_effort = "low" or reasoning = {effort = "low"}. They are part of
    the question: when you change them, answers in the ledger are bought again. Fields that the framework sets are refused; do not
    add fields that make a request dearer than the price table says, because the cap rests on it."""
    max_concurrency: Positive = 8
    """Keep at most this many requests in flight."""
    requests_per_minute: Annotated[float, Field(gt=0.0)] | None = None
    """Send at most this many requests per minute, evenly spaced. No limit by default."""
    timeout_s: Annotated[float, Field(gt=0.0)] = 120.0
    """Give up on a request after this many seconds. Such a request may have been billed, so it counts towards the cap and is not
    retried automatically."""
    scores_tokens: bool = False
    """Ask this teacher how likely it finds the tokens that the policy sampled (with `reward.teacher_kl_weight`), and what else
    might stand in the places of a chosen answer's (with `loss.replay.soft_targets`). It has to be a vLLM server of your own, with
    a model that has the policy's tokenizer; what it reads costs nothing in the ledger."""
    max_retries: Annotated[int, Field(ge=0)] = 4
    """Retry this many times after failures that cost nothing: rate limits, server errors, refused connections."""


class TeachersFile(Section):
    """A file of teachers without a run: `composer replay --teachers FILE`."""

    teachers: Annotated[tuple[TeacherConfig, ...], Field(min_length=1)]
    """List the teachers to ask."""


class RunConfig(Section):
    """One run: `composer train RUN.toml`."""

    name: Name = "run"
    """Name the run. Use letters, digits, `_`, `-` and `.`."""
    out: Path = Path("runs")
    """Write the run directory to `out/name`."""
    seed: Annotated[int, Field(ge=0, lt=1 << 63)] = 0
    """Seed every random draw with this."""
    steps: Positive = 100
    """Train each arm for this many steps: batches of rollouts that it learns from."""
    checkpoint_every: Positive = 10
    """Save a checkpoint every this many steps; the newest two are kept."""
    strict: bool = False
    """End with an error (exit code 8), after the report is written, when an arm learnt nothing, when nothing held out tells what
    it learnt, when its pass@1 on held-out tasks fell beyond the interval, or when a channel with a weight above 0 never trained.
    Turn it on for runs that nobody watches."""
    threads: Annotated[int, Field(ge=0)] = 0
    """Give torch this many CPU threads; 0 keeps torch's default. With 1 a resumed run is bit-identical to an uninterrupted
    one."""
    usd_per_hour: Weight | None = None
    """Price an hour of all machines that the run holds, together, at this many US dollars. A dry run multiplies it by the hours
    that it plans. Without a price it plans hours alone."""
    model: ModelConfig
    pretrain: PretrainConfig = PretrainConfig()
    sft: SftConfig = SftConfig()
    tasks: TasksConfig = TasksConfig()
    env: EnvConfig = EnvConfig()
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
    """List the teachers that the replay channel asks."""
    arms: Annotated[dict[Name, Annotated[_Override, BeforeValidator(flat)]], Field(min_length=1)] = {"main": {}}  # noqa: RUF012 - copied
    """Train these variants one after the other from the same start: a name and the dotted keys in which each differs. The keys
    all arms share (`name`, `out`, `threads`, `model`, `pretrain`, `sft`, `tasks`, `env`, `substrate`, `sandbox`, `diloco`,
    `rollout.env_workers`) cannot differ."""

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
        if self.model.precision == "bfloat16" and self.optimizer.type == "muon":
            refuse(
                "optimizer.type = muon and model.precision = bfloat16: most of Muon's steps are smaller than bfloat16 can hold",
                "set model.precision = mixed, or optimizer.type = adamw",
            )
        replay = self.loss.replay
        if replay.weight > 0 and replay.compares and replay.anchor == 0:
            refuse(
                f"loss.replay.anchor = 0 with variant = {replay.variant}: chosen answers would fall with the rejected ones",
                "set loss.replay.anchor = 1, or variant = sft",
            )
        if self.substrate.shard:
            self._shares_can_be_trained()
        if self.env.use is not None:
            self._env_stands_alone()
        curriculum, siblings = self.curriculum, self.rollout.group_size
        if (most := curriculum.unreachable(siblings)) is not None:
            below = math.floor(1000 * most) / 1000
            refuse(
                f"curriculum.promote_at = {curriculum.promote_at} is never reached: with curriculum.decay = {curriculum.decay} "
                f"and rollout.group_size = {siblings}, a task that always passes counts with a pass rate of at most {most:.4f}",
                f"set curriculum.promote_at below {below}, or raise curriculum.decay or rollout.group_size",
            )
        if self.diloco.enabled:
            self._replicas_agree()
        hint, sampled_at = self.loss.hint, self.rollout.temperature
        if hint.weight > 0 and hint.form in ("sampled_token", "entropy_gated") and hint.temperature != sampled_at:
            refuse(
                f"loss.hint.temperature = {hint.temperature} is not rollout.temperature = {sampled_at}: {hint.form} is estimated "
                "on sampled tokens, and biased for another distribution than the one they are drawn from",
                f"set loss.hint.temperature = {sampled_at}, or choose a loss.hint.form over the vocabulary (jsd, top_k_jsd)",
            )
        return self

    def _replicas_agree(self) -> None:
        """Refuse what rounds of replicas cannot do."""
        if self.steps % self.diloco.window:
            refuse(
                f"steps = {self.steps} ends in the middle of a round: diloco holds one every {self.diloco.window} steps",
                f"set steps to a multiple of {self.diloco.window}",
            )
        if self.optimizer.updates > 1:
            refuse(
                f"optimizer.mini_batches x optimizer.epochs = {self.optimizer.updates} and diloco.enabled = true: a round counts "
                "optimizer steps, and replicas need as many of them as of steps",
                "leave mini_batches and epochs out",
            )
        if self.model.precision == "bfloat16" and self.model.lora.rank == 0:
            refuse(
                "model.precision = bfloat16 and diloco.enabled = true: a round's steps are smaller than bfloat16 can hold",
                "set model.precision = mixed, or model.lora.rank above 0",
            )
        if self.optimizer.offload:
            refuse(
                "optimizer.offload = true and diloco.enabled = true: a round changes the weights, and not their copies in memory",
                "leave offload out",
            )
        if self.diloco.shard_tasks and self.rollout.groups % self.diloco.replicas:
            refuse(
                f"rollout.groups = {self.rollout.groups} cannot be shared out among {self.diloco.replicas} replicas",
                f"set rollout.groups to a multiple of {self.diloco.replicas}, or diloco.shard_tasks = false",
            )
        if self.substrate.type != "local":
            refuse(
                f"diloco.enabled = true and substrate.type = {self.substrate.type}: a replica is one process with whole weights",
                "set substrate.type = local",
            )

    def _shares_can_be_trained(self) -> None:
        """Refuse what needs whole weights."""
        if self.rollout.engine == "transformers":
            refuse(
                "substrate.shard = true and rollout.engine = transformers: every token would gather all weights from all devices",
                "set rollout.engine = vllm or sglang, or substrate.shard = false",
            )
        if self.optimizer.offload:
            refuse("optimizer.offload = true and substrate.shard = true: the copies in memory are whole", "leave one of them out")
        if self.optimizer.moments == "8bit":
            refuse(
                "optimizer.moments = 8bit and substrate.shard = true: sharded moments of 8 bits cannot be saved", "leave one out"
            )
        if self.model.lora.rank and self.loss.hint.self_teacher == "ema":
            refuse(
                "loss.hint.self_teacher = ema with model.lora.rank and substrate.shard = true: the averages are whole adapters",
                "set loss.hint.self_teacher = frozen",
            )

    @model_validator(mode="after")
    def _who_samples_has_a_server(self) -> Self:
        mesh = self.substrate.type in ("ray", "monarch")
        samplers, servers = self.substrate.generators if mesh else 1, len(self.rollout.server_urls)
        if self.rollout.starts_server and not mesh:
            return self
        if self.rollout.engine != "transformers" and samplers != servers:
            who = f"substrate.generators = {samplers}" if mesh else f"substrate.type = {self.substrate.type}"
            refuse(f"rollout.server_url: addresses given: {servers}; addresses that {who} needs: {samplers}", "give that many")
        return self

    def trajectories_per_pass(self, rollouts: int) -> int:
        """Return how many trajectories of the greatest length fit into `optimizer.micro_batch_tokens`, of the numbers that divide
        `rollouts`: for substrates that cut a step into equal passes. It is at least 1."""
        fit = max(1, self.optimizer.micro_batch_tokens // self.rollout.context_tokens)
        return max(size for size in range(1, min(fit, rollouts) + 1) if rollouts % size == 0)

    @property
    def scores_turns(self) -> bool:
        """True when training asks the process reward model of `reward.prm.path` about every turn."""
        return self.reward.prm.weight > 0 or (self.curriculum.enabled and self.curriculum.prm_credit > 0)

    @model_validator(mode="after")
    def _tokens_are_scored_by_a_teacher(self) -> Self:
        scoring, replay = any(teacher.scores_tokens for teacher in self.teachers), self.loss.replay
        if replay.weight > 0 and replay.soft_targets > 0 and not scoring:
            refuse(
                f"loss.replay.soft_targets = {replay.soft_targets} and no teacher scores tokens",
                "set scores_tokens = true for a [[teachers]] table of a vLLM server",
            )
        if self.reward.teacher_kl_weight > 0 and not scoring:
            refuse(
                f"reward.teacher_kl_weight = {self.reward.teacher_kl_weight} and no teacher scores tokens",
                "set scores_tokens = true for a [[teachers]] table of a vLLM server",
            )
        if self.reward.teacher_kl_weight > 0 and self.rollout.refills > 0:
            refuse(
                "rollout.refills leaves out groups without differing rewards, and reward.teacher_kl_weight teaches on them",
                "set one of them to 0",
            )
        if self.reward.teacher_kl_weight > 0 and self.rollout.temperature != 1.0:
            refuse(
                f"reward.teacher_kl_weight compares at temperature 1, and rollout.temperature is {self.rollout.temperature}",
                "set rollout.temperature = 1",
            )
        return self

    @model_validator(mode="after")
    def _turns_are_scored_by_a_model(self) -> Self:
        readers = {
            "reward.prm.weight": self.reward.prm.weight,
            "curriculum.prm_credit": self.curriculum.prm_credit,
            "loss.replay.gate.doubtful": self.loss.replay.gate.doubtful,
        }
        for field, value in readers.items():
            if value > 0 and self.reward.prm.path is None:
                refuse(
                    f"{field} = {value} and reward.prm.path is missing: nothing scores the turns",
                    "set reward.prm.path to the folder `model` that `composer prm train` wrote",
                )
        return self

    def _env_stands_alone(self) -> None:
        """Refuse what only our own tasks have."""
        ours = "remove it, or train on tasks.train without [env]"
        if self.tasks.train is not None:
            refuse("tasks.train and env.use both say what to train on", "remove one of them")
        if self.curriculum.enabled:
            refuse("curriculum.enabled = true needs the tests and difficulties of our tasks, which [env] has not", ours)
        if self.teachers and self.loss.replay.weight > 0 and self.loss.replay.verify:
            refuse(
                "loss.replay.verify = true carries out chosen actions in our sandbox, which [env] has not",
                "set loss.replay.verify = false",
            )
