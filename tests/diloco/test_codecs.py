"""Codecs: what comes back is as close as promised, the same wherever it is decoded, and torn bytes are told."""

from __future__ import annotations

import tracemalloc
import zlib

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from in_threads import vector

from composer_replication.diloco.codecs import CODECS, make_codec
from composer_replication.diloco.codecs.feedback import ErrorFeedback
from composer_replication.diloco.codecs.patch import apply_patch, make_patch, visible
from composer_replication.diloco.codecs.positions import pack_positions, unpack_positions
from composer_replication.diloco.codecs.raw import to_tensor
from composer_replication.types.errors import ConfigError

VECTORS = st.builds(
    lambda size, seed, exponent, zeros: vector(size, seed, 10.0**exponent) * (torch.rand(size) >= zeros),
    st.integers(0, 9000),
    st.integers(0, 2**31),
    st.integers(-30, 30),
    st.sampled_from([0.0, 0.5, 0.97, 1.0]),
)


@pytest.mark.parametrize("name", CODECS)
@settings(max_examples=40)
@given(values=VECTORS)
def test_a_vector_comes_back_in_its_size_and_a_second_pass_changes_nothing_much(name, values):
    codec = make_codec(name)
    payload = codec.encode(values)
    found = codec.decode(payload, values.numel())
    assert found.shape == values.shape
    assert found.dtype == torch.float32
    assert bool(torch.isfinite(found).all())
    assert torch.equal(found, codec.decode(bytes(payload), values.numel()))
    assert (found - values).norm() <= values.norm() * 1.0001


@settings(max_examples=60)
@given(values=VECTORS, bits=st.sampled_from([8, 4]))
def test_integers_are_off_by_little_more_than_half_a_step(values, bits):
    codec = make_codec(f"int{bits}")
    off = (codec.decode(codec.encode(values), values.numel()) - values).abs()
    most = 2 ** (bits - 1) - 1
    unit = float(values.abs().max()) / most if values.numel() else 0.0
    for begin in range(0, values.numel(), 256):
        step = float(values[begin : begin + 256].abs().max()) / most
        assert float(off[begin : begin + 256].max()) <= 0.6 * step + unit * most * 2**-24


def test_exact_codecs_are_exact():
    values = vector(1000, 0)
    assert torch.equal(make_codec("fp32").decode(make_codec("fp32").encode(values), 1000), values)
    sparse = values.bfloat16().float() * (torch.rand(1000) < 0.1)
    for name in ("pulse", "auto"):
        assert torch.equal(make_codec(name).decode(make_codec(name).encode(sparse), 1000), sparse)


@pytest.mark.parametrize(("name", "bits"), [("fp32", 32), ("bf16", 16), ("int8", 8.1), ("int4", 4.1), ("topk", 0.4454)])
def test_a_payload_takes_the_bits_per_value_that_it_promises(name, bits):
    size = 1 << 18
    assert len(make_codec(name).encode(vector(size, 0))) * 8 / size == pytest.approx(bits, rel=0.02)


@pytest.mark.parametrize("name", CODECS)
@pytest.mark.parametrize("size", [1, 300, 5000])
def test_torn_bytes_are_an_error(name, size):
    codec = make_codec(name)
    values = vector(size, 1) * (torch.rand(size) < 0.3)
    payload = codec.encode(values)
    for torn in (payload[:-1], payload + b"\0", b""):
        with pytest.raises(ValueError, match=r"payload|positions|bytes"):
            codec.decode(torn, size)


def test_the_largest_values_of_every_block_are_kept():
    values = vector(2 * 4096 + 100, 3)
    found = make_codec("topk").decode(make_codec("topk").encode(values), values.numel())
    for begin, width, count in ((0, 4096, 128), (4096, 4096, 128), (8192, 100, 3)):
        block, kept = values[begin : begin + width], found[begin : begin + width]
        assert set(kept.nonzero().view(-1).tolist()) == set(block.abs().topk(count).indices.tolist())
        assert torch.equal(kept.sign()[kept != 0], block.sign()[kept != 0])
        assert len(set(kept[kept != 0].abs().tolist())) == 2


def test_a_share_is_named():
    assert len(make_codec("topk@0.01").encode(vector(40960, 0))) < 0.4 * len(make_codec("topk").encode(vector(40960, 0)))
    for name in ("topk@0.9", "topk@much", "int8@2"):
        with pytest.raises(ConfigError):
            make_codec(name)


@settings(max_examples=60)
@given(size=st.integers(0, 3000), share=st.sampled_from([0.0, 0.001, 0.01, 0.2, 0.9, 1.0]), seed=st.integers(0, 999))
def test_positions_come_back(size, share, seed):
    there = torch.rand(size, generator=torch.Generator().manual_seed(seed)) < share
    packed = pack_positions(there)
    indices, end = unpack_positions(packed + b"more", size)
    assert end == len(packed)
    assert torch.equal(indices, there.nonzero().view(-1))


