"""Where the replicas of a run are started, and on what."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from composer_replication.config.section import ReadBy, Section

__all__ = ["ExecutorConfig"]

_IN_CONTAINERS = ReadBy("type", "modal", "hf", "sky")
_ON_MODAL, _ON_HF, _ON_SKY = ReadBy("type", "modal"), ReadBy("type", "hf"), ReadBy("type", "sky")
_BY_GPU = ReadBy("type", "modal", "sky")


class ExecutorConfig(Section):
    """What starts the replicas: processes of this machine, Modal's sandboxes, jobs of Hugging Face, or SkyPilot's clusters. What
    is not set is as the executor has it."""

    type: Literal["local", "modal", "hf", "sky"] = "local"
    """Which of them."""
    timeout_s: Annotated[float, Field(gt=0.0)] = 6 * 3600.0
    """Seconds after which a replica is ended."""
    restarts: Annotated[int, Field(ge=0)] = 2
    """How often a replica of each rank is launched again where its machine or its process is lost; then the job ends."""
    image: Annotated[str | None, _IN_CONTAINERS] = None
    """A registry's image, `python:3.11` by default; empty, with SkyPilot, for the machine as it comes."""
    setup: Annotated[str | None, _IN_CONTAINERS] = None
    """A shell command that each container runs first: by default it installs this version of this package; empty for an image
    that has it."""
    python: Annotated[str | None, _IN_CONTAINERS] = None
    """The interpreter in the image."""
    env: Annotated[dict[str, str], _IN_CONTAINERS] = {}  # noqa: RUF012 - copied
    """Environment variables of the replicas, such as `AWS_REGION`."""
    secrets: Annotated[tuple[str, ...], _IN_CONTAINERS] = ()
    """Names of environment variables here whose values replicas get as secrets, such as the store's credentials."""
    gpu: Annotated[str | None, _BY_GPU] = None
    """What each replica gets, in the words of Modal (`A100`, `H100:8`) or SkyPilot (`A100:8`)."""
    hardware: Annotated[str | None, _ON_HF] = None
    """The flavor of machine, its GPUs included: `a10g-large`."""
    namespace: Annotated[str | None, _ON_HF] = None
    """The user or organization that pays, unless it is the token's own."""
    app: Annotated[str | None, _ON_MODAL] = None
    """The Modal app that sandboxes belong to."""
    cpu: Annotated[float | None, _ON_MODAL] = None
    """Cores of each sandbox, at least."""
    memory_mib: Annotated[int | None, _ON_MODAL] = None
    """Of each sandbox, at least."""
    region: Annotated[str | None, _ON_MODAL] = None
    """In Modal's words."""
    infra: Annotated[str | None, _ON_SKY] = None
    """Where, in SkyPilot's words: `aws/us-east-1`, `kubernetes`; by default wherever it is cheapest."""
    cpus: Annotated[str | None, _ON_SKY] = None
    """Of each machine, as `8` or `8+`."""
    memory: Annotated[str | None, _ON_SKY] = None
    """Of each machine in GB, as `32` or `32+`."""
    use_spot: Annotated[bool, _ON_SKY] = False
    """Take machines that the cloud may take back; a replica that is lost so has failed."""
