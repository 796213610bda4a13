"""A program whose mesh joins the Ray cluster that RAY_ADDRESS names; its last line is the process id of an actor."""

from __future__ import annotations

import asyncio
import os

import ray
from mesh_members import Thing
from test_meshes import (
    a_death_is_told_and_another_takes_the_place,
    calls_errors_and_handles_travel,
    weights_travel_as_they_were,
)

from composer_replication.recipes.ray.mesh import RayMesh


async def main() -> None:
    mesh = RayMesh()
    assert ray.get_runtime_context().gcs_address == os.environ["RAY_ADDRESS"]
    try:
        await calls_errors_and_handles_travel(mesh)
        await weights_travel_as_they_were(mesh)
        await a_death_is_told_and_another_takes_the_place(mesh)
        one = await mesh.spawn("one", Thing, "hello")
        assert await one.call("environment", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO") == "0"
        print(f"\nactor {one.pid}", flush=True)
    finally:
        await mesh.close()


asyncio.run(main())
