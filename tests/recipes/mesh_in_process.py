"""A mesh whose actors are objects in this process, which can be killed; actors that compute nothing; and a run for them."""

from __future__ import annotations

import asyncio
import inspect
import json
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console

from composer_replication.config import RunConfig
from composer_replication.envs.coding import TestCache
from composer_replication.observe import RunDir, Terminal
from composer_replication.recipes.mesh.driver import Driver, Roles
from composer_replication.recipes.mesh.errors import ActorDiedError, WeightsLostError
from composer_replication.recipes.mesh.member import Member
from composer_replication.recipes.mesh.protocol import WeightHandle
from composer_replication.recipes.mesh.trainer import Stepped
from composer_replication.sandbox.grading.grade import GradeCache
from composer_replication.tasks.store import Task
from composer_replication.trainer.coding_tasks import CodingTasks
from composer_replication.trainer.run_context import RunContext
from composer_replication.types import Group, StopReason, TaskSpec, Trajectory, Turn


class LocalPort:
    """Publications live in the process that made them, and die with it."""

    def __init__(self, mesh):
        self.mesh, self.published = mesh, {}

    async def publish(self, name, version, weights):
        ticket = WeightHandle(version, name, object())
        self.published = dict(list(self.published.items())[-1:]) | {id(ticket.where): weights}
        return ticket

    async def fetch(self, ticket):
        for handle in self.mesh.handles:
            if handle.alive and id(ticket.where) in handle.port.published:
                return handle.port.published[id(ticket.where)]
        raise WeightsLostError("gone")


class LocalHandle:
    def __init__(self, mesh, name, build, args, pid):
        self.name, self.build, self.args, self.pid = name, build, args, pid
        self.alive, self.stopped = True, False
        self.port = LocalPort(mesh)
        self.mesh = mesh
        self.death = asyncio.get_running_loop().create_future()
        self.object = build(self.port, *args)

    def stop(self):
        """It is there, and answers nothing any more."""
        self.stopped = True

    def die(self):
        if self.alive:
            self.alive = False
            self.death.set_result(None)

    async def call(self, method, *args):
        self.mesh.calls.append((self.name, method))
        self.mesh.on_call(self, method)
        if not self.alive:
            raise ActorDiedError(f"{self.name} died", actor=self.name)
        work = asyncio.ensure_future(self._run(method, args))
        try:
            done, _ = await asyncio.wait({work, self.death}, return_when=asyncio.FIRST_COMPLETED)
            if work in done and self.alive:
                return work.result()
            raise ActorDiedError(f"{self.name} died", actor=self.name)
        finally:
            if work.done() and not work.cancelled():
                work.exception()  # nobody else asks
            work.cancel()

    async def call_all(self, method, *args):
        return [await self.call(method, *args)]

    async def _run(self, method, args):
        await asyncio.sleep(0)
        if not self.stopped:
            result = getattr(self.object, method)(*args)
            result = await result if inspect.isawaitable(result) else result
        if self.stopped:
            await asyncio.Event().wait()
        return result


class LocalMesh:
    """`on_call(handle, method)` is called before each call, and may kill or stop."""

    def __init__(self, on_call=lambda handle, method: None):
        self.handles, self.calls, self.on_call = [], [], on_call

    async def spawn(self, name, build, *args):
        handle = LocalHandle(self, name, build, args, len(self.handles))
        self.handles.append(handle)
        return handle

    async def replace(self, handle):
        handle.die()
        return await self.spawn(handle.name, handle.build, *handle.args)

    async def close(self):
        for handle in self.handles:
            handle.die()


MOST_S = 1e6


class SoonerLoop(asyncio.SelectorEventLoop):
    """An event loop of one thread, whose clock goes at once to the next moment that something waits for."""

    def __init__(self):
        super().__init__()
        self._now, look = 0.0, self._selector.select

        def select(timeout=None):
            assert timeout is not None, "everything waits, and nothing for a time"
            self._now += timeout
            assert self._now < MOST_S, "nothing gets on"
            return look(0)

        self._selector.select = select

    def time(self):
        return self._now


def trajectory(name, task, version):
    return Trajectory(
        trajectory_id=name,
        task_id=task,
        policy_version=version,
        messages=(),
        tools=(),
        prompt_ids=(1,),
        turns=(Turn(action_ids=(1,), logprobs=(-1.0,), text=""),),
        stop_reason=StopReason.SUBMITTED,
        temperature=1.0,
        reward=float(len(name) % 2),
    )


