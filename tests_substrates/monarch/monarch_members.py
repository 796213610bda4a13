"""Objects that the tests put into actors. Their processes import this module too."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
from pathlib import Path

import torch
from monarch._src.actor.actor_mesh import _client_context

sys.path.insert(0, str(Path(__file__).parents[1] / "shared"))
from one_gradient import case

from composer_replication.recipes.mesh.errors import WeightsLostError
from composer_replication.recipes.monarch.mesh import MonarchHandle
from composer_replication.trainer.learning.learner import Learner
from composer_replication.trainer.learning.sharding import whole
from composer_replication.types.errors import TeacherError


class Member:
    """Anything an actor may be asked to do."""

    def __init__(self, port, greeting="hello"):
        self.port = port
        self.greeting = greeting
        self.began = threading.Event()

    def greet(self, whom):
        return f"{self.greeting} {whom}"

    def pid(self):
        return os.getpid()

    async def rest(self, seconds):
        await asyncio.sleep(seconds)
        return seconds

    def work(self, seconds):
        self.began.set()
        time.sleep(seconds)
        return threading.current_thread().name

    async def working(self):
        return self.began.is_set()

    def known_error(self):
        raise TeacherError("the teacher is asleep", fix="wake it")

    def other_error(self):
        return {}["nothing"]

    def unsendable(self):
        return threading.Lock()

    async def ask(self, handle, method, *args):
        return await handle.call(method, *args)

    def ask_from_a_thread(self, handle, method):
        """As an environment does, which is stepped in threads."""
        found = []
        thread = threading.Thread(target=lambda: found.append(asyncio.run(handle.call(method))))
        thread.start()
        thread.join()
        return found[0]

    def is_driver(self):
        """Whether Monarch takes this process for one that owns others."""
        return _client_context.try_get() is not None

    def die(self):
        os._exit(3)

    async def fetch(self, ticket):
        return await self.port.fetch(ticket)


class Everything:
    """Publishes weights of every kind."""

    def __init__(self, port):
        self.port = port
        made = torch.Generator().manual_seed(0)
        embedding = torch.randn(7, 5, generator=made)
        self.weights = {
            "embedding": embedding,
            "flags": torch.tensor([True, False, True]),
            "half": torch.randn(3, 3, generator=made).to(torch.bfloat16),
            "count": torch.tensor(3),
            "none": torch.empty(0, 4),
            "turned": torch.randn(4, 6, generator=made, dtype=torch.float64).T,
            "tied": embedding,
        }

    async def publish(self):
        return await self.port.publish("publisher", 7, self.weights)


def publish_everything(port):
    """To build an actor, a function is as good as a class."""
    return Everything(port)


def refuse(_port):
    raise OSError("nothing can be built here")


class Meeting:
    """Two calls that can only end together, and a count of methods that ran at the same time."""

    def __init__(self, _port):
        self.both = asyncio.Event()
        self.came = 0
        self.inside = 0
        self.most = 0

    async def meet(self):
        self.came += 1
        if self.came == 2:
            self.both.set()
        await self.both.wait()

    def alone(self):
        self.inside += 1
        self.most = max(self.most, self.inside)
        time.sleep(0.01)
        self.inside -= 1
        return self.most


class Publisher:
    """Publishes weights that are all equal to their version."""

    def __init__(self, port, numbers):
        self.port = port
        self.numbers = numbers
        self.ticket = None
        self.version = 0
        self.going_on = True

    async def publish(self):
        self.version += 1
        self.ticket = await self.port.publish("publisher", self.version, {"w": torch.full((self.numbers,), float(self.version))})
        return self.ticket

    def pid(self):
        return os.getpid()

    async def latest(self):
        return self.ticket

    async def publish_until_stopped(self):
        """Without a pause for half of the time, with longer and longer ones for the other half."""
        while self.going_on:
            await self.publish()
            if self.version % 20 >= 10:
                await asyncio.sleep(0.05 * (self.version % 20))
        return self.version

    async def stop(self):
        self.going_on = False


class Reader:
    """Fetches what is published, and looks at every number of it."""

    def __init__(self, port):
        self.port = port
        self.fetching = False

    async def is_fetching(self):
        return self.fetching

    async def fetch(self, ticket):
        return (await self.port.fetch(ticket))["w"]

    async def fetch_time(self, ticket):
        self.fetching = True
        began = time.monotonic()
        await self.port.fetch(ticket)
        return time.monotonic() - began

    async def read_while_written(self, publisher, least):
        """How often what came was whole, refused, and mixed; until it was whole and refused `least` times."""
        whole, refused, mixed = 0, 0, 0
        while min(whole, refused) < least:
            ticket = await publisher.call("latest")
            try:
                numbers = (await self.port.fetch(ticket))["w"]
            except WeightsLostError:
                refused += 1
                continue
            same = bool((numbers == float(ticket.version)).all())
            whole, mixed = whole + same, mixed + (not same)
        return whole, refused, mixed


class Rank:
    """One of the processes that train a policy together."""

    def __init__(self, port, config, sharded):
        torch.set_num_threads(1)
        self.port = port
        self.case = case()
        self.learner = Learner(self.case.model, config, sharded=sharded)
        self.began = threading.Event()

    def where(self):
        return int(os.environ.get("RANK", 0)), self.learner.accelerator.process_index, self.learner.accelerator.num_processes

    def gradient(self, batch):
        """Of one step, whole; the weights and metrics after it."""
        self.learner.optimizer.zero_grad = lambda: None
        metrics = self.learner.update(batch).metrics
        parameters = self.learner.policy.named_parameters()
        return {name: whole(p.grad).clone() for name, p in parameters}, self.learner.weights(), dict(metrics)

    def shares(self):
        """How many of the policy's numbers this process holds, and how many there are."""
        parameters = list(self.learner.policy.parameters())
        local = [p.to_local() if hasattr(p, "to_local") else p for p in parameters]
        return sum(p.numel() for p in local), sum(p.numel() for p in parameters)

    def publish_weights(self):
        return self.learner.version, self.learner.weights()

    async def publish(self, weights):
        return await self.port.publish("trainer", 1, weights)

    def wait_for_the_others(self):
        self.began.set()
        if self.learner.accelerator.process_index == 0:
            torch.distributed.barrier()

    async def waiting(self):
        return self.began.is_set()

    def fail_on_the_second(self):
        if self.learner.accelerator.process_index == 1:
            raise TeacherError("the second rank has a trouble")
        torch.distributed.barrier()


class Judge:
    """With a run's role."""

    role = "rewarder"

    def __init__(self, _port):
        pass

    def grade(self, task_id, submission):
        return f"{task_id}: {', '.join(submission)}"

    def other(self):
        return "other"


def pids_of(handle: MonarchHandle) -> tuple[int, ...]:
    """Return the process numbers of an actor's ranks, by rank."""
    return tuple(process.pid for process in handle.processes)
