"""Saved states: the same tree comes back, and nothing else is read as one."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from composer_replication.diloco.trees import copied, pack, unpack
from composer_replication.types.errors import CheckpointError

leaves = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
trees = st.recursive(
    leaves,
    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.text() | st.integers(), inner),
    max_leaves=12,
)


@given(trees)
def test_plain_values_come_back_as_they_were(tree):
    found = unpack(pack(tree), "state")
    assert found == tree
    assert repr(found) == repr(tree)  # 1 is not True and not 1.0, a tuple no list


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.uint8, torch.bool])
def test_tensors_come_back_bit_for_bit(dtype):
    tensors = {
        "one": torch.arange(6).reshape(2, 3).to(dtype),
        "none": torch.empty(0, 3, dtype=dtype),
        "all": torch.ones((), dtype=dtype),
    }
    found = unpack(pack(tensors), "state")
    for name, tensor in tensors.items():
        assert found[name].dtype == dtype
        assert torch.equal(found[name], tensor)


def test_not_a_number_and_infinity_survive():
    found = unpack(pack([math.nan, math.inf, torch.tensor([math.nan, -math.inf])]), "state")
    assert math.isnan(found[0])
    assert found[1] == math.inf
    assert math.isnan(found[2][0])


def test_views_and_tied_tensors_are_stored_once_and_right():
    base = torch.arange(1000.0)
    tree = {"a": base, "b": base, "view": base.view(10, 100), "part": base[10:20], "turned": base.view(10, 100).T}
    data = pack(tree)
    found = unpack(data, "state")
    assert all(torch.equal(found[name], tensor) for name, tensor in tree.items())
    assert len(data) < 3.5 * 4000  # a, view, turned, and the ten of part


def test_an_optimizer_goes_on_from_its_saved_state():
    net = nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(net.parameters(), amsgrad=True)
    net(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    found = unpack(pack(optimizer.state_dict()), "state")
    torch.testing.assert_close(found, optimizer.state_dict(), rtol=0, atol=0)
    optimizer.load_state_dict(found)


def test_copies_do_not_change_with_the_original():
    tensor = torch.zeros(2)
    found = copied({"a": [tensor, (1, tensor)]})
    tensor += 1
    assert found["a"][0].tolist() == found["a"][1][1].tolist() == [0, 0]


@pytest.mark.parametrize("thing", [object(), {1.5: 1}, {True: 1}, [b"bytes"]])
def test_what_is_no_state_is_refused(thing):
    with pytest.raises(TypeError, match="a saved state cannot"):
        pack(thing)


@pytest.mark.parametrize("cut", [0, 7, 30, -1])
def test_a_damaged_file_is_one_clear_error(cut):
    with pytest.raises(CheckpointError, match="here: not a saved state"):
        unpack(pack({"a": torch.ones(8)})[:cut], "here")


def test_another_safetensors_file_is_no_state():
    from safetensors.torch import save

    with pytest.raises(CheckpointError, match="not a saved state"):
        unpack(save({"a": torch.ones(2)}), "here")
