"""The state that the arms of a run share: their environments, the run directory, and the material of hints."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from transformers import PreTrainedModel

from composer_replication.config import RunConfig
from composer_replication.envs.coding import TestCache
from composer_replication.envs.source import AnyTask, EnvSource
from composer_replication.envs.tools import TOOLSETS
from composer_replication.hints import Ask, HintContext, detectors_named, generators_named
from composer_replication.integrations.sources import load_object, open_source
from composer_replication.observe import RunDir, Terminal
from composer_replication.rollouts.protocol import Env
from composer_replication.sandbox import open_sandbox
from composer_replication.sandbox.grading.grade import GradeCache
from composer_replication.tasks.store import Task
from composer_replication.teachers import Teacher
from composer_replication.tokens import ChatRenderer
from composer_replication.trainer.checkpoints.card import FORGEABLE, write_card
from composer_replication.trainer.coding_tasks import CodingTasks, toolset_of
from composer_replication.trainer.engines.introspection import ask_policy
from composer_replication.trainer.engines.open_engine import PolicyEngine
from composer_replication.trainer.hint_filter import only_useful
from composer_replication.trainer.journal import ArmJournal, RolloutMeter, cpu_clock
from composer_replication.trainer.learning.learner import Learner
from composer_replication.trainer.llm_judge import ask_teacher
from composer_replication.trainer.preflight import check_run, check_source, fingerprint, prove_solutions
from composer_replication.trainer.rewards import RewardFunction
from composer_replication.trainer.sampling.material import TaskMaterial
from composer_replication.trainer.signals import HintSources, SignalMaker, hint_context
from composer_replication.trainer.step_rewards import load_step_scorer, prm_digest
from composer_replication.trainer.teacher_kl import TeacherScorer
from composer_replication.types.channels import CHANNELS
from composer_replication.types.errors import ConfigError


@dataclass(slots=True, kw_only=True)
class RunContext:
    """The tasks, the sandbox and the records of a run, opened once."""

    config: RunConfig
    run_dir: RunDir
    terminal: Terminal
    source: EnvSource
    reward: RewardFunction | None = None
    """Replaces the environment's reward."""
    contexts: Mapping[str, HintContext] = field(init=False)
    """By task id: tools, the project's documentation and the instruction."""
    gold: Mapping[str, Sequence[str]] = field(init=False)
    """By task id: the deleted code, which no hint may give away."""
    _known: dict[str, AnyTask] = field(init=False)
    """By id: the tasks that are trained on, and those joined since."""

    def __post_init__(self) -> None:
        self._known = {task.spec.task_id: task for task in self.source.train}
        self.contexts = TaskMaterial(self._known, self._hint_context)
        self.gold = TaskMaterial(self._known, lambda task: task.deleted_code())

    @classmethod
    def open(
        cls,
        config: RunConfig,
        run_dir: RunDir,
        terminal: Terminal,
        *,
        proven: bool = False,
        env: EnvSource | None = None,
        reward: RewardFunction | None = None,
    ) -> RunContext:
        """Check the run, open its environments, and prove that tests run in the sandbox unless that is `proven` already.

        Args:
            env: what to train on instead of what the run file names.
            reward: called with each finished trajectory, in place of the environment's reward.

        Raises:
            ConfigError: something is wrong with the run.
            TaskError, SandboxError: as `check_run` and `prove_solutions`.
        """
        env = env or open_configured_source(config)
        if reward is None and config.reward.function is not None:
            reward = load_object(config.reward.function, "reward.function")
        if env is None:
            source: EnvSource = _coding_tasks(config, run_dir, terminal, proven=proven)
        else:
            check_source(config, env)
            source = env
        write_card(run_dir, config)
        return cls(config=config, run_dir=run_dir, terminal=terminal, source=source, reward=reward)

    @property
    def train(self) -> Sequence[AnyTask]:
        return self.source.train

    @property
    def held_out(self) -> Sequence[AnyTask]:
        return self.source.held_out

    @property
    def coding(self) -> CodingTasks:
        """The run's own tasks. Raises ConfigError where it trains on another environment."""
        if not isinstance(self.source, CodingTasks):
            raise ConfigError("this needs the tasks of tasks.train, and the run has another environment", fix="remove [env]")
        return self.source

    def make_env(self, task_id: str, hidden_tests: frozenset[str] = frozenset()) -> Env:
        """Create a fresh episode of a task, in which the agent does not see `hidden_tests`."""
        return self.coding.make(task_id, hidden_tests) if hidden_tests else self.source.make(task_id)

    def join(self, first: Task, second: Task) -> Task | str:
        """Make one task of two, or say why there is none. Raises as `CodingTasks.join`."""
        task = self.coding.join(first, second)
        if isinstance(task, Task):
            self._known[task.spec.task_id] = task
        return task

    def meter(self) -> RolloutMeter:
        """Return a meter that counts this process's CPU-seconds and those of its sandbox from now on."""
        sandbox = self.source.sandbox if isinstance(self.source, CodingTasks) else None
        return RolloutMeter(cpu_clock(sandbox))

    def journal(self, config: RunConfig, arm: str, meter: RolloutMeter) -> ArmJournal:
        """Return the record of one arm."""
        card = partial(write_card, self.run_dir, config, arm)
        weighed = CHANNELS if config.loss.replay.learning_rate is None else tuple(name for name in CHANNELS if name != "replay")
        return ArmJournal(self.run_dir, self.terminal, arm, config.steps, meter, card=card, weighed=weighed)

    def signal_maker(
        self,
        config: RunConfig,
        renderer: ChatRenderer,
        context_window: int,
        learner: Learner | None = None,
        engine: PolicyEngine | None = None,
    ) -> SignalMaker:
        """Return the maker of an arm's signals; readings of the policy's weights are asked of `learner`, and hints that the
        policy writes of `engine`.

        Raises:
            ConfigError: the arm names an unknown detector or generator, or one that has nobody to ask; or as `load_step_scorer`
                and `TeacherScorer.of`.
            ModelError: as these two.
        """
        hint, ask = config.loss.hint, dict[str, Ask]()
        if engine is not None:
            ask["policy"] = ask_policy(engine, renderer)
        if config.teachers and "judge" in hint.generators:
            judge = Teacher.of(config.teachers[0])
            ask["judge"] = ask_teacher(judge, self.run_dir.path / "ledger.sqlite", config.loss.replay.max_total_usd)
        return SignalMaker(
            config=config,
            sources=HintSources(
                contexts=self.contexts,
                gold=self.gold,
                detectors=detectors_named(hint.detectors),
                generators=generators_named(hint.generators, ask),
            ),
            renderer=renderer,
            context_window=context_window,
            kl=None if learner is None else learner.kl_to_reference,
            steps=load_step_scorer(config, renderer) if config.scores_turns else None,
            teachers=TeacherScorer.of(config, renderer.tokenizer) if config.reward.teacher_kl_weight > 0 else None,
            useful=None if learner is None else partial(only_useful, learner=learner),
        )

    def fingerprint(self, config: RunConfig, policy: PreTrainedModel) -> dict[str, str]:
        """Return digests of what an arm is made of, by name: `preflight.fingerprint` and `prm_digest`."""
        pairs = config.loss.replay.pairs if config.loss.replay.weight > 0 else None
        return fingerprint(policy, [*self.train, *self.held_out], pairs) | prm_digest(config)

    def _hint_context(self, task: AnyTask) -> HintContext:
        ours = isinstance(self.source, CodingTasks)
        return hint_context(task, TOOLSETS[toolset_of(self.config)] if ours else self.source.make(task.spec.task_id).tools)


def open_configured_source(config: RunConfig) -> EnvSource | None:
    """Return the environment that the run file names in `[env]`; None where it names none. Raises as `open_source`."""
    if config.env.path is not None and str(config.env.path) not in sys.path:
        sys.path.insert(0, str(config.env.path))
    return None if config.env.use is None else open_source(config.env)


def _coding_tasks(config: RunConfig, run_dir: RunDir, terminal: Terminal, *, proven: bool) -> CodingTasks:
    checked = check_run(config)
    sandbox = open_sandbox(config.sandbox.kind)
    terminal.isolation(sandbox.isolation.summary())
    if config.tasks.forgeable:
        terminal.note(FORGEABLE)
    if not proven:
        checked = prove_solutions(config, checked, sandbox)
    return CodingTasks(
        config=config,
        folder=run_dir.path / "tasks",
        sandbox=sandbox,
        grades=GradeCache(run_dir.path / "verdicts.jsonl"),
        test_runs=TestCache(),
        train=checked.train,
        held_out=checked.held_out,
        pythons=dict(checked.pythons),
    )
