"""Evaluate the policies of a run on its held-out tasks: pass@k with intervals, in the folder `eval` of the run."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from composer_replication.config import TEACHER, LoraConfig, ModelConfig, RunConfig, to_toml
from composer_replication.loss.forward.adapters import ADAPTER_FILE, base_model_of, rank_of
from composer_replication.loss.forward.model_checkpoint import latest_checkpoint
from composer_replication.loss.forward.models import load_to_sample, window_of
from composer_replication.observe import RunDir, Terminal
from composer_replication.observe.alarms import run_alarms
from composer_replication.observe.files import exclusive, replace_file, storage_errors
from composer_replication.observe.metrics import interval_95, mean_and_se, pass_at_k, pass_rates, usd
from composer_replication.observe.report import write_report
from composer_replication.observe.summary import SummaryRow
from composer_replication.teachers import Question
from composer_replication.tokens import ChatRenderer
from composer_replication.trainer.collector import RolloutCollector
from composer_replication.trainer.engines.open_engine import ServedPolicy, open_engine
from composer_replication.trainer.engines.own_server import SERVING, served_dtype
from composer_replication.trainer.engines.teacher_engine import open_teacher, teacher_as_policy
from composer_replication.trainer.journal import RolloutMeter, flat, refuse_unscored
from composer_replication.trainer.open_run import decisive
from composer_replication.trainer.planning.prompts import check_prompts, prompt_lengths
from composer_replication.trainer.preflight import digest_of, fingerprint
from composer_replication.trainer.run_context import RunContext
from composer_replication.trainer.sampling.kept_rollouts import folder_of, kept_rollouts
from composer_replication.trainer.stages.order import BEFORE_RL
from composer_replication.types import Group, Unscored
from composer_replication.types.errors import ConfigError

STAGE = "eval"
START = "start"
_DECIDES = (
    *("seed", "sandbox.", "env.", "reward.function", "tasks.instruction", "tasks.python", "eval.samples"),
    *("model.precision", "model.attention", "rollout.engine", "rollout.temperature"),
    *("rollout.turn_tokens", "rollout.trajectory_tokens", "rollout.context_tokens", "rollout.max_turns"),
)
"""Fields of the run file that decide rollouts, besides weights and tasks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PassAtK:
    """Probability that one of `k` rollouts of a task passes, as a mean over tasks."""

    k: int
    tasks: int
    """Tasks with at least `k` scored rollouts."""
    mean: float
    low: float
    """Lower end of the 95 % interval (`observe.metrics.interval_95`)."""
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyScore:
    """How one policy did on the held-out tasks."""

    policy: str
    path: str
    """The folder or Hugging Face id of its weights, or `teacher:` and a name."""
    tasks: int
    """Tasks with at least one scored rollout."""
    rollouts: int
    unscored: int
    """Rollouts that could not be graded."""
    alarms: int
    """Rollouts with an alarm."""
    sampled_tokens: int
    pass_at_1_se: float
    """Standard error over tasks."""
    pass_at: tuple[PassAtK, ...]
    """For k = 1, 2, 4 and so on, up to `eval.samples`."""
    pass_rates: Mapping[str, float]
    """By task id."""

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON data; what cannot be estimated is None."""
        return {name: _plain(value) for name, value in asdict(self).items()}


def _plain(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value


def policies_of(config: RunConfig) -> dict[str, str]:
    """Return the policies that a run has, by name: its start, those of its stages before RL, and each arm's newest checkpoint.

    Raises:
        ConfigError: an arm has the name of one of the others.
    """
    reserved = {START, *(stage.name for stage in BEFORE_RL)} & set(config.arms)
    if reserved:
        name = min(reserved)
        raise ConfigError(f"the arm {name} is called as the run's own {name}", fix=f"name the policies: --policy {name}=FOLDER")
    arms = {arm: latest_checkpoint(config.out / config.name / "ckpt" / arm) for arm in config.arms}
    found = {**{stage.name: stage.checkpoint_of(config) for stage in BEFORE_RL}, **arms}
    return {START: config.model.path, **{name: str(folder) for name, folder in found.items() if folder is not None}}


@contextmanager
def open_evaluation(config: RunConfig) -> Iterator[RunDir]:
    """Open the run directory of a run's evaluations for this process alone. Raises ConfigError when another is at work in it."""
    path = config.out / config.name / STAGE
    with storage_errors(path):
        path.mkdir(parents=True, exist_ok=True)
    with exclusive(path):
        replace_file(path / "metrics.jsonl", b"")  # of the evaluation before; its rollouts are kept
        shutil.rmtree(path / "trajectories", ignore_errors=True)
        run_dir = RunDir.create(path)
        run_dir.write_config(to_toml(config))
        yield run_dir


