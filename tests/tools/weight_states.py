"""State dicts for tests of the weight broadcast, and harm for the objects that they become."""

from __future__ import annotations

import torch


def bits(tensor):
    return tensor.contiguous().view(-1).view(torch.uint8)


def assert_same(found, wanted):
    assert found.keys() == wanted.keys()
    for name, tensor in wanted.items():
        assert (found[name].dtype, found[name].shape) == (tensor.dtype, tensor.shape)
        assert torch.equal(bits(found[name]), bits(tensor)), name


def model(seed=0, dtype=torch.bfloat16):
    """Odd shapes, a tied tensor, an empty one, a scalar, one that is not contiguous, and one of another type."""
    source = torch.Generator().manual_seed(seed)
    wide = torch.randn(37, 11, generator=source)
    state = {"embed": wide.to(dtype), "norm": torch.randn(13, generator=source).to(dtype)}
    state |= {"head": state["embed"], "empty": torch.zeros(0, 5, dtype=dtype), "scalar": torch.tensor(2.0).to(dtype)}
    return state | {"turned": torch.randn(5, 7, generator=source).to(dtype).t(), "steps": torch.arange(4)}


def moved(state, by=0.01, every=7):
    """A state in which one value in `every` has moved by a share."""
    new = {name: tensor.clone() for name, tensor in state.items() if name != "head"}
    new["embed"].view(-1)[::every] *= 1 + by
    return new | {"head": new["embed"]}


def keys(store, kind):
    return [key for key in store.list("objects") if kind in key]


def damage(store, key):
    """Turn a bit of an object."""
    data = bytearray(store.get(key))
    data[len(data) // 2] ^= 1
    store.put(key, bytes(data))
