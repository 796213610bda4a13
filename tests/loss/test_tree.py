"""One pass over a tree of prefixes gives every row what the model gives for the row alone, values and gradients."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from exact_norms import with_exact_norms
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import softmax
from torch.nn.utils.rnn import pad_sequence
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoConfig, FalconConfig, FalconForCausalLM, LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM
from transformers.models.gemma2 import Gemma2Config, Gemma2ForCausalLM

from composer_replication.loss.forward import (
    Rows,
    enable_checkpointing,
    evaluating,
    read_rows,
    sequence_logprobs,
    update_mode,
    why_no_tree,
)
from composer_replication.loss.forward.tree import prefix_tree
from composer_replication.loss.forward.tree_attention import as_mask, tree_attention

SIZES: dict[str, Any] = {"vocab_size": 97, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 3}
SIZES |= {"num_attention_heads": 4, "num_key_value_heads": 2, "bos_token_id": None, "eos_token_id": None, "pad_token_id": 0}
ROWS = [[1, 2, 3, 4, 5], [1, 2, 3, 9], [8, 8], [1, 2, 7], [1, 2, 3, 4, 5], [1, 2, 3, 4, 5, 6, 6], [1, 2], [8]]


def qwen3(**options: Any) -> Any:
    torch.manual_seed(0)
    model = Qwen3ForCausalLM(Qwen3Config(head_dim=8, initializer_range=0.3, **SIZES, **options)).double().eval()
    return with_exact_norms(model)


def padded(rows: list[list[int]]) -> Rows:
    ids = pad_sequence([torch.tensor(row) for row in rows], batch_first=True)
    return Rows(ids, pad_sequence([torch.ones(len(row)) for row in rows], batch_first=True))


sequences = st.lists(st.lists(st.integers(0, 2), max_size=6), max_size=8)


@given(sequences)
@settings(max_examples=300, deadline=None)
def test_a_tree_holds_every_prefix_once(rows: list[list[int]]) -> None:
    tree = prefix_tree([torch.tensor(row, dtype=torch.int64) for row in rows])
    prefixes = {tuple(row[: length + 1]) for row in rows for length in range(len(row))}
    assert len(tree.ids) == len(tree.positions) == len(prefixes)
    for row, place in zip(rows, tree.places, strict=True):
        assert tree.ids[place].tolist() == row
        assert tree.positions[place].tolist() == list(range(len(row)))
    table = tree.segments.tolist()
    assert [start for start, _, _ in table] == [0, *(stop for _, stop, _ in table[:-1])] if table else not len(tree.ids)
    assert not table or table[-1][1] == len(tree.ids)
    for number, (start, stop, before) in enumerate(table):
        assert start < stop
        assert before < number
    for row, place in zip(rows, tree.places, strict=True):
        for at in place.tolist():  # the segments that lead to a token hold what stands before it in its row
            assert [one for one in ancestors(table, at) if one <= at] == place[: row and place.tolist().index(at) + 1].tolist()


def ancestors(table: list[list[int]], token: int) -> list[int]:
    """The tokens of the segments from the beginning to that of a token."""
    number = next(i for i, (start, stop, _) in enumerate(table) if start <= token < stop)
    found: list[int] = []
    while number >= 0:
        start, stop, before = table[number]
        found, number = [*range(start, stop), *found], before
    return found


def test_attention_is_that_under_the_mask_of_the_tree() -> None:
    """Softmax over a token and what leads to it, by hand; with gradient."""
    tree = prefix_tree([torch.tensor(row) for row in ROWS])
    count = len(tree.ids)
    states = [torch.randn(1, 4, count, 8, dtype=torch.float64, requires_grad=True) for _ in range(3)]
    table = tree.segments.tolist()
    allowed = torch.tensor([[key in ancestors(table, token) and key <= token for key in range(count)] for token in range(count)])
    query, key, value = states
    scores = (query @ key.transpose(-1, -2) * 0.3).masked_fill(~allowed, -torch.inf)
    expected = softmax(scores, -1) @ value
    found = tree_attention(query, key, value, as_mask(tree.segments), 0.3)
    torch.testing.assert_close(found, expected)
    weights = torch.randn_like(expected)
    for a, b in zip(*(torch.autograd.grad((x * weights).sum(), states) for x in (found, expected)), strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("checkpointed", [False, True])
def test_several_batches_are_read_as_each_row_alone(checkpointed: bool) -> None:
    model = qwen3()
    alone = copy.deepcopy(model)
    if checkpointed:
        enable_checkpointing(model)
        update_mode(model)
    inputs = [padded(ROWS[:5]), padded(ROWS[5:])]
    calls: list[int] = []
    model.model.layers[0].mlp.register_forward_pre_hook(
        lambda _module, given: calls.append(given[0].shape[0] * given[0].shape[1])
    )
    assert why_no_tree(model) is None
    calls.clear()
    read = read_rows(model, inputs)
    assert calls == [len({tuple(row[: n + 1]) for row in ROWS for n in range(len(row))})], "every prefix once"
    total, expected = torch.zeros((), dtype=torch.float64), torch.zeros((), dtype=torch.float64)
    numbered = [(part, row) for part, (ids, *_) in enumerate(inputs) for row in range(len(ids))]
    for (part, row), tokens in zip(numbered, ROWS, strict=True):
        hidden = alone(input_ids=torch.tensor([tokens])).logits[0, :-1]
        position = torch.arange(1, len(tokens))
        found = read[part].rows(torch.full_like(position, row), position).logits()
        torch.testing.assert_close(found, hidden, rtol=1e-9, atol=1e-12)
        total, expected = total + found.square().sum(), expected + hidden.square().sum()
    gradients = [torch.autograd.grad(value, list(one.parameters())) for value, one in ((total, model), (expected, alone))]
    for a, b in zip(*gradients, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12)


def test_padding_is_no_token() -> None:
    read = read_rows(qwen3(), [padded(ROWS)])[0]
    with pytest.raises(IndexError):
        read.rows(torch.tensor([7]), torch.tensor([3]))


def test_rows_that_share_nothing_are_read_side_by_side() -> None:
    ids = torch.arange(1, 13).view(3, 4)
    (read,) = read_rows(qwen3(), [Rows(ids)])
    assert read.places is None
    assert read.output.shape[:2] == (3, 4)


def test_rows_that_are_padded_on_the_left_are_read_as_they_are() -> None:
    model, (ids, mask, _) = qwen3(), padded(ROWS)
    (read,) = read_rows(model, [Rows(ids.flip(-1), mask.flip(-1))])
    assert read.places is None


def test_the_model_is_otherwise_what_it_was(tmp_path: Any) -> None:
    """Outside trees its attention is the one it had; nothing of it is saved, and copies read trees too."""
    model, (ids, mask, _) = qwen3(), padded(ROWS)
    before, text = model(input_ids=ids, attention_mask=mask).logits, model.generate(ids[:1], max_new_tokens=8, do_sample=False)
    assert why_no_tree(model) is None
    torch.testing.assert_close(model(input_ids=ids, attention_mask=mask).logits, before, rtol=0, atol=0)
    assert torch.equal(model.generate(ids[:1], max_new_tokens=8, do_sample=False), text)
    model.save_pretrained(tmp_path)
    assert "composer" not in (tmp_path / "config.json").read_text()
    assert AutoConfig.from_pretrained(tmp_path)._attn_implementation != model.config._attn_implementation
    assert read_rows(copy.deepcopy(model), [Rows(ids, mask)])[0].places is not None
    model.set_attn_implementation("sdpa")
    assert read_rows(model, [Rows(ids, mask)])[0].places is not None


def window() -> Any:
    return Gemma2ForCausalLM(Gemma2Config(head_dim=8, **SIZES))


def eager() -> Any:
    return qwen3(attn_implementation="eager")


def deaf() -> Any:
    """One layer does not hand its mask on."""
    model = qwen3()
    model.model.layers[1].self_attn.register_forward_pre_hook(
        lambda _module, given, named: (given, named | {"attention_mask": None}), with_kwargs=True
    )
    return model


def unplaced() -> Any:
    """Positions are counted through, whatever is said of them."""
    model = qwen3()
    model.model.rotary_emb.register_forward_pre_hook(lambda _module, given: (given[0], torch.arange(given[0].shape[1])[None]))
    return model


def unplaced_and_coarse() -> Any:
    """The same in bfloat16, where attention does so little that wrong positions would hide in rounding."""
    model = unplaced().to(torch.bfloat16)
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight.mul_(0.005)
    return model


def alibi() -> Any:
    """Reads its mask as one of two dimensions."""
    return FalconForCausalLM(FalconConfig(alibi=True, **SIZES))


def with_sinks() -> Any:
    """Its attention has an option that a tree's has not."""
    model, sinks = qwen3(), {"s_aux": torch.ones(4)}
    for layer in model.model.layers:
        layer.self_attn.register_forward_pre_hook(lambda _module, given, named: (given, named | sinks), with_kwargs=True)
    return model


