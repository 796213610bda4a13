"""The framework that runs the optimizer."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from pydantic import BeforeValidator, Field

from composer_replication.config.section import Positive, ReadBy, Section, flat

SubstrateType: TypeAlias = Literal["local", "trl", "verl", "prime_rl", "monarch", "ray"]

_IN_A_MESH = ReadBy("type", "monarch", "ray")


class SubstrateConfig(Section):
    """The framework that runs the optimizer and collects rollouts. `composer doctor --substrate TYPE` says what each needs."""

    type: SubstrateType = "local"
    """Choose `local` for one process, `trl`, `verl` or `prime_rl` for those frameworks' trainers, or `monarch` or `ray` for a
    mesh of actors in which rollouts continue while the optimizer works."""
    generators: Annotated[Positive, _IN_A_MESH] = 2
    """Start this many actors that sample."""
    trainers: Annotated[Positive, ReadBy("type", "monarch")] = 1
    """Share each optimizer step among this many processes, each with the whole policy (DDP)."""
    shard: Annotated[bool, ReadBy("type", "local")] = False
    """Started by torchrun on several devices, share weights, gradients and moments out among them (FSDP2), instead of keeping all
    of them on each (DDP). Set it when one device cannot hold them; rollouts then need a server."""
    max_staleness: Annotated[int, Field(ge=0), _IN_A_MESH] = 1
    """Allow the policy that sampled a trajectory to lag the one being trained by at most this many steps. 0 is synchronous."""
    options: Annotated[dict[str, str | int | float | bool], BeforeValidator(flat), ReadBy("type", "trl", "verl", "prime_rl")] = {}  # noqa: RUF012 - copied
    """Set options of the framework itself, by its own dotted names. They override those derived from this file."""
