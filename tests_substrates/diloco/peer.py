"""One replica under torchft's own Manager: `peer.py RANK LOG`. It trains until it is killed."""

from __future__ import annotations

import hashlib
import sys
from datetime import timedelta
from pathlib import Path

import small_job
import torch
from torch.distributed import TCPStore
from torchft import Manager, ProcessGroupGloo

from composer_replication.diloco.outer_loop import make_diloco_outer_loop

LIMIT = timedelta(seconds=300)


def digest(state):
    """Of the global parameters and outer momentum of all fragments."""
    sha = hashlib.sha256()
    for part in state:
        momentum = part["outer_optimizer"]["state"]
        for tensor in (*part["original_parameters"].values(), *(momentum[key]["momentum_buffer"] for key in sorted(momentum))):
            sha.update(tensor.numpy().tobytes())
    return sha.hexdigest()


def main():
    rank, log = int(sys.argv[1]), Path(sys.argv[2])
    torch.set_num_threads(1)
    model = small_job.network(seed=rank)  # torchft gives all of them the first one's
    inner = small_job.optimizer_of("adamw", model)
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    manager = Manager(
        pg=ProcessGroupGloo(timeout=LIMIT),
        load_state_dict=None,
        state_dict=None,
        min_replica_size=1,
        use_async_quorum=False,
        timeout=LIMIT,
        quorum_timeout=LIMIT,
        connect_timeout=LIMIT,
        rank=0,
        world_size=1,
        store_addr="127.0.0.1",
        store_port=store.port,
        replica_id=f"replica_{rank}",
        hostname="127.0.0.1",
    )
    loop = make_diloco_outer_loop(manager, model, inner_optimizer=inner, sync_every=8, fragments=2)
    step = 0
    with loop, log.open("w") as told:
        while True:
            step += 1
            small_job.inner_step(model, inner, rank, step)
            if loop.at_boundary:
                fragments = [manager._user_state_dicts[f"StreamingDiLoCoFragment_{index}"]() for index in range(2)]
                told.write(f"round {loop.round} members {manager.num_participants()} digest {digest(fragments)}\n")
                told.flush()


if __name__ == "__main__":
    main()
