"""The driver of a mesh: the bound on staleness, and exactly once, whoever dies and whenever."""

from __future__ import annotations

import asyncio
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mesh_in_process import IDLE, BookkeepingTrainer, IdleGenerator, LocalMesh, Pauses, SoonerLoop, a_run, drive, learnt

from composer_replication.recipes.limits import refuse
from composer_replication.recipes.mesh.driver import Roles
from composer_replication.recipes.mesh.errors import ActorDiedError, ActorStalledError
from composer_replication.recipes.mesh.ledger import GroupLedger
from composer_replication.recipes.mesh.supervisor import MOST_DEATHS, Supervisor
from composer_replication.types.errors import BackendError, ConfigError

ROLES = ("generator-0", "generator-1", "env-0", "rewarder", "trainer")


def run_to_the_end(mesh, config, roles=IDLE):
    return asyncio.run(asyncio.wait_for(drive(mesh, config, roles), 60))


def check_books(config):
    """Every group was trained on in one step or dropped, and what the trainer learnt is what the ledger says."""
    steps = learnt(config)
    assert len(steps) == config.steps
    assert all(len(step) == config.rollout.groups for step in steps)
    names = [name for step in steps for name, _ in step]
    assert len(set(names)) == len(names)
    for number, step in enumerate(steps, start=1):
        for _, version in step:
            assert 0 <= number - 1 - version <= config.substrate.max_staleness
    ledger = GroupLedger(config.out / config.name / "mesh" / "main")
    assert [len(ledger.trained[s + 1]) for s in range(config.steps)] == [config.rollout.groups] * config.steps
    over = [n for numbers in ledger.trained.values() for n in numbers] + list(ledger.dropped)
    assert sorted(over) == sorted(ledger.issued), "each group once: trained on, or dropped"
    assert not ledger.waiting
    assert not ledger.unfinished
    return ledger


def test_a_synchronous_run_trains_on_what_the_present_policy_sampled(tmp_path):
    config = a_run(tmp_path, max_staleness=0)
    driver = run_to_the_end(LocalMesh(), config)
    ledger = check_books(config)
    assert [{version for _, version in step} for step in learnt(config)] == [{0}, {1}, {2}, {3}, {4}]
    assert not ledger.dropped
    assert driver.meter.rollouts == 5 * 4 * 2


def test_an_asynchronous_run_samples_ahead(tmp_path):
    config = a_run(tmp_path, max_staleness=2)
    run_to_the_end(LocalMesh(), config)
    check_books(config)
    assert max(n - 1 - v for n, step in enumerate(learnt(config), start=1) for _, v in step) == 2


def test_cpu_time_is_that_of_all_processes_of_an_actor():
    class Ranks:
        async def call_all(self, method):
            return {"cpu_s": [1.0, 2.5]}[method]

    crew = Supervisor(LocalMesh(), lambda dead, seconds: None, 60.0, handles={"trainer": Ranks()})
    assert asyncio.run(crew.cpu_s()) == 3.5


def test_a_straggler_is_dropped_and_counted(tmp_path, monkeypatch):
    monkeypatch.setattr(IdleGenerator, "pauses", Pauses([1500]))  # the first order comes back when the others are long trained on
    config = a_run(tmp_path, steps=12, max_staleness=2, groups=2)
    driver = run_to_the_end(LocalMesh(), config)
    ledger = check_books(config)
    assert ledger.dropped == {0: 0}
    lines = driver.context.run_dir.read_metrics()
    assert lines[-1].values["mesh/dropped"] == 1


@pytest.mark.parametrize("role", ROLES)
def test_whoever_is_killed_is_replaced(tmp_path, role):
    def kill(handle, method):
        busy = {"generator-0": "roll_out", "generator-1": "roll_out", "env-0": "reset", "rewarder": "grade", "trainer": "step"}
        nth = 4 if role == "trainer" else 3  # when it has a step behind it that no checkpoint has
        if handle.name == role and method == busy[role] and mesh.calls.count((role, method)) == nth:
            handle.die()

    mesh = LocalMesh(kill)
    config = a_run(tmp_path)
    driver = run_to_the_end(mesh, config)
    ledger = check_books(config)
    assert driver.supervisor.replaced == {role: 1}
    again = sum(times - 1 for times in ledger.issued.values())
    assert (again > 0) == (role != "trainer")
    assert any("time/recover_s/max" in line.values for line in driver.context.run_dir.read_metrics())


