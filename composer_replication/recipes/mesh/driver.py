"""The driver of one arm: it issues groups to generators, hands finished groups to the trainer, and keeps the ledger.

The driver computes nothing and holds no weights. Every decision is in the ledger before it takes effect, so the driver can be
killed as well.
"""

from __future__ import annotations

import asyncio
import math
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from composer_replication.config import RunConfig
from composer_replication.loss.forward.model_checkpoint import KEPT
from composer_replication.observe import Phase
from composer_replication.observe.summary import SummaryRow
from composer_replication.recipes.mesh.errors import ActorDiedError, ActorStalledError, WeightsLostError
from composer_replication.recipes.mesh.generator import Generator
from composer_replication.recipes.mesh.ledger import GroupLedger
from composer_replication.recipes.mesh.protocol import Build, Handle, Mesh, WeightHandle
from composer_replication.recipes.mesh.sandbox_actors import EnvHost, Rewarder, SandboxPool
from composer_replication.recipes.mesh.supervisor import Supervisor
from composer_replication.recipes.mesh.trainer import Stepped, TeacherActor, Trainer
from composer_replication.recipes.mesh.work import Job, Work
from composer_replication.rollouts.collect import first_error
from composer_replication.tasks.store import Task
from composer_replication.trainer.arm import SLOW_PATHS
from composer_replication.trainer.ask_teachers import teacher_totals
from composer_replication.trainer.coding_tasks import toolset_of
from composer_replication.trainer.collector import EVAL_STEP, TRACE_STEP
from composer_replication.trainer.journal import RolloutMeter, flat, refuse_unscored, rollout_metrics
from composer_replication.trainer.pairs.replay import wants_replay
from composer_replication.trainer.preflight import limits_of
from composer_replication.trainer.run_context import RunContext
from composer_replication.types import Group
from composer_replication.types.errors import StorageError


@dataclass(frozen=True, slots=True)
class Roles:
    """The functions that build the actors. Each takes a port, then what `Driver` passes to the class named here."""

    generator: Build = Generator
    trainer: Build = Trainer
    rewarder: Build = Rewarder
    env: Build = EnvHost
    teachers: Build = TeacherActor


