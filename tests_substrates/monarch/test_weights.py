"""Weights on their way from one actor to another."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest
import torch
from monarch_members import Member, Publisher, Reader, publish_everything

from composer_replication.recipes.mesh.errors import WeightsLostError

MB = 1 << 20


def test_weights_arrive_as_they_were_published(on_mesh):
    """Of every kind: odd sizes, no numbers at all, a view that is not contiguous, tied weights."""

    async def work(mesh):
        publisher, reader = await mesh.spawn("publisher", publish_everything), await mesh.spawn("reader", Member)
        ticket = await publisher.call("publish")
        assert (ticket.version, ticket.publisher) == (7, "publisher")
        found, expected = await reader.call("fetch", ticket), publish_everything(None).weights
        assert list(found) == list(expected)
        for name, tensor in expected.items():
            assert (found[name].dtype, found[name].shape, found[name].device.type) == (tensor.dtype, tensor.shape, "cpu")
            assert torch.equal(found[name], tensor)
        place = {entry.name: (entry.start, entry.end) for entry in ticket.where.entries}
        assert place["tied"] == place["embedding"]  # sent once
        print(f"transport: {mesh.transport}")

    on_mesh(work)


def test_the_last_two_publications_can_be_fetched(on_mesh):
    async def work(mesh):
        publisher, reader = await mesh.spawn("publisher", Publisher, 1000), await mesh.spawn("reader", Reader)
        first, second = await publisher.call("publish"), await publisher.call("publish")
        assert [(await reader.call("fetch", ticket)).unique().tolist() for ticket in (first, second)] == [[1.0], [2.0]]
        third = await publisher.call("publish")
        assert [(await reader.call("fetch", ticket)).unique().tolist() for ticket in (second, third)] == [[2.0], [3.0]]
        with pytest.raises(WeightsLostError, match=r"version 1 .* others since"):
            await reader.call("fetch", first)

    on_mesh(work)


def test_weights_that_are_being_overwritten_are_never_taken_for_whole(on_mesh):
    async def work(mesh):
        publisher, reader = await mesh.spawn("publisher", Publisher, 2 * MB), await mesh.spawn("reader", Reader)
        await publisher.call("publish")
        publishing = asyncio.ensure_future(publisher.call("publish_until_stopped"))
        whole, refused, mixed = await reader.call("read_while_written", publisher, 5)
        await publisher.call("stop")
        print(f"{await publishing} publications: {whole} fetches whole, {refused} refused, {mixed} mixed")
        assert mixed == 0

    on_mesh(work)


def test_weights_go_with_their_publisher(on_mesh):
    async def work(mesh):
        publisher, reader = await mesh.spawn("publisher", Publisher, 32 * MB), await mesh.spawn("reader", Reader)
        ticket = await publisher.call("publish")
        fetching = asyncio.ensure_future(reader.call("fetch_time", ticket))
        while not await reader.call("is_fetching"):
            await asyncio.sleep(0.001)
        os.kill(publisher.pid, signal.SIGKILL)
        for fetch in (fetching, reader.call("fetch", ticket)):
            with pytest.raises(WeightsLostError, match="with their publisher"):
                await fetch
        publisher = await mesh.replace(publisher)
        assert (await reader.call("fetch", await publisher.call("publish"))).unique().tolist() == [1.0]

    on_mesh(work)


def test_a_publisher_outlives_those_who_fetch(on_mesh):
    async def work(mesh):
        publisher, reader = await mesh.spawn("publisher", Publisher, 32 * MB), await mesh.spawn("reader", Reader)
        ticket = await publisher.call("publish")
        for _ in range(3):
            fetching = asyncio.ensure_future(reader.call("fetch_time", ticket))
            while not await reader.call("is_fetching"):
                await asyncio.sleep(0.001)
            os.kill(reader.pid, signal.SIGKILL)
            await asyncio.wait([fetching])
            reader = await mesh.replace(reader)
        assert (await reader.call("fetch", ticket)).unique().tolist() == [1.0]
        assert await publisher.call("pid") == publisher.pid

    on_mesh(work)


def test_the_rate_of_64_megabytes(on_mesh):
    async def work(mesh):
        publisher, reader = await mesh.spawn("publisher", Publisher, 16 * MB), await mesh.spawn("reader", Reader)
        times = []
        for _ in range(5):
            ticket = await publisher.call("publish")
            times.append(await reader.call("fetch_time", ticket))
        print(f"{mesh.transport}: 64 MB at {64 / min(times):.0f} MB/s at best, {64 / max(times):.0f} at worst")

    on_mesh(work)
