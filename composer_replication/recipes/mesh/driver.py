"""The driver of one arm: it issues groups to generators, hands finished ones to the trainer, and keeps the ledger.

The driver computes nothing and holds no weights. Whatever it decides is in the ledger before it is done, so it can be killed too.
"""

from __future__ import annotations

import asyncio
import math
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from composer_replication.config import RunConfig
from composer_replication.observe import Phase, pass_at_1
from composer_replication.observe.summary import SummaryRow
from composer_replication.recipes.mesh.errors import ActorDiedError, ActorStalledError, WeightsLostError
from composer_replication.recipes.mesh.generator import Generator
from composer_replication.recipes.mesh.ledger import GroupLedger
from composer_replication.recipes.mesh.protocol import Build, Handle, Mesh, WeightHandle
from composer_replication.recipes.mesh.sandbox_actors import EnvHost, Rewarder, SandboxPool
from composer_replication.recipes.mesh.supervisor import Supervisor
from composer_replication.recipes.mesh.trainer import Stepped, TeacherActor, Trainer
from composer_replication.recipes.mesh.work import Job, Work
from composer_replication.rollout.collect import first_error
from composer_replication.tasks.store import Task
from composer_replication.trainer.checkpoint import KEPT
from composer_replication.trainer.collector import refuse_unscored, rollout_metrics, unscored
from composer_replication.trainer.loop import LONGER, evaluation, wants_replay
from composer_replication.trainer.preflight import limits_of
from composer_replication.trainer.replay import teacher_costs
from composer_replication.trainer.run_context import RunContext, toolset_of
from composer_replication.types import Group, Trajectory

__all__ = ["Driver", "Roles"]

_EVAL_STEP, _TRACE_STEP = -1, -2


@dataclass(frozen=True, slots=True)
class Roles:
    """What actors are built by; all take a port, then what `Driver` gives the classes named here."""

    generator: Build = Generator
    trainer: Build = Trainer
    rewarder: Build = Rewarder
    env: Build = EnvHost
    teachers: Build = TeacherActor


@dataclass(slots=True)
class _SpentSoFar:
    """What an arm has taken so far; beside its groups in the ledger where they are counted there."""

    rollouts: int = 0
    tokens: int = 0
    cpu_s: float = 0.0
    """Before this driver."""