def test_an_idle_actor_is_replaced_too(tmp_path):
    mesh = LocalMesh(lambda handle, method: env().die() if (handle.name, method) == ("trainer", "save") else None)

    def env():
        return next(h for h in mesh.handles if h.name == "env-0")

    driver = run_to_the_end(mesh, a_run(tmp_path))
    assert driver.supervisor.replaced["env-0"] == 1


def run_without_waiting(mesh, config, roles=IDLE):
    with asyncio.Runner(loop_factory=SoonerLoop) as runner:
        return runner.run(drive(mesh, config, roles))


@pytest.mark.parametrize(
    ("role", "method"),
    [
        ("generator-0", "roll_out"),
        ("generator-1", "watch"),  # while it is idle
        ("env-0", "reset"),
        ("env-0", "forget"),
        ("rewarder", "grade"),
        ("trainer", "at"),
        ("trainer", "step"),
        ("trainer", "publish"),
        ("trainer", "save"),
        ("trainer", "cpu_s"),
    ],
)
def test_whoever_is_stopped_is_replaced(tmp_path, role, method):
    """A process that SIGSTOP has stopped is there, and never answers."""

    def stop(handle, called):
        if (handle.name, called) == (role, method) and mesh.calls.count((role, method)) == nth:
            handle.stop()

    nth = {"watch": 1, "at": 5, "forget": 3}.get(method, 2)
    mesh = LocalMesh(stop)
    config = a_run(tmp_path)
    driver = run_without_waiting(mesh, config)
    check_books(config)
    assert driver.supervisor.replaced == {role: 1}
    (said,) = [e["message"] for e in driver.context.run_dir.read_events() if "was replaced in" in e["message"]]
    assert f"main: {role} did not " in said
    assert "in 1800 s and was replaced in" in said
    stopped = [handle for handle in mesh.handles if handle.stopped]
    assert [handle.alive for handle in stopped] == [False]


class StuckOnce:
    """A method that does not return the second time; the process answers other calls."""

    calls = 0

    @classmethod
    async def here(cls):
        cls.calls += 1
        if cls.calls == 2:
            await asyncio.Event().wait()


class StuckTrainer(BookkeepingTrainer, StuckOnce):
    async def step(self, step, groups):
        await self.here()
        return super().step(step, groups)


class StuckSender(BookkeepingTrainer, StuckOnce):
    async def publish(self):
        await self.here()
        return await super().publish()


@pytest.mark.parametrize(("trainer", "method"), [(StuckTrainer, "step"), (StuckSender, "publish")])
def test_a_call_that_does_not_return_is_as_good_as_a_death(tmp_path, trainer, method, monkeypatch):
    monkeypatch.setattr(trainer, "calls", 0)
    config = a_run(tmp_path)
    driver = run_without_waiting(LocalMesh(), config, Roles(IDLE.generator, trainer, IDLE.rewarder, IDLE.env))
    check_books(config)
    assert driver.supervisor.replaced == {"trainer": 1}
    assert any(f"did not finish `{method}`" in e["message"] for e in driver.context.run_dir.read_events())


@pytest.mark.parametrize(("says", "replaced"), [("", "generator-"), ("env-0", "env-0"), ("rewarder", "rewarder")])
def test_a_generator_says_who_does_not_get_on(tmp_path, says, replaced):
    said = []

    class Waiting(IdleGenerator):
        async def roll_out(self, order, ticket, hosts, rewarder):
            if not said:
                said.append(says)
                raise ActorStalledError("it did not get on", actor=says)
            return await super().roll_out(order, ticket, hosts, rewarder)

    config = a_run(tmp_path)
    driver = run_without_waiting(LocalMesh(), config, Roles(Waiting, IDLE.trainer, IDLE.rewarder, IDLE.env))
    check_books(config)
    (name,) = driver.supervisor.replaced
    assert name.startswith(replaced)


