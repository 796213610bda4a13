"""Where and on which machines the replicas of a run start."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from composer_replication.config.section import ReadBy, Section

_IN_CONTAINERS = ReadBy("type", "modal", "hf", "sky")
_ON_MODAL, _ON_HF, _ON_SKY = ReadBy("type", "modal"), ReadBy("type", "hf"), ReadBy("type", "sky")
_BY_GPU = ReadBy("type", "modal", "sky")


class ExecutorConfig(Section):
    """The launcher of the replicas: processes on this machine, Modal sandboxes, Hugging Face jobs, or SkyPilot clusters. Unset
    fields keep the launcher's default."""

    type: Literal["local", "modal", "hf", "sky"] = "local"
    """Choose where replicas start."""
    timeout_s: Annotated[float, Field(gt=0.0)] = 6 * 3600.0
    """End a replica after this many seconds."""
    restarts: Annotated[int, Field(ge=0)] = 2
    """Relaunch the replica of a rank up to this many times after its machine or process is lost; then the job ends."""
    image: Annotated[str | None, _IN_CONTAINERS] = None
    """Use this registry image, by default `python:3.11`. With SkyPilot, an empty string uses the machine as it is."""
    setup: Annotated[str | None, _IN_CONTAINERS] = None
    """Run this shell command first in each container. By default it installs this version of this package; set an empty string
    for an image that already has it."""
    python: Annotated[str | None, _IN_CONTAINERS] = None
    """Run this interpreter of the image."""
    env: Annotated[dict[str, str], _IN_CONTAINERS] = {}  # noqa: RUF012 - copied
    """Set these environment variables in the replicas, e.g. `AWS_REGION`."""
    secrets: Annotated[tuple[str, ...], _IN_CONTAINERS] = ()
    """Pass the values of these local environment variables to replicas as secrets, e.g. the store's credentials."""
    gpu: Annotated[str | None, _BY_GPU] = None
    """Give each replica this GPU, in Modal's (`A100`, `H100:8`) or SkyPilot's (`A100:8`) notation."""
    hardware: Annotated[str | None, _ON_HF] = None
    """Run on this machine flavor, which includes its GPUs, e.g. `a10g-large`."""
    namespace: Annotated[str | None, _ON_HF] = None
    """Bill this user or organization. Defaults to the owner of the token."""
    app: Annotated[str | None, _ON_MODAL] = None
    """Create sandboxes under this Modal app."""
    cpu: Annotated[float | None, _ON_MODAL] = None
    """Give each sandbox at least this many cores."""
    memory_mib: Annotated[int | None, _ON_MODAL] = None
    """Give each sandbox at least this many MiB of memory."""
    region: Annotated[str | None, _ON_MODAL] = None
    """Run in this region, in Modal's notation."""
    infra: Annotated[str | None, _ON_SKY] = None
    """Run on this infrastructure, in SkyPilot's notation, e.g. `aws/us-east-1` or `kubernetes`. Defaults to the cheapest."""
    cpus: Annotated[str | None, _ON_SKY] = None
    """Require this many CPUs per machine, e.g. `8` or `8+`."""
    memory: Annotated[str | None, _ON_SKY] = None
    """Require this many GB of memory per machine, e.g. `32` or `32+`."""
    use_spot: Annotated[bool, _ON_SKY] = False
    """Use spot instances, which the cloud may reclaim; a replica lost that way counts as failed."""
