"""The guide's first steps with several replicas, as it has them."""

from __future__ import annotations

import tempfile

import pytest

from composer_replication.diloco.serverless import LocalProcessExecutor, ObjectStoreAllReduce


@pytest.mark.slow
def test_four_local_replicas() -> None:
    with tempfile.TemporaryDirectory() as td:
        rendezvous = ObjectStoreAllReduce(td, rank=0, world_size=4)
        executor = LocalProcessExecutor()
        handles = executor.launch_replicas(
            n_replicas=4,
            entrypoint="composer_replication.diloco.serverless.replica_entrypoint",
            entrypoint_args={"rendezvous_uri": td, "rank_env": "REPLICA_RANK"},
        )
        results = executor.collect(handles, timeout=600)
    assert results == [{"rank": rank, "world_size": 4, "mean_rank": 1.5} for rank in range(4)]
    del rendezvous


def test_the_rendezvous_of_the_guide(tmp_path) -> None:
    assert ObjectStoreAllReduce(str(tmp_path / "run42"), rank=0, world_size=4)
