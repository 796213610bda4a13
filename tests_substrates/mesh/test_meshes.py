"""What every mesh must do."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal

import pytest
import torch
from living import gone_all
from mesh_members import Thing

from composer_replication.recipes.mesh.errors import ActorDiedError, WeightsLostError
from composer_replication.types.errors import BackendError, ConfigError


async def calls_errors_and_handles_travel(mesh):
    one, other = await asyncio.gather(mesh.spawn("one", Thing, "hello"), mesh.spawn("other", Thing, "bye"))
    assert (one.name, other.name) == ("one", "other")
    assert len({os.getpid(), one.pid, other.pid}) == 3
    assert await one.call("say") == "hello"
    assert await one.call("ask", other) == "bye"
    assert max(await asyncio.gather(*(one.call("work") for _ in range(20)))) == 1
    with pytest.raises(ConfigError, match="nothing to say") as refused:
        await one.call("refuse")
    assert refused.value.fix == "say something"
    with pytest.raises(BackendError, match="ZeroDivisionError"):
        await one.call("stumble")
    with pytest.raises(ConfigError, match="no such word"):
        await mesh.spawn("third", Thing, "refuse")
    assert await one.call("say") == "hello"


async def weights_travel_as_they_were(mesh):
    one, other = await asyncio.gather(mesh.spawn("one", Thing, ""), mesh.spawn("other", Thing, ""))
    tickets = [await one.call("publish", version) for version in (1, 2)]
    for version, ticket in enumerate(tickets, start=1):
        found = await other.call("fetch", ticket)
        assert ticket.version == version
        assert found["half"].dtype is torch.bfloat16
        assert torch.equal(found["half"], torch.full((3, 2), float(version), dtype=torch.bfloat16))
        assert found["count"].shape == ()
        assert int(found["count"]) == version


async def a_death_is_told_and_another_takes_the_place(mesh):
    one, other = await asyncio.gather(mesh.spawn("one", Thing, "hello"), mesh.spawn("other", Thing, "bye"))
    ticket = await one.call("publish", 1)
    waiting = [asyncio.create_task(one.call("watch")), asyncio.create_task(other.call("wait_for", one))]
    await other.call("ask", one)
    os.kill(one.pid, signal.SIGKILL)
    for task in waiting:
        with pytest.raises(ActorDiedError) as died:
            await task
        assert died.value.actor == "one"
    with pytest.raises(ActorDiedError):
        await one.call("say")
    with pytest.raises(ActorDiedError) as died:
        await other.call("ask", one)
    assert died.value.actor == "one"
    with contextlib.suppress(WeightsLostError):  # a store may outlive who filled it
        assert int((await other.call("fetch", ticket))["count"]) == 1
    successor = await mesh.replace(one)
    assert (successor.name, successor.pid != one.pid) == ("one", True)
    assert await other.call("ask", successor) == "hello"
    assert await other.call("say") == "bye"


async def who_is_alive_is_ended_before_it_is_replaced(mesh):
    one = await mesh.spawn("one", Thing, "hello")
    waiting = asyncio.create_task(one.call("sleep"))
    await one.call("say")
    successor = await mesh.replace(one)
    with pytest.raises(ActorDiedError):
        await waiting
    assert await successor.call("say") == "hello"


async def who_is_stopped_is_ended_before_it_is_replaced(mesh):
    one = await mesh.spawn("one", Thing, "hello")
    waiting = asyncio.create_task(one.call("sleep"))
    await one.call("say")
    os.kill(one.pid, signal.SIGSTOP)
    successor = await mesh.replace(one)
    assert gone_all([one.pid])
    with pytest.raises(ActorDiedError):
        await waiting
    assert await successor.call("say") == "hello"


def test_what_every_mesh_does(on_mesh):
    """On one mesh, because starting one takes long."""

    async def work(mesh):
        await calls_errors_and_handles_travel(mesh)
        await weights_travel_as_they_were(mesh)
        await a_death_is_told_and_another_takes_the_place(mesh)
        await who_is_alive_is_ended_before_it_is_replaced(mesh)
        await who_is_stopped_is_ended_before_it_is_replaced(mesh)

    on_mesh(work)
