"""The actors of a run: one Monarch class for each role, whose endpoints run the methods of the role's object.

`MonarchMesh` spawns them for the classes of `recipes.mesh`, which do the work and know nothing of Monarch. Monarch's own tools
show an actor by its class, and a call by its endpoint. Each answer is a `CallResult`, as `Host` gives it.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

from composer_replication.recipes.monarch.host import Host
from composer_replication.recipes.monarch.library import Port, endpoint

if TYPE_CHECKING:
    from composer_replication.recipes.mesh.protocol import Build


def _endpoint(method: str) -> Any:
    """Make an endpoint that runs a method of the object with the arguments of the call."""

    async def run(self: Host, reply: Port, *args: Any) -> None:
        self._run(reply, method, *args)

    return endpoint(explicit_response_port=True)(run)


class GeneratorActor(Host):
    """An actor that samples: `recipes.mesh.generator.Generator`."""

    role: ClassVar[str] = "generator"
    endpoints = MappingProxyType({"roll_out": "rollout"})
    rollout = _endpoint("roll_out")


class TrainerActor(Host):
    """An actor that learns, alone or as one of several ranks: `recipes.mesh.trainer.Trainer`."""

    role: ClassVar[str] = "trainer"
    endpoints = MappingProxyType({"step": "train_outer_step", "publish": "publish", "save": "save"})
    train_outer_step, publish, save = map(_endpoint, ("step", "publish", "save"))


class RewarderActor(Host):
    """An actor that grades: `recipes.mesh.sandbox_actors.Rewarder`."""

    role: ClassVar[str] = "rewarder"
    endpoints = MappingProxyType({"grade": "score"})
    score = _endpoint("grade")


class TeacherPoolActor(Host):
    """An actor that asks teachers: `recipes.mesh.trainer.TeacherActor`."""

    role: ClassVar[str] = "teachers"
    endpoints = MappingProxyType({"collect": "collect"})
    collect = _endpoint("collect")


class EnvActor(Host):
    """An actor that runs tools and tests: `recipes.mesh.sandbox_actors.EnvHost`."""

    role: ClassVar[str] = "env"
    endpoints = MappingProxyType({"reset": "reset", "step": "step", "end": "end"})
    reset, step, end = map(_endpoint, ("reset", "step", "end"))


ACTORS: Mapping[str, type[Host]] = MappingProxyType(
    {actor.role: actor for actor in (GeneratorActor, TrainerActor, RewarderActor, TeacherPoolActor, EnvActor)}
)
"""By role (`recipes.mesh.member.Member.role`)."""


def actor_for(build: Build) -> type[Host]:
    """Return the actor class that holds an object built by `build`: its role's, or `Host` for an object without a role."""
    return ACTORS.get(getattr(build, "role", ""), Host)