class Driver:
    """The process that trains one arm on a mesh.

    Raises (`run`):
        ComposerError: as the local recipe, and BackendError for what the mesh has to say.
    """

    def __init__(
        self, mesh: Mesh, context: RunContext, config: RunConfig, arm: str, shown: Phase, roles: Roles | None = None
    ) -> None:
        self.context, self.config, self.arm, self.shown = context, config, arm, shown
        self.roles = roles or Roles()
        self.supervisor = Supervisor(mesh, self._replaced, config.rollout.stall_s)
        self.folder = context.run_dir.path / "mesh" / arm
        self.ledger = GroupLedger(self.folder)
        self.work = Work(config, context.coding.train, self.ledger)
        self.version = 0
        self._actors_cpu_s = 0.0
        """CPU-seconds of this driver's actors, as last asked."""
        self.meter = RolloutMeter(lambda: self._actors_cpu_s)
        """Counts evaluations, traces, and the groups of the ledger, those of earlier drivers included."""
        self.journal = context.journal(config, arm, self.meter)
        self._generators = [f"generator-{i}" for i in range(config.substrate.generators)]
        self._hosts = [f"env-{i}" for i in range(math.ceil(config.substrate.generators / 2))]  # one serves two generators
        self._ticket: WeightHandle | None = None
        self._changed = asyncio.Condition()
        self._learning = asyncio.Lock()
        self._recoveries: list[float] = []

    async def run(self) -> SummaryRow:
        """Start the actors, train to the last step, and return the arm's result."""
        try:
            await self.supervisor.hire(self._wanted())
            async with asyncio.TaskGroup() as group:
                helpers = [group.create_task(self.supervisor.look_after())]
                await self._begin()
                helpers += [group.create_task(self._keep_busy(name)) for name in self._generators]
                await self._prepare()
                while self.version < self.config.steps:
                    await self._step(self.version + 1)
                    self.shown.advance()
                await self._ask_cpu_s()
                for helper in helpers:
                    helper.cancel()
        except BaseExceptionGroup as errors:
            raise first_error(errors) from None
        return self.journal.summary()

    # --- beginning --------------------------------------------------------------------------------------------------------

    def _wanted(self) -> dict[str, tuple[Build, Sequence[Any]]]:
        run = self.context.run_dir.path
        pool = _sandbox_pool(self.context, self.config)
        actors: dict[str, tuple[Build, Sequence[Any]]] = {
            "trainer": (self.roles.trainer, (self.config, self.arm, run)),
            "rewarder": (self.roles.rewarder, (pool, run / "verdicts.jsonl")),
        }
        if wants_replay(self.config):
            actors["teachers"] = (self.roles.teachers, (self.config, self.arm, run))
        actors |= dict.fromkeys(self._hosts, (self.roles.env, (pool,)))
        for number, name in enumerate(self._generators):
            actors[name] = (self.roles.generator, (self.config, self.arm, run, number))
        return actors

    async def _begin(self) -> None:
        """Go back to the arm's last checkpoint or, when there is none, to nothing."""
        for what, why in (await self._trainer(0, "fallbacks")).items():
            self.journal.note(f"{SLOW_PATHS[what]}: {why}")
        state, self.version = await self._trainer(0, "resumed"), await self._trainer(0, "at")
        self._resumed = state is not None
        if state is None:
            self.journal.rewind(-1)
            _remove(self.folder)
            self.ledger = self.work.ledger = GroupLedger(self.folder)
        else:
            self.journal.resumed(self.version)
            self.meter.load_state_dict(state)
            self.meter.rollouts += self.ledger.rollouts
            self.meter.tokens += self.ledger.tokens
            if waiting := len(self.ledger.waiting):
                self.journal.note(f"{waiting} groups wait")
        self.shown.advance(self.version)
        self.work.resume(self.version)
        self._ticket = await self._trainer(self.version, "publish")

    async def _prepare(self) -> None:
        """Evaluate the starting policy and collect its pairs; generators sample for the first steps meanwhile."""
        if not self._resumed:
            start = await self._evaluate()
            await self._ask_cpu_s()
            self.journal.log(0, start)
            if wants_replay(self.config):
                await self._collect_pairs()
            await self._save()
        if wants_replay(self.config):
            self.journal.teacher_totals = teacher_totals(self.context, self.arm)

    async def _collect_pairs(self) -> None:
        traces: list[Group] = []
        if self.config.teachers:
            tasks = [t.spec.task_id for t in self.context.train]
            traces = await self._sample(tasks, self.config.loss.replay.traces_per_task, TRACE_STEP)
            self.context.run_dir.write_traces(self.arm, flat(traces))
        while True:
            used = {name: await self.supervisor.get(name) for name in ("teachers", "trainer")}
            try:
                for note in await used["teachers"].call("collect", traces, used["trainer"]):
                    self.context.terminal.note(note)
                return
            except ActorDiedError as dead:
                await self.supervisor.successor(dead, used)

    # --- generators -------------------------------------------------------------------------------------------------------

    async def _keep_busy(self, name: str) -> None:
        """Give a generator one order after the other, until cancelled; orders that it cannot finish go to another generator."""
        while True:
            job, ticket = await self._next_job()
            used = {n: await self.supervisor.get(n) for n in (name, "rewarder", *self._hosts)}
            hosts = [used[n] for n in self._hosts]
            order = job.order
            try:
                groups = await used[name].call("roll_out", order, ticket, hosts, used["rewarder"])
            except ActorDiedError as dead:
                dead.actor = dead.actor or name  # a generator reports its own death without a name
                await self._again(job)
                await self.supervisor.successor(dead, used)
            except WeightsLostError:
                await self._again(job)
                await self._publish_again(ticket)
            else:
                await self._done(job, groups)
            await self._forget(order.name, hosts)

    async def _next_job(self) -> tuple[Job, WeightHandle]:
        async with self._changed:
            while True:
                if self._ticket is not None and (job := self.work.pick(self.version)) is not None:
                    return job, self._ticket
                await self._changed.wait()

    async def _again(self, job: Job) -> None:
        async with self._changed:
            self.work.again(job, self.version)
            self._changed.notify_all()

    async def _done(self, job: Job, groups: list[Group]) -> None:
        if job.result is not None:
            self.meter.count(flat(groups))
            job.result.set_result(groups)
            return
        async with self._changed:
            for number, group in zip(job.numbers, groups, strict=True):
                self.ledger.finish(number, group)
                self.meter.count(group.trajectories)
            self._changed.notify_all()

    async def _forget(self, order: str, hosts: Sequence[Handle]) -> None:
        """End the episodes that a broken sandbox, or a death, has left open."""
        for host in hosts:
            try:
                await self.supervisor.call(host, "forget", order)
            except ActorDiedError:
                continue  # and its episodes with it

    async def _sample(self, task_ids: Sequence[str], siblings: int, step: int) -> list[Group]:
        """Sample groups outside training with the present policy, before any training group; return them in the tasks' order."""
        async with self._changed:
            jobs = self.work.outside(task_ids, siblings, step)
            self._changed.notify_all()
        groups = [g for job in jobs if job.result is not None for g in await job.result]
        refuse_unscored(groups, f"{self.arm}: {'eval' if step == EVAL_STEP else 'record traces'}")
        return groups

    async def _evaluate(self) -> dict[str, float]:
        """Evaluate as `RolloutCollector.evaluate` does."""
        if not self.context.held_out:
            return {}
        tasks = [t.spec.task_id for t in self.context.held_out]
        groups = await self._sample(tasks, self.config.eval.samples, EVAL_STEP)
        return self.journal.record_evaluation(self.version, groups)

    # --- the trainer ------------------------------------------------------------------------------------------------------

    async def _step(self, step: int) -> None:
        began = time.monotonic()
        groups = self.ledger.read(await self._take(step))
        refuse_unscored(groups, f"{self.arm}: rollout")
        waited = time.monotonic()
        async with self._learning:
            stepped: Stepped = await self._trainer(step - 1, "step", step, groups)
            ticket: WeightHandle = await self._trainer(step, "publish")
        async with self._changed:
            self.version, self._ticket = step, ticket
            self._changed.notify_all()
        self.supervisor.progress()
        times = {"time/rollout_s": waited - began, "time/update_s": time.monotonic() - waited}
        metrics = {**rollout_metrics(groups), **stepped.metrics, **self._of_mesh(step, groups), **times}
        if step % self.config.eval.every == 0 or step == self.config.steps:
            metrics |= await self._evaluate()
        await self._ask_cpu_s()
        self.journal.record_step(step, flat(groups), stepped.hints, metrics, stepped.off)
        if step % self.config.checkpoint_every == 0 or step == self.config.steps:
            await self._save()

    async def _take(self, step: int) -> tuple[int, ...]:
        """Return the numbers of a step's groups: those in the ledger if the step was begun before, else the first fresh ones."""
        ledger = self.ledger
        async with self._changed:
            while step not in ledger.trained:
                if old := self.work.pace.too_old(ledger.waiting, step):
                    ledger.drop(old, step)
                    self.journal.note(f"step {step}: {len(old)} groups are too old and were dropped")
                    self._changed.notify_all()
                if chosen := self.work.pace.choose(ledger.waiting, step):
                    ledger.take(step, chosen)
                else:
                    await self._changed.wait()
        return ledger.trained[step]

    async def _trainer(self, version: int, method: str, *args: Any) -> Any:
        """Call the trainer at exactly `version` steps. One that died restarts from its checkpoint, and the steps since then are
        repeated on the groups that the ledger names."""
        while True:
            used = await self.supervisor.get("trainer")
            try:
                for step in range(await self.supervisor.call(used, "at") + 1, version + 1):
                    await self.supervisor.call(used, "step", step, self.ledger.read(self.ledger.trained[step]))
                return await self.supervisor.call(used, method, *args)
            except ActorDiedError as dead:
                await self.supervisor.successor(dead, {"trainer": used})

    async def _publish_again(self, lost: WeightHandle) -> None:
        async with self._learning:
            if self._ticket is not lost:
                return
            ticket = await self._trainer(self.version, "publish")
            async with self._changed:
                self._ticket = ticket
                self._changed.notify_all()

    async def _save(self) -> None:
        await self._ask_cpu_s()
        self.journal.card()
        outside = {"rollouts": self.meter.rollouts - self.ledger.rollouts, "tokens": self.meter.tokens - self.ledger.tokens}
        async with self._learning:
            await self._trainer(self.version, "save", {**self.meter.state_dict(), **outside, "curriculum": None})
        kept = self.version - (KEPT - 1) * self.config.checkpoint_every  # a damaged newest checkpoint must not be the end
        self.ledger.forget_before(kept + 1)

    # --- what is told -----------------------------------------------------------------------------------------------------

    def _of_mesh(self, step: int, groups: Sequence[Group]) -> dict[str, float]:
        ages = [step - 1 - t.policy_version for t in flat(groups)]
        recovered, self._recoveries = self._recoveries, []
        return {
            "mesh/staleness/mean": sum(ages) / len(ages),
            "mesh/staleness/max": float(max(ages)),
            "mesh/dropped": float(len(self.ledger.dropped)),
            "mesh/reissued": float(sum(times - 1 for times in self.ledger.issued.values())),
            "mesh/replaced": float(self.supervisor.replaced.total()),
            **({"time/recover_s/max": max(recovered)} if recovered else {}),
        }

    def _replaced(self, dead: ActorDiedError, seconds: float) -> None:
        self._recoveries.append(seconds)
        why = dead.message if isinstance(dead, ActorStalledError) else f"{dead.actor} died"
        self.journal.note(f"{why} and was replaced in {seconds:.1f} s")

    async def _ask_cpu_s(self) -> None:
        self._actors_cpu_s = await self.supervisor.cpu_s()


async def train_on_mesh(mesh: Mesh, context: RunContext, config: RunConfig, arm: str, shown: Phase) -> SummaryRow:
    """Train one arm with actors of `mesh`, and close the mesh.

    Raises:
        BackendError: an actor dies again and again.
        ComposerError: any other error of a part of the recipe.
    """
    try:
        return await Driver(mesh, context, config, arm, shown).run()
    finally:
        await mesh.close()


def _remove(folder: Path) -> None:
    """Remove what an arm that begins again has left: an old ledger would be continued. Raises StorageError."""
    try:
        if folder.exists():
            shutil.rmtree(folder)
    except OSError as error:
        raise StorageError(f"{folder} cannot be removed: {error}", fix="remove it, and start the run again") from error


def _sandbox_pool(context: RunContext, config: RunConfig) -> SandboxPool:
    tasks: dict[str, Task] = {t.spec.task_id: t for t in (*context.coding.train, *context.coding.held_out)}
    return SandboxPool(
        tasks=tasks,
        pythons=dict(context.coding.pythons),
        limits={name: limits_of(config.sandbox, task) for name, task in tasks.items()},
        sandbox=config.sandbox.kind,
        toolset=toolset_of(config),
        workers=config.rollout.env_workers,
    )