def test_only_what_bfloat16_weights_show_is_sent():
    weights, update = vector(50_000, 0, 0.02), vector(50_000, 1, 1e-6)
    codec = make_codec("pulse")
    payload = codec.encode_visible(update, weights)
    sent = codec.decode(payload, 50_000)
    shown = visible(update, weights)
    assert 0 < float(shown.float().mean()) < 0.1
    assert torch.equal(sent != 0, shown)
    assert len(payload) < 50_000 * 4 / 15
    same = (weights - sent).bfloat16() == (weights - update).bfloat16()
    assert float(same.float().mean()) > 0.999  # a value is rounded to bfloat16 itself, which a few weights notice


def test_auto_takes_the_shorter_by_density():
    weights, codec = vector(50_000, 0, 0.02), make_codec("auto")
    small, large = vector(50_000, 1, 1e-6), vector(50_000, 1, 1e-2)
    assert len(codec.encode_visible(small, weights)) < 0.11 * len(codec.encode_visible(large, weights))
    assert len(codec.encode_visible(large, weights)) <= len(make_codec("int8").encode(large)) + 1
    assert torch.equal(codec.decode(codec.encode_visible(small, weights), 50_000) != 0, visible(small, weights))


@settings(max_examples=40)
@given(
    size=st.integers(0, 5000),
    scale=st.sampled_from([0.0, 1e-6, 1e-4, 1.0]),
    dtype=st.sampled_from([torch.bfloat16, torch.float16, torch.float32, torch.float64]),
)
def test_a_patch_makes_the_new_weights_bit_for_bit(size, scale, dtype):
    old = vector(size, 0, 0.02).to(dtype)
    new = (old.double() + vector(size, 1, scale)).to(dtype)
    new[: size // 100] = float("nan")
    made = apply_patch(old, make_patch(old, new))
    assert made.dtype == dtype
    assert torch.equal(made.view(torch.uint8), new.view(torch.uint8))


@settings(max_examples=60)
@given(
    before=st.binary(max_size=400),
    after=st.binary(min_size=400, max_size=400),
    dtype=st.sampled_from([torch.float8_e5m2, torch.bool, torch.int16, torch.float32, torch.int64, torch.complex64]),
)
def test_a_patch_is_of_bits_whatever_they_mean(before, after, dtype):
    size = len(before) // dtype.itemsize
    old, new = (to_tensor(data, torch.uint8, size * dtype.itemsize).view(dtype) for data in (before, after))
    assert torch.equal(apply_patch(old, make_patch(old, new)).view(torch.uint8), new.view(torch.uint8))


def test_a_patch_of_something_else_is_refused():
    old = vector(100, 0).bfloat16()
    patch = make_patch(old, old * 2)
    for wrong in (patch[:-3], b"", b"nonsense"):
        with pytest.raises(ValueError, match="patch"):
            apply_patch(old, wrong)
    with pytest.raises(ValueError, match="patch"):
        make_patch(old, old[:50])
    with pytest.raises(ValueError, match="patch"):
        make_patch(old, old.half())
    with pytest.raises(ValueError, match="patch"):
        make_patch(old.cdouble(), old.cdouble())


@pytest.mark.parametrize("size", [0, 1, 100])
def test_a_patch_is_not_unpacked_beyond_what_its_values_may_take(size):
    old = torch.zeros(size, dtype=torch.bfloat16)
    bomb = zlib.compress(bytes(100_000_000), 9)
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match="the patch is cut short, or longer than the"):
            apply_patch(old, bomb)
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("dtype", [torch.int8, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("size", [0, 1, 7, 1000])
def test_a_patch_in_which_every_bit_changes_is_no_longer_than_that(dtype, size):
    noise = torch.randint(0, 256, (size * dtype.itemsize,), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    old, new = noise.view(dtype), (~noise).view(dtype)
    assert torch.equal(apply_patch(old, make_patch(old, new)).view(torch.uint8), ~noise)


@pytest.mark.parametrize("name", ["bf16", "int8", "int4", "topk", "pulse", "auto"])
def test_with_error_feedback_nothing_is_lost(name):
    codec, feedback = make_codec(name), ErrorFeedback()
    weights = vector(5000, 7, 0.02)
    given_, arrived = torch.zeros(5000), torch.zeros(5000)
    for number in range(60):
        update = vector(5000, 7, 1e-4) + vector(5000, number, 1e-5)
        wanted = feedback.added("model", update)
        payload = codec.encode_visible(wanted, weights) if hasattr(codec, "encode_visible") else codec.encode(wanted)
        sent = codec.decode(payload, 5000)
        feedback.keep("model", wanted - sent)
        given_, arrived = given_ + update, arrived + sent
    owed = feedback.state_dict().get("model", torch.zeros(5000))
    torch.testing.assert_close(arrived + owed, given_, rtol=1e-3, atol=1e-6)
    assert (arrived - given_).norm() < 0.35 * given_.norm()


def test_error_feedback_is_taken_over_from_a_state_dict():
    feedback, again = ErrorFeedback(), ErrorFeedback()
    feedback.keep("a", torch.tensor([1.0, 2.0]))
    feedback.keep("b", torch.zeros(2))
    again.load_state_dict(feedback.state_dict())
    assert torch.equal(again.added("a", torch.ones(2)), torch.tensor([2.0, 3.0]))
    assert set(again.state_dict()) == {"a"}
    with pytest.raises(ValueError, match="a residual of 2"):
        again.added("a", torch.ones(3))
