"""A trainer of several processes that train as one."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest
import torch
from monarch_members import Member, Rank, pids_of
from one_gradient import LOSS, case, local_gradient, relative_error

from composer_replication.config import RunConfig
from composer_replication.recipes.mesh.errors import ActorDiedError
from composer_replication.types.errors import TeacherError

GROUP = {"ranks": {"trainer": 2}}


@pytest.fixture
def config(tmp_path):
    """With every channel on; no gradient is clipped."""
    made = RunConfig.model_validate(
        {
            "model": {"path": str(tmp_path)},
            "tasks": {"train": str(tmp_path)},
            "optimizer": {"max_grad_norm": 1e9, "micro_batch_tokens": 1, "learning_rate": 0.01},
        }
    )
    return made.model_copy(update={"loss": LOSS})


@pytest.mark.parametrize("sharded", [False, True], ids=["ddp", "fsdp2"])
def test_two_ranks_find_the_gradient_of_one(on_mesh, config, sharded):
    fixed = case()
    expected = local_gradient(fixed)

    async def work(mesh):
        group = await mesh.spawn("trainer", Rank, config, sharded)
        assert len(set(pids_of(group))) == 2
        assert await group.call("where") == (0, 0, 2)
        held, there_are = await group.call("shares")
        assert (held < 0.6 * there_are) == sharded
        alone = await mesh.spawn("alone", Rank, config, sharded)
        assert await alone.call("where") == (0, 0, 1)
        found = await asyncio.gather(*(actor.call("gradient", fixed.batch) for actor in (group, alone)))
        version, weights = await group.call("publish_weights")
        ticket = await group.call("publish", weights)
        reader = await mesh.spawn("reader", Member)
        return found, version, await reader.call("fetch", ticket)

    ((gradient, weights, metrics), (same, after, said)), version, fetched = on_mesh(work, **GROUP)
    error = relative_error(gradient, expected)
    kind, by_one = "FSDP2" if sharded else "DDP", relative_error(same, expected)
    print(f"{kind}: relative error of two ranks {error:.1e}, of one {by_one:.1e}")
    assert error < 1e-5
    assert metrics == pytest.approx(said, rel=1e-4)
    assert version == 1
    assert list(fetched) == list(weights) == list(after)
    for name, tensor in after.items():
        torch.testing.assert_close(weights[name], tensor, rtol=1e-4, atol=1e-4)  # AdamW's first step takes noise for its sign
        assert torch.equal(fetched[name], weights[name])


@pytest.mark.parametrize("victim", [0, 1])
def test_the_death_of_one_rank_is_that_of_the_group(on_mesh, config, victim):
    """Also while another waits for it."""

    async def work(mesh):
        group = await mesh.spawn("trainer", Rank, config, False)
        waiting = asyncio.ensure_future(group.call("wait_for_the_others"))
        while not await group.call("waiting"):
            await asyncio.sleep(0.01)
        os.kill(pids_of(group)[victim], signal.SIGKILL)
        with pytest.raises(ActorDiedError):
            await waiting
        with pytest.raises(ActorDiedError):
            await group.call("where")
        new = await mesh.replace(group)
        assert not set(pids_of(new)) & set(pids_of(group))
        assert await new.call("where") == (0, 0, 2)

    on_mesh(work, **GROUP)


def test_ranks_that_wait_for_one_that_failed_are_ended(on_mesh, config, monkeypatch):
    monkeypatch.setattr("composer_replication.recipes.monarch.mesh._OTHERS_S", 1.0)

    async def work(mesh):
        group = await mesh.spawn("trainer", Rank, config, False)
        with pytest.raises(TeacherError, match="second rank"):
            await group.call("fail_on_the_second")
        with pytest.raises(ActorDiedError):
            await group.call("where")
        new = await mesh.replace(group)
        assert await new.call("where") == (0, 0, 2)

    on_mesh(work, **GROUP)
