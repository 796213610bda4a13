"""What runs the optimizer."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from pydantic import BeforeValidator, Field

from composer_replication.config.section import Positive, ReadBy, Section, flat

__all__ = ["SubstrateConfig", "SubstrateType"]

SubstrateType: TypeAlias = Literal["local", "trl", "verl", "prime_rl", "monarch", "ray"]

_IN_A_MESH = ReadBy("type", "monarch", "ray")


class SubstrateConfig(Section):
    """What runs the optimizer, and where rollouts are made; `composer doctor --substrate TYPE` says what each needs."""

    type: SubstrateType = "local"
    """`local` is one process; `trl`, `verl` and `prime_rl` are those frameworks' trainers; `monarch` and `ray` are meshes of
    actors, in which rollouts go on while the optimizer works."""
    generators: Annotated[Positive, _IN_A_MESH] = 2
    """Actors that sample."""
    trainers: Annotated[Positive, ReadBy("type", "monarch")] = 1
    """Processes that share the optimizer's steps, each with the whole policy (DDP)."""
    max_staleness: Annotated[int, Field(ge=0), _IN_A_MESH] = 1
    """Optimizer steps by which the policy that sampled a trajectory may lie behind the one it teaches; 0 is synchronous."""
    options: Annotated[dict[str, str | int | float | bool], BeforeValidator(flat), ReadBy("type", "trl", "verl", "prime_rl")] = {}  # noqa: RUF012 - copied
    """Settings of the framework itself, by its own dotted names, over those that follow from this file."""
