"""What torchft's DiLoCo does with a Manager, call by call, for tests that do without torchft. No delay, no mixing."""

from __future__ import annotations

import copy

import torch
from torch import nn

from composer_replication.diloco.all_reduce import ObjectStoreAllReduce
from composer_replication.diloco.fragments import split_into_fragments
from composer_replication.diloco.global_state import GlobalState
from composer_replication.diloco.manager import ObjectStoreManager
from composer_replication.diloco.recovery import Recovery


class Replica:
    """A small model in two fragments; each `round()` takes one inner step and synchronises one of them."""

    def __init__(self, uri, rank, world_size, *, seed=0, saving=False, snapshot_every=2, state_every=1, retries=0, **reduce):
        torch.manual_seed(seed)
        self.rank, self.steps, self.reports = rank, 0, []
        self.model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
        self.inner = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        self.all_reduce = ObjectStoreAllReduce(uri, rank=rank, world_size=world_size, keep_rounds=None, poll_s=0.01, **reduce)
        self.manager = ObjectStoreManager(self.all_reduce, retries=retries, report=self.reports.append)
        self.fragments = split_into_fragments(self.model, 2)
        self.outers = [torch.optim.SGD(f.parameters(), lr=0.7, momentum=0.9, nesterov=True) for f in self.fragments]
        self.originals = [{n: p.detach().clone() for n, p in f.named_parameters()} for f in self.fragments]
        for index in range(2):
            self._register(index)
        registered = [self.manager.registered[f"fragment {index}"] for index in range(2)]
        self.state = GlobalState(self.fragments, self.outers, registered)
        self.manager.attach(self.state)
        self.recovery = None
        if saving:
            every = {"snapshot_every": snapshot_every, "state_every": state_every}
            store = self.all_reduce.store
            self.recovery = Recovery(store, self.manager, self.model, self.state, self.inner, {"outer_lr": 0.7}, **every)
            self.manager.heal = self.recovery.heal

    def _register(self, index):
        def load(state):
            for name, value in state["original_parameters"].items():
                self.originals[index][name].copy_(value)
            self.outers[index].load_state_dict(state["outer_optimizer"])

        def save():
            return {
                "original_parameters": copy.deepcopy(self.originals[index]),
                "outer_optimizer": self.outers[index].state_dict(),
            }

        self.manager.register_state_dict_fn(f"fragment {index}", load, save)

    def inner_step(self):
        self.steps += 1
        self.manager.disallow_state_dict_read()
        x = torch.randn(8, 3, generator=torch.Generator().manual_seed(100 * self.rank + self.steps))
        self.inner.zero_grad()
        (self.model(x) - x[:, :2]).square().mean().backward()
        self.inner.step()
        self.manager.allow_state_dict_read()

    def round(self):
        """Whether it was committed."""
        self.inner_step()
        self.manager.start_quorum()
        index = self.manager.current_step() % 2
        named = dict(self.fragments[index].named_parameters())
        with torch.no_grad():
            gradients = {name: self.originals[index][name] - p for name, p in named.items()}
        for work in [self.manager.allreduce(gradient, should_quantize=False) for gradient in gradients.values()]:
            work.wait()
        with torch.no_grad():
            for name, p in named.items():
                p.copy_(self.originals[index][name])
        if committed := self.manager.should_commit():
            for name, p in named.items():
                p.grad = gradients[name]
            self.outers[index].step()
            for name, p in named.items():
                self.originals[index][name].copy_(p.detach())
        self.outers[index].zero_grad()
        if committed and self.recovery is not None:
            self.recovery.save({"steps": self.steps})
        return committed

    def train(self, rounds):
        """From where the job is."""
        if self.recovery is not None:
            self.joined = self.recovery.join()
            self.steps = self.joined.extra["steps"] if self.joined.extra else 0
        while self.manager.current_step() < rounds:
            self.round()
        if self.recovery is not None:
            self.recovery.close()
        return self

    def everything(self):
        """Digest of the global state, and what is this replica's own."""
        own = [p.tolist() for p in self.model.parameters()], str(self.inner.state_dict()["state"]), str(self.manager.state_dict())
        return self.state.digest(), *own