@dataclass
class Pauses:
    """How many turns of the event loop an order of a generator takes, in order; then 1."""

    left: list[int] = field(default_factory=list)

    async def wait(self):
        for _ in range(self.left.pop(0) if self.left else 1):
            await asyncio.sleep(0)


class IdleGenerator(Member):
    pauses = Pauses()

    def __init__(self, port, config, arm, run, number):
        self.port = port

    async def roll_out(self, order, ticket, hosts, rewarder):
        await self.port.fetch(ticket)
        await self.pauses.wait()
        for host in hosts:
            await host.call("reset", "episode", "task")
        await rewarder.call("grade", "task", {})
        return [
            Group(
                group_id=f"{order.step}/{task}",
                task_id=task,
                trajectories=tuple(trajectory(f"{order.step}/{task}/{i}", task, ticket.version) for i in range(order.siblings)),
            )
            for task in order.task_ids
        ]


class IdleBox(Member):
    def __init__(self, port, boxes, verdicts=None):
        pass

    async def reset(self, episode, task_id):
        return (), ()

    async def grade(self, task_id, submission):
        return None

    async def forget(self, order):
        return None


class BookkeepingTrainer(Member):
    """Its weights are the list of (step, group ids) that it was trained on; a checkpoint is a file of them."""

    def __init__(self, port, config, arm, run):
        self.port = port
        self.file = Path(run) / "ckpt" / arm / "learnt.json"
        saved = json.loads(self.file.read_text()) if self.file.is_file() else None
        self.state = saved and saved["state"]
        self.learnt = saved["learnt"] if saved else []

    async def at(self):
        return len(self.learnt)

    async def resumed(self):
        return self.state

    async def fallbacks(self):
        return {}

    def step(self, step, groups):
        assert step == len(self.learnt) + 1
        self.learnt.append([[g.group_id, g.trajectories[0].policy_version] for g in groups])
        return Stepped({"rlvr/loss": 1.0}, {}, ())

    async def publish(self):
        return await self.port.publish("trainer", len(self.learnt), {})

    def save(self, state):
        self.file.parent.mkdir(parents=True, exist_ok=True)
        self.file.write_text(json.dumps({"state": state, "learnt": self.learnt}))


IDLE = Roles(generator=IdleGenerator, trainer=BookkeepingTrainer, rewarder=IdleBox, env=IdleBox)


def a_run(folder: Path, *, steps=5, groups=4, generators=2, max_staleness=1, checkpoint_every=2) -> RunConfig:
    return RunConfig.model_validate(
        {
            "name": "run",
            "out": folder,
            "steps": steps,
            "checkpoint_every": checkpoint_every,
            "model": {"path": "policy"},
            "tasks": {"train": folder},
            "rollout": {"groups": groups, "group_size": 2},
            "loss": {"hint": {"weight": 0.0}, "replay": {"weight": 0.0}},
            "eval": {"every": 100},
            "substrate": {"type": "ray", "generators": generators, "max_staleness": max_staleness},
        }
    )


def context(config: RunConfig) -> RunContext:
    run = config.out / config.name
    run_dir = RunDir(run) if RunDir.has_begun(run) else RunDir.create(run)
    tasks = [Task(_spec(f"task-{i}"), config.out) for i in range(7)]
    return RunContext(
        config=config,
        run_dir=run_dir,
        terminal=Terminal(Console(quiet=True), on_event=run_dir.log_event),
        source=CodingTasks(
            config=config,
            folder=config.out,
            sandbox=None,
            grades=GradeCache(),
            test_runs=TestCache(),
            train=tasks,
            held_out=[],
            pythons={},
        ),
    )


def _spec(name):
    return TaskSpec(
        task_id=name,
        source="",
        source_digest="",
        instruction="",
        deleted=(),
        fail_to_pass=("t",),
        pass_to_pass=(),
        editable=(),
    )


async def drive(mesh: LocalMesh, config: RunConfig, roles: Roles = IDLE) -> Driver:
    opened = context(config)
    with opened.terminal.phase("train", config.steps) as shown:
        driver = Driver(mesh, opened, config, "main", shown, roles)
        try:
            await driver.run()
        finally:
            await mesh.close()
    return driver


def learnt(config: RunConfig) -> list[list[tuple[str, int]]]:
    """What the last checkpoint was trained on: (group id, policy version) by step."""
    saved = json.loads((config.out / config.name / "ckpt" / "main" / "learnt.json").read_text())
    return [[(name, version) for name, version in step] for step in saved["learnt"]]
