"""Reading a model up to its head: what the whole model says."""

from __future__ import annotations

import copy
import types

import pytest
import torch
from transformers import (
    CohereConfig,
    CohereForCausalLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    GraniteConfig,
    GraniteForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from composer_replication.loss.forward import (
    FusedRows,
    PlainRows,
    forward,
    sequence_logprobs,
    why_plain,
)
from composer_replication.types.errors import ModelError

VOCABULARY = 97
SIZES = {"vocab_size": VOCABULARY, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
SIZES |= {"num_key_value_heads": 2, "bos_token_id": None, "eos_token_id": None, "pad_token_id": 0}
MODELS = {
    "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(head_dim=8, **SIZES)),
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**SIZES)),
    "cohere, which scales its logits": lambda: CohereForCausalLM(CohereConfig(logit_scale=0.25, **SIZES)),
    "granite, which divides them": lambda: GraniteForCausalLM(GraniteConfig(logits_scaling=4.0, **SIZES)),
    "gemma2, which caps them": lambda: Gemma2ForCausalLM(Gemma2Config(head_dim=8, final_logit_softcapping=0.1, **SIZES)),
    "gpt2": lambda: GPT2LMHeadModel(GPT2Config(vocab_size=VOCABULARY, n_embd=32, n_layer=2, n_head=4, n_positions=64)),
}
IDS = torch.randint(1, VOCABULARY, (2, 40), generator=torch.Generator().manual_seed(0))
MASK = (torch.arange(40) < torch.tensor([[40], [33]])).long()
ROW, POSITION = torch.tensor([0, 1, 1]), torch.tensor([5, 7, 30])


@pytest.fixture(params=MODELS)
def any_model(request):
    torch.manual_seed(0)
    return MODELS[request.param]().eval()


@pytest.fixture
def qwen3():
    torch.manual_seed(0)
    return MODELS["qwen3"]().eval()


def test_the_head_is_described_right(any_model):
    assert why_plain(any_model) is None
    rows = forward(any_model, IDS, MASK).rows(ROW, POSITION)
    assert isinstance(rows, FusedRows)
    expected = any_model(input_ids=IDS, attention_mask=MASK).logits[ROW, POSITION - 1]
    torch.testing.assert_close(rows.logits(), expected)
    assert "forward" not in any_model.get_output_embeddings().__dict__


@pytest.mark.parametrize("what", ["another module", "unknown processing"])
def test_a_head_that_cannot_be_described_keeps_its_own_logits(qwen3, what, monkeypatch):
    if what == "another module":
        qwen3.lm_head = torch.nn.Sequential(qwen3.lm_head)
    else:
        qwen3.lm_head.register_forward_hook(lambda _module, _inputs, output: output**3)
    assert {"another module": "container.Sequential, not", "unknown processing": "are not a linear layer"}[what] in why_plain(
        qwen3
    )
    rows = forward(qwen3, IDS, MASK).rows(ROW, POSITION)
    assert isinstance(rows, PlainRows)
    torch.testing.assert_close(rows.logits(), qwen3(IDS, MASK).logits[ROW, POSITION - 1])
    targets = IDS[ROW, POSITION]
    value, scores = rows.token_loss(targets, lambda logprobs, _rows: -logprobs, 1.0)
    torch.testing.assert_close(value, -rows.logprobs(targets).logprobs.sum())
    assert not scores.logprobs.requires_grad


def test_sequence_logprobs_are_those_of_the_logits(any_model):
    wanted = torch.zeros_like(IDS).index_put((ROW, POSITION), torch.tensor(1))
    found = sequence_logprobs(any_model, IDS, MASK, wanted, 0.7)
    logits = any_model(input_ids=IDS, attention_mask=MASK).logits / 0.7
    expected = logits[:, :-1].log_softmax(-1).gather(-1, IDS[:, 1:, None])[..., 0]
    torch.testing.assert_close(found[:, 1:], torch.where(wanted[:, 1:] != 0, expected, 0.0))


def test_a_copy_of_a_patched_model_is_no_model(qwen3):
    """As TRL patches: what the copy's `forward` calls is still the original's."""
    original = qwen3.forward
    qwen3.forward = types.MethodType(lambda self, **given: original(**given), qwen3)
    assert why_plain(qwen3) is None
    copied = copy.deepcopy(qwen3)
    copied.__dict__.pop("_composer_plain_head")
    with pytest.raises(ModelError, match="never calls its own output head"):
        why_plain(copied)
