"""The actors of a run: one Monarch class for each role, whose endpoints run the methods of the role's object.

`MonarchMesh` spawns them for the classes of `recipes.mesh`, which do the work and know nothing of Monarch. Monarch's own tools
show an actor by its class, and a call by its endpoint. Each answer is a `Reply`, as `Host` gives it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

from composer_replication.recipes.monarch.host import Host
from composer_replication.recipes.monarch.library import Port, endpoint

if TYPE_CHECKING:
    from composer_replication.recipes.mesh.generator import Order
    from composer_replication.recipes.mesh.protocol import Build, Handle, WeightHandle
    from composer_replication.types import Group, ToolCall

__all__ = ["ACTORS", "EnvActor", "GeneratorActor", "RewarderActor", "TeacherPoolActor", "TrainerActor", "actor_for"]


class GeneratorActor(Host):
    """Samples: `recipes.mesh.generator.Generator`."""

    role: ClassVar[str] = "generator"
    endpoints = MappingProxyType({"roll_out": "rollout"})

    @endpoint(explicit_response_port=True)
    async def rollout(self, reply: Port, order: Order, ticket: WeightHandle, hosts: Sequence[Handle], rewarder: Handle) -> None:
        """The order's groups, graded, sampled by the ticket's weights."""
        self._run(reply, "roll_out", order, ticket, hosts, rewarder)


class TrainerActor(Host):
    """Learns, alone or as one of several ranks: `recipes.mesh.trainer.Trainer`."""

    role: ClassVar[str] = "trainer"
    endpoints = MappingProxyType({"step": "train_outer_step", "publish": "publish", "save": "save"})

    @endpoint(explicit_response_port=True)
    async def train_outer_step(self, reply: Port, step: int, groups: Sequence[Group]) -> None:
        """Train on the groups of a step, the next one: `Stepped`."""
        self._run(reply, "step", step, groups)

    @endpoint(explicit_response_port=True)
    async def publish(self, reply: Port) -> None:
        """Make the weights of the last finished step available: their `WeightHandle`."""
        self._run(reply, "publish")

    @endpoint(explicit_response_port=True)
    async def save(self, reply: Port, state: Mapping[str, Any]) -> None:
        """A checkpoint, with the driver's `state`."""
        self._run(reply, "save", state)


class RewarderActor(Host):
    """Gives verdicts: `recipes.mesh.boxes.Rewarder`."""

    role: ClassVar[str] = "rewarder"
    endpoints = MappingProxyType({"grade": "score"})

    @endpoint(explicit_response_port=True)
    async def score(self, reply: Port, task_id: str, submission: Mapping[str, bytes | None]) -> None:
        """Grade what an episode left behind: `GradeReport`."""
        self._run(reply, "grade", task_id, submission)


class TeacherPoolActor(Host):
    """Asks teachers: `recipes.mesh.trainer.TeacherPool`."""

    role: ClassVar[str] = "teachers"
    endpoints = MappingProxyType({"collect": "collect"})

    @endpoint(explicit_response_port=True)
    async def collect(self, reply: Port, traces: Sequence[Group], trainer: Handle) -> None:
        """Turn frozen traces into preference pairs: what there is to say about them."""
        self._run(reply, "collect", traces, trainer)


class EnvActor(Host):
    """Runs tools and tests: `recipes.mesh.boxes.EnvHost`."""

    role: ClassVar[str] = "env"
    endpoints = MappingProxyType({"reset": "reset", "step": "step", "end": "end"})

    @endpoint(explicit_response_port=True)
    async def reset(self, reply: Port, episode: str, task_id: str) -> None:
        """Begin an episode: opening messages and tools."""
        self._run(reply, "reset", episode, task_id)

    @endpoint(explicit_response_port=True)
    async def step(self, reply: Port, episode: str, call: ToolCall) -> None:
        """Carry out a tool call: its result, and whether the agent has submitted."""
        self._run(reply, "step", episode, call)

    @endpoint(explicit_response_port=True)
    async def end(self, reply: Port, episode: str) -> None:
        """End an episode: what there is to grade."""
        self._run(reply, "end", episode)


ACTORS: Mapping[str, type[Host]] = MappingProxyType(
    {actor.role: actor for actor in (GeneratorActor, TrainerActor, RewarderActor, TeacherPoolActor, EnvActor)}
)
"""By role (`recipes.mesh.member.Member.role`)."""


def actor_for(build: Build) -> type[Host]:
    """What holds an object that is built by `build`: its role's actor, or `Host` for one without a role."""
    return ACTORS.get(getattr(build, "role", ""), Host)