class Driver:
    """Trains one arm on a mesh.

    Raises (`run`):
        ComposerError: as the local recipe, and BackendError for what the mesh has to say.
    """

    def __init__(
        self, mesh: Mesh, workshop: RunContext, config: RunConfig, arm: str, shown: Phase, roles: Roles | None = None
    ) -> None:
        self.workshop, self.config, self.arm, self.shown = workshop, config, arm, shown
        self.roles = roles or Roles()
        self.crew = Supervisor(mesh, self._replaced, config.rollout.stall_s)
        self.folder = workshop.run_dir.path / "mesh" / arm
        self.ledger = GroupLedger(self.folder)
        self.work = Work(config, workshop.train, self.ledger)
        self.version = 0
        self._outside = _SpentSoFar()
        self._generators = [f"generator-{i}" for i in range(config.substrate.generators)]
        self._hosts = [f"env-{i}" for i in range(math.ceil(config.substrate.generators / 2))]
        self._ticket: WeightHandle | None = None
        self._changed = asyncio.Condition()
        self._learning = asyncio.Lock()
        self._recoveries: list[float] = []
        self._costs: Mapping[str, float] = {}

    async def run(self) -> SummaryRow:
        """Hire, train to the last step, and say what it took."""
        try:
            await self.crew.hire(self._wanted())
            async with asyncio.TaskGroup() as group:
                helpers = [group.create_task(self.crew.look_after())]
                await self._begin()
                helpers += [group.create_task(self._keep_busy(name)) for name in self._generators]
                await self._prepare()
                while self.version < self.config.steps:
                    await self._step(self.version + 1)
                    self.shown.advance()
                row = await self._summary()
                for helper in helpers:
                    helper.cancel()
        except BaseExceptionGroup as errors:
            raise first_error(errors) from None
        return row

    @property
    def rollouts(self) -> int:
        """Trajectories of evaluations, traces and finished groups; a group that a driver before this one got counts once."""
        return self._outside.rollouts + self.ledger.rollouts

    @property
    def tokens(self) -> int:
        """Sampled tokens of the same."""
        return self._outside.tokens + self.ledger.tokens

    # --- beginning --------------------------------------------------------------------------------------------------------

    def _wanted(self) -> dict[str, tuple[Build, Sequence[Any]]]:
        run = self.workshop.run_dir.path
        boxes = _boxes(self.workshop, self.config)
        actors: dict[str, tuple[Build, Sequence[Any]]] = {
            "trainer": (self.roles.trainer, (self.config, self.arm, run)),
            "rewarder": (self.roles.rewarder, (boxes, run / "verdicts.jsonl")),
        }
        if wants_replay(self.config):
            actors["teachers"] = (self.roles.teachers, (self.config, self.arm, run))
        actors |= dict.fromkeys(self._hosts, (self.roles.env, (boxes,)))
        return actors | dict.fromkeys(self._generators, (self.roles.generator, (self.config, self.arm)))

    async def _begin(self) -> None:
        """Go back to the arm's last checkpoint or, when there is none, to nothing."""
        for what, why in (await self._trainer(0, "fallbacks")).items():
            self.workshop.terminal.note(f"{self.arm}: {LONGER[what]}: {why}")
        state, self.version = await self._trainer(0, "resumed"), await self._trainer(0, "at")
        self._resumed = state is not None
        if state is None:
            self.workshop.run_dir.truncate_after(self.arm, -1)
            shutil.rmtree(self.folder, ignore_errors=True)
            self.ledger = self.work.ledger = GroupLedger(self.folder)
        else:
            self.workshop.run_dir.truncate_after(self.arm, self.version)
            self._outside = _SpentSoFar(state["rollouts"], state["tokens"], state["cpu_s"])
            self._say(f"resumed at step {self.version} of {self.config.steps}; {len(self.ledger.waiting)} groups wait")
        self.shown.advance(self.version)
        self.work.resume(self.version)
        self._ticket = await self._trainer(self.version, "publish")

    async def _prepare(self) -> None:
        """Where the arm starts from, and its pairs; generators practise for the first steps meanwhile."""
        if not self._resumed:
            self.workshop.run_dir.log_metrics(self.arm, 0, await self._evaluate() | await self._spent())
            if wants_replay(self.config):
                await self._collect_pairs()
            await self._save()
        if wants_replay(self.config):
            self._costs = teacher_costs(self.workshop)

    async def _collect_pairs(self) -> None:
        traces: list[Group] = []
        if self.config.teachers:
            tasks = [t.spec.task_id for t in self.workshop.train]
            traces = await self._sample(tasks, self.config.loss.replay.traces_per_task, _TRACE_STEP)
            self.workshop.run_dir.write_traces(self.arm, _flat(traces))
        while True:
            used = {name: await self.crew.get(name) for name in ("teachers", "trainer")}
            try:
                for note in await used["teachers"].call("collect", traces, used["trainer"]):
                    self.workshop.terminal.note(note)
                return
            except ActorDiedError as dead:
                await self.crew.successor(dead, used)

    # --- generators -------------------------------------------------------------------------------------------------------

    async def _keep_busy(self, name: str) -> None:
        """Give a generator one order after the other, until cancelled; what it cannot finish goes to whoever is free."""
        while True:
            job, ticket = await self._next_job()
            used = {n: await self.crew.get(n) for n in (name, "rewarder", *self._hosts)}
            hosts = [used[n] for n in self._hosts]
            order = job.order
            try:
                groups = await used[name].call("roll_out", order, ticket, hosts, used["rewarder"])
            except ActorDiedError as dead:
                dead.actor = dead.actor or name  # it says so of itself
                await self._again(job)
                await self.crew.successor(dead, used)
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
            self._outside.rollouts += len(_flat(groups))
            self._outside.tokens += sum(t.num_sampled_tokens() for t in _flat(groups))
            job.result.set_result(groups)
        async with self._changed:
            for number, group in zip(job.numbers, groups, strict=False):
                self.ledger.finish(number, group)
            self._changed.notify_all()

    async def _forget(self, order: str, hosts: Sequence[Handle]) -> None:
        """End the episodes that a broken box, or a death, has left open."""
        for host in hosts:
            try:
                await self.crew.call(host, "forget", order)
            except ActorDiedError:
                continue  # and its episodes with it

    async def _sample(self, task_ids: Sequence[str], siblings: int, step: int) -> list[Group]:
        """Groups outside training, in the tasks' order, by the present policy; before all practice."""
        async with self._changed:
            jobs = self.work.outside(task_ids, siblings, step)
            self._changed.notify_all()
        groups = [g for job in jobs if job.result is not None for g in await job.result]
        refuse_unscored(groups, f"{self.arm}: {'eval' if step == _EVAL_STEP else 'record traces'}")
        return groups

    async def _evaluate(self) -> dict[str, float]:
        """As `trainer.actor.Actor.evaluate`."""
        if not self.workshop.held_out:
            return {}
        tasks = [t.spec.task_id for t in self.workshop.held_out]
        groups = await self._sample(tasks, self.config.eval.samples, _EVAL_STEP)
        self.workshop.run_dir.write_evaluation(self.arm, self.version, _flat(groups))
        passed, se = pass_at_1(groups)
        return {"eval/pass_at_1": passed, "eval/pass_at_1_se": se, "eval/unscored": float(len(unscored(groups)))}

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
        self.crew.progress()
        times = {"time/rollout_s": waited - began, "time/update_s": time.monotonic() - waited}
        metrics = {**rollout_metrics(groups), **stepped.metrics, **self._of_mesh(step, groups), **times}
        if step % self.config.eval.every == 0 or step == self.config.steps:
            metrics |= await self._evaluate()
        metrics |= await self._spent()
        run_dir = self.workshop.run_dir
        run_dir.write_trajectories(self.arm, step, _flat(groups))
        run_dir.write_hints(self.arm, step, stepped.hints)
        run_dir.log_metrics(self.arm, step, metrics)
        self.workshop.terminal.step(self.arm, step, self.config.steps, metrics, stepped.off)
        if step % self.config.checkpoint_every == 0 or step == self.config.steps:
            await self._save()

    async def _take(self, step: int) -> tuple[int, ...]:
        """The groups of a step: those of the ledger where it was begun before, else the first that are there and fresh."""
        ledger = self.ledger
        async with self._changed:
            while step not in ledger.trained:
                if old := self.work.pace.too_old(ledger.waiting, step):
                    ledger.drop(old, step)
                    self._say(f"step {step}: {len(old)} groups are too old and were dropped")
                    self._changed.notify_all()
                if chosen := self.work.pace.choose(ledger.waiting, step):
                    ledger.take(step, chosen)
                else:
                    await self._changed.wait()
        return ledger.trained[step]

    async def _trainer(self, version: int, method: str, *args: Any) -> Any:
        """Call the trainer when it has taken `version` steps: one that died has gone back to its checkpoint, and takes the steps
        after it again, on the same groups."""
        while True:
            used = await self.crew.get("trainer")
            try:
                for step in range(await self.crew.call(used, "at") + 1, version + 1):
                    await self.crew.call(used, "step", step, self.ledger.read(self.ledger.trained[step]))
                return await self.crew.call(used, method, *args)
            except ActorDiedError as dead:
                await self.crew.successor(dead, {"trainer": used})

    async def _publish_again(self, lost: WeightHandle) -> None:
        async with self._learning:
            if self._ticket is not lost:
                return
            ticket = await self._trainer(self.version, "publish")
            async with self._changed:
                self._ticket = ticket
                self._changed.notify_all()

    async def _save(self) -> None:
        state = {"rollouts": self._outside.rollouts, "tokens": self._outside.tokens, "cpu_s": await self._cpu_s()}
        async with self._learning:
            await self._trainer(self.version, "save", {**state, "curriculum": None})
        kept = self.version - (KEPT - 1) * self.config.checkpoint_every  # a damaged newest checkpoint must not be the end
        self.ledger.forget_before(kept + 1)

    # --- what is told -----------------------------------------------------------------------------------------------------

    def _of_mesh(self, step: int, groups: Sequence[Group]) -> dict[str, float]:
        ages = [step - 1 - t.policy_version for t in _flat(groups)]
        recovered, self._recoveries = self._recoveries, []
        return {
            "mesh/staleness/mean": sum(ages) / len(ages),
            "mesh/staleness/max": float(max(ages)),
            "mesh/dropped": float(len(self.ledger.dropped)),
            "mesh/reissued": float(sum(times - 1 for times in self.ledger.issued.values())),
            "mesh/replaced": float(self.crew.replaced.total()),
            **({"time/recover_s/max": max(recovered)} if recovered else {}),
        }

    def _replaced(self, dead: ActorDiedError, seconds: float) -> None:
        self._recoveries.append(seconds)
        why = dead.message if isinstance(dead, ActorStalledError) else f"{dead.actor} died"
        self._say(f"{why} and was replaced in {seconds:.1f} s")

    def _say(self, text: str) -> None:
        self.workshop.terminal.note(f"{self.arm}: {text}")

    async def _cpu_s(self) -> float:
        return self._outside.cpu_s + await self.crew.cpu_s()

    async def _spent(self) -> dict[str, float]:
        return {
            "rollout/total": float(self.rollouts),
            "rollout/tokens_total": float(self.tokens),
            "cost/cpu_s": await self._cpu_s(),
            **self._costs,
        }

    async def _summary(self) -> SummaryRow:
        passed, se = evaluation(self.workshop.run_dir, self.arm, first=False)
        return SummaryRow(
            arm=self.arm,
            pass_at_1=passed,
            pass_at_1_se=se,
            rollouts=self.rollouts,
            tokens=self.tokens,
            cpu_s=await self._cpu_s(),
        )


def _boxes(workshop: RunContext, config: RunConfig) -> SandboxPool:
    tasks: dict[str, Task] = {t.spec.task_id: t for t in (*workshop.train, *workshop.held_out)}
    return SandboxPool(
        tasks=tasks,
        pythons=dict(workshop.pythons),
        limits={name: limits_of(config.sandbox, task) for name, task in tasks.items()},
        sandbox=config.sandbox.kind,
        toolset=toolset_of(config),
        workers=config.rollout.env_workers,
    )


def _flat(groups: Sequence[Group]) -> list[Trajectory]:
    return [t for g in groups for t in g.trajectories]