def test_an_actor_that_is_never_built_ends_the_run(tmp_path):
    class Hanging(LocalMesh):
        async def spawn(self, name, build, *args):
            if name == "rewarder":
                await asyncio.Event().wait()
            return await super().spawn(name, build, *args)

    with pytest.raises(BackendError, match="rewarder was not built in 1800 s") as raised:
        run_without_waiting(Hanging(), a_run(tmp_path))
    assert "rollout.stall_s" in raised.value.fix
    assert raised.value.exit_code == 11


def test_a_successor_that_is_never_built_counts_as_a_death(tmp_path):
    class Hanging(LocalMesh):
        async def replace(self, handle):
            handle.die()
            await asyncio.Event().wait()

    mesh = Hanging(lambda handle, method: handle.die() if method == "grade" else None)
    with pytest.raises(BackendError, match=f"rewarder died {MOST_DEATHS + 1} times.*was not built again in 1800 s"):
        run_without_waiting(mesh, a_run(tmp_path))


def test_an_actor_that_dies_again_and_again_ends_the_run(tmp_path):
    mesh = LocalMesh(lambda handle, method: handle.die() if method == "grade" else None)
    with pytest.raises(BackendError, match=f"rewarder died {MOST_DEATHS + 1} times"):
        run_to_the_end(mesh, a_run(tmp_path))


class StoppedError(Exception):
    """The driver's process is gone."""


@pytest.mark.slow
@settings(max_examples=25)
@given(seed=st.integers(0, 10_000), staleness=st.integers(0, 3), groups=st.integers(1, 5), every=st.integers(1, 4))
def test_any_deaths_at_any_moment(tmp_path_factory, seed, staleness, groups, every):
    """Actors die at random calls, and the driver too, several times; then it is resumed in peace."""
    config = a_run(
        tmp_path_factory.mktemp("run"), max_staleness=staleness, groups=groups, checkpoint_every=every, generators=1 + seed % 3
    )
    rng = random.Random(seed)

    def kill(handle, method):
        if method in ("watch", "cpu_s"):
            return
        fate = rng.random()
        if fate < 0.02:
            raise StoppedError
        if fate < 0.05:
            handle.die()

    IdleGenerator.pauses = Pauses([rng.randint(0, 30) for _ in range(40)])
    for _ in range(4):
        try:
            run_to_the_end(LocalMesh(kill), config)
        except (StoppedError, BackendError, ActorDiedError):
            continue
    driver = run_to_the_end(LocalMesh(), config)
    ledger = check_books(config)
    assert driver.meter.rollouts == driver.meter.tokens == 2 * len(ledger.issued), "each sampled group counts once"
    assert driver.journal.spent()["rollout/total"] == driver.meter.rollouts


def test_a_resumed_driver_repeats_steps_with_the_same_groups(tmp_path):
    def stop(handle, method):
        if method == "step" and mesh.calls.count(("trainer", "step")) == 5:
            raise StoppedError

    mesh = LocalMesh(stop)
    config = a_run(tmp_path, checkpoint_every=2)
    with pytest.raises(StoppedError):
        run_to_the_end(mesh, config)
    before = GroupLedger(tmp_path / "run" / "mesh" / "main").trained
    assert len(before) == 5
    run_to_the_end(LocalMesh(), config)
    ledger = check_books(config)
    assert {step: ledger.trained[step] for step in before} == before


def test_a_bug_of_an_actor_ends_the_run(tmp_path):
    class Broken(IdleGenerator):
        async def roll_out(self, order, ticket, hosts, rewarder):
            raise BackendError("generator failed, which is a bug")

    with pytest.raises(BackendError, match="which is a bug"):
        run_to_the_end(LocalMesh(), a_run(tmp_path), Roles(Broken, IDLE.trainer, IDLE.rewarder, IDLE.env))


@pytest.mark.parametrize(("field", "section"), [("curriculum.enabled", {"curriculum": {"enabled": True}})])
def test_what_a_mesh_cannot_do_is_refused(tmp_path, field, section):
    config = a_run(tmp_path)
    refuse(config, config.substrate.type)
    with pytest.raises(ConfigError, match=field) as refused:
        refuse(type(config).model_validate(config.model_dump() | section), config.substrate.type)
    assert "local" in refused.value.fix
