"""Publishers and pullers of weights that are killed with SIGKILL at a request to the store.

`python tests/tools/killed_weights.py publish|pull FOLDER...` starts a process for each folder, in which the N-th request that
changes the store (publish) or reads an object (pull), counted from 0 by the place of the folder, is the last: the process dies
before it, for folders of even place, or after it. Prints JSON: for each folder whether the process was killed.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import torch

from composer_replication.diloco import open_store
from composer_replication.diloco.store import Store
from composer_replication.weights import WeightPublisher, WeightPuller

SETTING = {"run": "killed", "shard_bytes": 300, "full_every": 1, "keep": 2, "threads": 1}


def weights(version):
    """A state dict of three types, with a tied tensor, an empty one and odd shapes; a little different for each version."""
    state = {}
    for seed, dtype in enumerate((torch.bfloat16, torch.float16, torch.float32)):
        values = torch.randn(7, 11, generator=torch.Generator().manual_seed(seed))
        values[:, :3] *= 1 + 0.01 * version
        name = str(dtype).removeprefix("torch.")
        state |= {name: values.to(dtype), f"{name}.empty": torch.zeros(3, 0, dtype=dtype)}
        state[f"{name}.scalar"] = torch.tensor(float(version)).to(dtype)
    return state | {"tied": state["bfloat16"]}


def die_at(names, last, *, after, of=""):
    """Let the process die at the `last`-th call of these methods of the store."""
    calls = iter(range(1_000_000))

    def dying(method):
        def call(self, key="", *rest):
            now = key.startswith(of) and next(calls) == last
            if now and not after:
                os.kill(os.getpid(), signal.SIGKILL)
            found = method(self, key, *rest) if key else method(self)
            if now:
                os.kill(os.getpid(), signal.SIGKILL)
            return found

        return call

    for name in names:
        setattr(Store, name, dying(getattr(Store, name)))


def work(deed, folder, place):
    if deed == "publish":
        publisher = WeightPublisher(open_store(folder / "store"), **SETTING)
        die_at(("put", "create", "delete"), place // 2, after=place % 2 == 1)
        publisher.publish(weights(publisher.version + 1))
    else:
        die_at(("get",), place // 2, after=place % 2 == 1, of="objects")
        WeightPuller(open_store(folder / "store"), cache=folder / "cache", threads=1).pull()


def main():
    torch.set_num_threads(1)
    deed, *folders = sys.argv[1:]
    killed = []
    for place, folder in enumerate(folders):
        child = os.fork()  # before the store's client has threads
        if child == 0:
            work(deed, Path(folder), place)
            os._exit(0)
        status = os.waitpid(child, 0)[1]
        killed.append(os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL)
        if not killed[-1] and status != 0:
            sys.exit(f"{folder}: {status}")
    print(json.dumps(killed))


if __name__ == "__main__":
    main()
