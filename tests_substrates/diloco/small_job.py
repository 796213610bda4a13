"""A small regression that replicas train under DiLoCo, each on its own batches; also a program that is one replica."""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path

import torch
from torch import nn

from composer_replication.diloco.all_reduce import ObjectStoreAllReduce
from composer_replication.diloco.manager import ObjectStoreManager
from composer_replication.diloco.outer_loop import make_diloco_outer_loop
from composer_replication.trainer.learning.muon import make_muon


def network(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 2))


def batch(rank, step):
    """Inputs [16, 6] and targets [16, 2]."""
    x = torch.randn(16, 6, generator=torch.Generator().manual_seed(1000 * rank + step))
    return x, torch.stack([x[:, :3].sum(1), x[:, 3:].square().sum(1)], 1)


def inner_step(model, optimizer, rank, step):
    x, y = batch(rank, step)
    dtype = next(model.parameters()).dtype
    optimizer.zero_grad()
    loss = (model(x.to(dtype)) - y.to(dtype)).square().mean()
    loss.backward()
    optimizer.step()
    return loss.item()


def optimizer_of(kind, model):
    match kind:
        case "sgd":
            return torch.optim.SGD(model.parameters(), lr=0.02)
        case "adamw":
            return torch.optim.AdamW(model.parameters(), lr=3e-3)
        case "muon":
            return make_muon(model, lr=3e-3)


class Replica:
    """One replica of the job in this process."""

    def __init__(
        self, uri, rank, world_size, *, seed=0, inner="adamw", report=lambda report: None, saving=True, reduce=None, **options
    ):
        self.rank = rank
        self.model = network(seed)
        self.inner = optimizer_of(inner, self.model)
        self.all_reduce = ObjectStoreAllReduce(
            uri, rank=rank, world_size=world_size, keep_rounds=None, poll_s=0.02, **{"timeout_s": 600.0, **(reduce or {})}
        )
        self.manager = ObjectStoreManager(self.all_reduce, report=report)
        store = self.all_reduce.store.at("job") if saving else None
        self.loop = make_diloco_outer_loop(self.manager, self.model, inner_optimizer=self.inner, store=store, **options)
        self.step = 0

    def train(self, rounds, each=lambda replica: None):
        """From where the job is until `rounds` rounds are held; `each` is called after every inner step."""
        if self.loop._recovery is not None:
            joined = self.loop.join()
            self.how = joined.how
            self.step = joined.extra["step"] if joined.extra else 0
        with self.loop:
            while self.loop.round < rounds:
                self.step += 1
                inner_step(self.model, self.inner, self.rank, self.step)
                if self.loop._recovery is not None:
                    self.loop.save({"step": self.step})
                each(self)
        return self

    def everything(self):
        """Digest of the global state, local parameters, inner optimizer."""
        return self.loop.state.digest(), [p.tolist() for p in self.model.parameters()], str(self.inner.state_dict()["state"])


def main():
    """`small_job.py OPTIONS.json`: train, and write what came out beside it."""
    torch.set_num_threads(1)
    given = json.loads(Path(sys.argv[1]).read_text())
    out = Path(given.pop("out"))
    rounds, pause_at, paused = given.pop("rounds"), given.pop("pause_at"), Path(given.pop("paused"))
    replica = Replica(**given)

    def pause(replica):
        if replica.step == pause_at:
            paused.touch()
            threading.Event().wait()  # for a signal

    replica.train(rounds, pause)
    out.write_text(json.dumps({"how": replica.how, "state": replica.everything()}))


if __name__ == "__main__":
    main()
