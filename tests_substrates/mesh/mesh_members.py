"""Objects that the tests put into actors. Their processes import this module too."""

from __future__ import annotations

import asyncio
import os
import threading
import time

import torch

from composer_replication.recipes.mesh.member import Member
from composer_replication.types.errors import ConfigError


class Thing(Member):
    def __init__(self, port, word):
        if word == "refuse":
            raise ConfigError("no such word", fix="say another")
        self.port, self.word, self.busy, self.most = port, word, 0, 0
        self.lock = threading.Lock()

    async def say(self):
        return self.word

    def work(self):
        """Not async: one at a time."""
        with self.lock:
            self.busy += 1
            self.most = max(self.most, self.busy)
        time.sleep(0.01)
        with self.lock:
            self.busy -= 1
        return self.most

    async def ask(self, other):
        return await other.call("say")

    async def wait_for(self, other):
        await other.call("watch")

    def refuse(self):
        raise ConfigError("nothing to say", fix="say something")

    def stumble(self):
        return 1 / 0

    async def publish(self, version):
        weights = {"half": torch.full((3, 2), float(version), dtype=torch.bfloat16), "count": torch.tensor(version)}
        return await self.port.publish("thing", version, weights)

    async def fetch(self, ticket):
        found = await self.port.fetch(ticket)
        found["half"].add_(0)  # it can be written
        return found

    async def environment(self, name):
        return os.environ.get(name)

    async def sleep(self):
        await asyncio.sleep(3600)
