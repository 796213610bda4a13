"""Streaming DiLoCo (arXiv:2501.18512, Algorithm 2) written down plainly, in float64, all replicas in one place."""

from __future__ import annotations

import copy

import torch


def train(model, fragments, optimizer_of, inner_step, *, replicas, steps, sync_every, lr, momentum, delay=0, mix=0.0):
    """Parameters by name that all replicas agree on, and each replica's own, after `steps` inner steps.

    Args:
        fragments: lists of names of parameters.
        inner_step: called with a replica's model, optimizer, rank and step.
    """
    models = [copy.deepcopy(model).double() for _ in range(replicas)]
    optimizers = [optimizer_of(one) for one in models]
    agreed = {name: p.detach().clone() for name, p in models[0].named_parameters()}
    velocity = {name: torch.zeros_like(p) for name, p in agreed.items()}
    window, held, mean = sync_every // len(fragments), 0, {}
    for step in range(1, steps + 1):
        for rank in range(replicas):
            inner_step(models[rank], optimizers[rank], rank, step)
        names = fragments[held % len(fragments)]
        if step % window == (window - delay) % window:
            for name in names:
                mean[name] = sum(agreed[name] - dict(one.named_parameters())[name].detach() for one in models) / replicas
        if step % window == 0:
            for name in names:
                velocity[name] = momentum * velocity[name] + mean[name]
                agreed[name] = agreed[name] - lr * (mean[name] + momentum * velocity[name])
                for one in models:
                    local = dict(one.named_parameters())[name]
                    local.data.copy_(mix * local.data + (1 - mix) * agreed[name])
            held += 1
    return agreed, [{name: p.detach() for name, p in one.named_parameters()} for one in models]