async def evaluate_policies(
    config: RunConfig, run_dir: RunDir, terminal: Terminal, policies: Mapping[str, str]
) -> list[PolicyScore]:
    """Evaluate policies one after the other. What was rolled out before, by the same weights on the same tasks, is read.

    Raises:
        ConfigError: the run has no held-out tasks.
        ComposerError: as `RunContext.open` and `open_engine`.
    """
    context = RunContext.open(config, run_dir, terminal)
    if not context.held_out:
        raise ConfigError("the run has no held-out tasks to evaluate on", fix="set tasks.held_out, or tasks.held_out_share")
    if config.threads:
        torch.set_num_threads(config.threads)
    scores = []
    for name, path in policies.items():
        groups = await _rolled_out(context, config, name, path)
        refuse_unscored(groups, f"eval of {name}")
        scores.append(score(name, path, groups))
        journal = context.journal(config, name, RolloutMeter())
        trajectories, first = flat(groups), scores[-1]
        passed = {"passed": first.pass_at[0].mean, "se": first.pass_at_1_se}
        metrics = journal.write_evaluation(0, trajectories, **passed, unscored=first.unscored)
        run_dir.log_metrics(name, 0, {**metrics, **{f"eval/pass_at_{one.k}": one.mean for one in first.pass_at}})
    rows = [_row(one) for one in scores]
    notes = [alarms.sentence() for alarms in run_alarms(run_dir)]
    write_report(run_dir, title=f"{config.name}: evaluation", summary_rows=rows, notes=notes)
    results = json.dumps([one.to_json() for one in scores], indent=1, allow_nan=False)
    replace_file(run_dir.path / "results.json", results.encode() + b"\n")
    return scores


def score(policy: str, path: str, groups: list[Group]) -> PolicyScore:
    """Return what groups of rollouts amount to."""
    rewards = [(group.task_id, t.reward) for group in groups for t in group.trajectories]
    most = max(len(group.trajectories) for group in groups)
    found = []
    for k in (1 << power for power in range(most.bit_length())):
        values = pass_at_k(rewards, k)
        low, high = interval_95(values)
        found.append(PassAtK(k=k, tasks=len(values), mean=mean_and_se(values)[0], low=low, high=high))
    trajectories, rates = flat(groups), pass_rates(rewards)
    return PolicyScore(
        policy=policy,
        path=path,
        tasks=len(rates),
        rollouts=len(trajectories),
        unscored=sum(isinstance(t.reward, Unscored) for t in trajectories),
        alarms=sum(t.grade is not None and bool(t.grade.alarms) for t in trajectories),
        sampled_tokens=sum(t.num_sampled_tokens() for t in trajectories),
        pass_at_1_se=mean_and_se(list(rates.values()))[1],
        pass_at=tuple(found),
        pass_rates=rates,
    )


def _row(found: PolicyScore) -> SummaryRow:
    return SummaryRow(
        arm=found.policy,
        pass_at_1=found.pass_at[0].mean,
        pass_at_1_se=found.pass_at_1_se,
        rollouts=found.rollouts,
        tokens=found.sampled_tokens,
        cpu_s=None,
    )


async def _rolled_out(context: RunContext, config: RunConfig, name: str, path: str) -> list[Group]:
    """Roll out the held-out tasks with one policy. Raises as `load_to_sample`, `check_prompts` and `open_engine`."""
    torch.manual_seed(config.seed)
    if path.startswith(TEACHER):
        return await _asked(context, config, name, path)
    config = config.model_copy(update={"model": _model_of(config.model, path)})
    model, tokenizer = load_to_sample(path, config.model.precision, device=config.model.device)
    renderer = ChatRenderer(tokenizer)
    prompts = prompt_lengths((*context.train, *context.held_out), config, renderer)
    check_prompts(prompts, config, window_of(model.config))
    made_of = {**decisive(config, *_DECIDES), **fingerprint(model, context.held_out)}
    folder = folder_of(context.run_dir.path / "rollouts", name, made_of)
    dtype = served_dtype(config) if config.rollout.starts_server else None
    served = ServedPolicy(model, tokenizer, lambda: 0, None, dtype)
    engine = open_engine(config, served, name, folder / SERVING)
    try:
        journal = context.journal(config, name, RolloutMeter())
        collector = RolloutCollector(context, config, engine, renderer, journal)
        return await kept_rollouts(context.held_out, config.eval.samples, collector.roll_out_held_out, folder)
    finally:
        engine.end()


async def _asked(context: RunContext, config: RunConfig, name: str, policy: str) -> list[Group]:
    """Roll out the held-out tasks with a teacher, within the run's cap, in the tokens of the run's model.

    Raises as `teacher_as_policy`, `open_teacher` and `TeacherEngine`.
    """
    teacher = teacher_as_policy(policy, config.teachers, config.rollout.temperature, "the run file")
    of_teacher = {"endpoint": teacher.base_url, **teacher.request(Question(question_id="", messages=()))}
    made_of = {**decisive(config, *_DECIDES), "tasks": digest_of(context.held_out), "tokenizer": config.model.path, **of_teacher}
    folder = folder_of(context.run_dir.path / "rollouts", name, made_of)
    ledger, cap = context.run_dir.path / "ledger.sqlite", config.loss.replay.max_total_usd
    async with open_teacher(teacher, model=config.model.path, ledger=ledger, max_total_usd=cap, seed=config.seed) as engine:
        check_prompts(prompt_lengths(context.held_out, config, engine.renderer), config, engine.context_window)
        journal = context.journal(config, name, RolloutMeter())
        collector = RolloutCollector(context, config, engine, engine.renderer, journal)
        roll_out = collector.roll_out_held_out
        groups = await kept_rollouts(context.held_out, config.eval.samples, roll_out, folder, whole=True)
        context.terminal.note(f"{name}: the ledger of these evaluations has ${usd(engine.spent_usd)} in it")
    return groups


def _model_of(like: ModelConfig, path: str) -> ModelConfig:
    """Return the section of a policy at `path`, as a server of it reads: adapters are served on what they stand on."""
    if not (Path(path) / ADAPTER_FILE).is_file():
        return like.model_copy(update={"path": path, "lora": LoraConfig()})
    lora = LoraConfig(rank=rank_of(Path(path)))
    return like.model_copy(update={"path": base_model_of(Path(path)), "lora": lora})