def dropping() -> Any:
    return LlamaForCausalLM(LlamaConfig(attention_dropout=0.1, **SIZES)).train()


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (window, "some of its layers attend to more or less"),
        (eager, "its attention is eager"),
        (deaf, "not take the tree"),
        (unplaced, "it ignores position_ids"),
        (unplaced_and_coarse, "it ignores position_ids"),
        (with_sinks, "attention over a tree has no s_aux"),
        (alibi, "not take the tree"),
        (dropping, "dropout or noise draws other numbers for each row"),
    ],
)
def test_models_that_cannot_share_prefixes_read_their_rows_whole(make: Any, why: str) -> None:
    model = make()
    kept = model.config._attn_implementation
    assert why in (why_no_tree(model) or "")
    assert model.config._attn_implementation == kept
    (read,) = read_rows(model, [padded(ROWS)])
    assert read.places is None
    with evaluating(model):
        logits = model(input_ids=torch.tensor([ROWS[5]])).logits[0, 5].log_softmax(-1)
        ids, mask, _ = padded(ROWS)
        wanted = torch.zeros_like(ids).index_put((torch.tensor(5), torch.tensor(6)), torch.tensor(1))
        found = sequence_logprobs(model, ids, mask, wanted)[5, 6].to(logits)
        torch.testing.assert_close(found, logits[ROWS[5][6]], rtol=1e-2, atol=1e-4)


def test_under_dropout_that_is_off_prefixes_are_shared() -> None:
    model = dropping()
    update_mode(model)
    assert why_no_tree(model) is None


def test_attention_takes_no_more_than_the_segments_need() -> None:
    """Eight answers to one prompt: half the operations of the padded rows, attention included."""
    model = qwen3().float()
    prompt = torch.randint(1, 97, (400,))
    rows = torch.stack([torch.cat([prompt, torch.randint(1, 97, (100,))]) for _ in range(8)])
    counts = []
    for read in (lambda: read_rows(model, [Rows(rows)])[0].output, lambda: model.model(input_ids=rows).last_hidden_state):
        read()  # the first time proves what the model can
        with FlopCounterMode(display=False) as counter:
            read().sum().backward()
        counts.append(counter.get_total_flops())
    assert counts[0] < 0.5 * counts[1]
