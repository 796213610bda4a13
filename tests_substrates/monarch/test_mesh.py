"""Actors on Monarch: called, failing, killed, replaced, ended."""

from __future__ import annotations

import asyncio
import os
import pickle
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from monarch_members import Meeting, Member, refuse

from composer_replication.recipes.mesh.errors import ActorDiedError
from composer_replication.recipes.monarch.mesh import MonarchMesh
from composer_replication.types.errors import BackendError, ConfigError, TeacherError


def test_a_method_runs_in_the_process_of_its_actor(on_mesh):
    async def work(mesh):
        first = await mesh.spawn("generator-0", Member)
        second = await mesh.spawn("generator-1", Member, "bonjour")
        assert [first.name, second.name] == ["generator-0", "generator-1"]
        assert len({os.getpid(), first.pid, second.pid}) == 3
        assert [await first.call("pid"), await second.call("pid")] == [first.pid, second.pid]
        assert [await first.call("greet", "you"), await second.call("greet", "you")] == ["hello you", "bonjour you"]

    on_mesh(work)


def test_async_methods_overlap_and_the_others_take_turns(on_mesh):
    async def work(mesh):
        meeting = await mesh.spawn("meeting", Meeting)
        await asyncio.gather(meeting.call("meet"), meeting.call("meet"))  # each waits for the other
        assert set(await asyncio.gather(*(meeting.call("alone") for _ in range(8)))) == {1}
        member = await mesh.spawn("member", Member)
        working = asyncio.ensure_future(member.call("work", 1.0))
        while not await member.call("working"):  # answered while the other method runs
            await asyncio.sleep(0.01)
        assert not working.done()
        assert (await working).startswith("member")

    on_mesh(work)


def test_errors_come_back_to_the_caller(on_mesh):
    async def work(mesh):
        actor = await mesh.spawn("actor", Member)
        with pytest.raises(TeacherError, match="asleep") as known:
            await actor.call("known_error")
        assert known.value.fix == "wake it"
        with pytest.raises(BackendError, match=r"(?s)Traceback.*other_error.*KeyError: 'nothing'"):
            await actor.call("other_error")
        with pytest.raises(BackendError, match="pickled"):
            await actor.call("unsendable")
        with pytest.raises(BackendError, match="no_such_method"):
            await actor.call("no_such_method")
        assert await actor.call("greet", "again") == "hello again"

    on_mesh(work)


def test_what_cannot_be_built_is_said_and_leaves_nothing(on_mesh):
    async def work(mesh):
        with pytest.raises(BackendError, match="OSError: nothing can be built here"):
            await mesh.spawn("actor", refuse)
        await mesh.spawn("actor", Member)

    on_mesh(work)


def test_an_actor_calls_another_and_is_told_of_its_death(on_mesh):
    async def work(mesh):
        caller, other = await mesh.spawn("caller", Member), await mesh.spawn("other", Member)
        assert await caller.call("ask", other, "pid") == other.pid
        assert await caller.call("ask_from_a_thread", other, "pid") == other.pid
        assert not await caller.call("is_driver")
        asked = asyncio.ensure_future(caller.call("ask", other, "work", 3600.0))
        while not await other.call("working"):
            await asyncio.sleep(0.01)
        os.kill(other.pid, signal.SIGKILL)
        with pytest.raises(ActorDiedError) as died:
            await asked
        assert died.value.actor == "other"
        assert pickle.loads(pickle.dumps(died.value)).actor == "other"
        assert await caller.call("greet", "you") == "hello you"

    on_mesh(work)


def test_a_killed_actor_is_replaced(on_mesh):
    async def work(mesh):
        actor, other = await mesh.spawn("actor", Member, "salut"), await mesh.spawn("other", Member)
        for resting in (True, False):
            call = asyncio.ensure_future(actor.call("greet", "x") if resting else actor.call("work", 3600.0))
            if resting:
                await call
            else:
                while not await actor.call("working"):
                    await asyncio.sleep(0.01)
            os.kill(actor.pid, signal.SIGKILL)
            killed = time.monotonic()
            with pytest.raises(ActorDiedError):
                await (actor.call("pid") if resting else call)
            noticed = time.monotonic()
            assert await other.call("pid") == other.pid
            new = await mesh.replace(actor)
            took = f"noticed after {noticed - killed:.2f} s, replaced in {time.monotonic() - noticed:.2f} s"
            print(f"killed {'at rest' if resting else 'at work'}: {took}")
            assert new.name == actor.name
            assert new.pid != actor.pid
            assert await new.call("greet", "you") == "salut you"
            with pytest.raises(ActorDiedError):
                await actor.call("pid")
            with pytest.raises(BackendError, match="replaced it already"):
                await mesh.replace(actor)
            actor = new
        old = actor
        actor = await mesh.replace(actor)  # which is alive
        assert not Path(f"/proc/{old.pid}").exists()
        assert await actor.call("pid") == actor.pid

    on_mesh(work)


def test_an_actor_that_ends_itself_has_died(on_mesh):
    async def work(mesh):
        actor = await mesh.spawn("actor", Member)
        with pytest.raises(ActorDiedError):
            await actor.call("die")

    on_mesh(work)


def test_closing_ends_actors_that_are_busy_or_dead_and_comes_twice(on_mesh):
    async def work(mesh):
        busy, dead = await mesh.spawn("busy", Member), await mesh.spawn("dead", Member)
        call = asyncio.ensure_future(busy.call("work", 3600.0))
        while not await busy.call("working"):
            await asyncio.sleep(0.01)
        os.kill(dead.pid, signal.SIGKILL)
        await mesh.close()
        with pytest.raises((ActorDiedError, BackendError)):
            await call
        with pytest.raises(BackendError, match="closed"):
            await mesh.spawn("late", Member)

    on_mesh(work)


def test_a_failure_of_the_driver_leaves_no_process(on_mesh):
    async def work(mesh):
        await mesh.spawn("actor", Member)
        raise OSError("the driver has a trouble")

    with pytest.raises(OSError, match="trouble"):
        on_mesh(work)


DRIVER = """
import asyncio, sys
from monarch_members import Member
from composer_replication.recipes.monarch.mesh import MonarchMesh
async def work():
    mesh = MonarchMesh()
    for number in range(2):
        print((await mesh.spawn(f"actor-{number}", Member)).pid, flush=True)
    sys.stdin.read()
asyncio.run(work())
"""


def test_actors_end_with_a_driver_that_is_killed():
    driver = subprocess.Popen(
        [sys.executable, "-c", DRIVER], cwd=Path(__file__).parent, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with driver:
        try:
            actors = [int(driver.stdout.readline()) for _ in range(2)]
        finally:
            driver.kill()
    while any(Path(f"/proc/{pid}").exists() for pid in actors):
        time.sleep(0.05)


def test_a_group_has_at_least_one_rank():
    with pytest.raises(ConfigError, match="trainer"):
        MonarchMesh(ranks={"trainer": 0})
