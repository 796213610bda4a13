"""Proofs by toploc: what an honest worker computes is accepted, other weights, prompts and texts are refused."""

from __future__ import annotations

import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from composer_replication.types.errors import ConfigError
from composer_replication.weights.proofs import ProofLimits, prove, verify

PROMPT, TOKENS = 24, 96


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    shape = {"hidden_size": 256, "intermediate_size": 768, "num_hidden_layers": 4, "head_dim": 64}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "tie_word_embeddings": True}
    return Qwen3ForCausalLM(Qwen3Config(vocab_size=2048, max_position_embeddings=256, **shape, **heads)).bfloat16().eval()


def states(model, tokens):
    """One forward pass over the whole text."""
    with torch.no_grad():
        return model.model(tokens.unsqueeze(0)).last_hidden_state[0]


def sampled(model, seed=0):
    """A text and its hidden states, token by token with a cache, as a generator computes them."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(0, 2048, (PROMPT,), generator=generator)
    found, cache, fresh = [], None, tokens
    with torch.no_grad():
        while True:
            out = model.model(fresh.unsqueeze(0), past_key_values=cache, use_cache=True)
            cache = out.past_key_values
            found.append(out.last_hidden_state[0])
            if len(tokens) == TOKENS:
                return tokens, torch.cat(found)
            logits = model.lm_head(out.last_hidden_state[0, -1]).float()
            fresh = torch.multinomial(logits.softmax(-1), 1, generator=generator)
            tokens = torch.cat((tokens, fresh))


def changed(model, change):
    other = Qwen3ForCausalLM(model.config).bfloat16().eval()
    other.load_state_dict({name: change(tensor.float()).bfloat16() for name, tensor in model.state_dict().items()})
    return other


def test_an_honest_worker_is_accepted_whatever_its_kernels(model):
    for seed in range(5):
        tokens, hidden = sampled(model, seed)
        proofs = prove(hidden, PROMPT)
        assert [len(proof) for proof in proofs] == [258] * 4
        verdict = verify(states(model, tokens), PROMPT, proofs)
        assert verdict.accepted, verdict
        assert verify(hidden, PROMPT, proofs, ProofLimits(0, 0, 0)).accepted


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda tensor: tensor + 0.1 * tensor.std(unbiased=False) * torch.randn_like(tensor), id="noise"),
        pytest.param(lambda tensor: (tensor / tensor.abs().max() * 7).round() * tensor.abs().max() / 7, id="int4"),
    ],
)
def test_other_weights_are_refused(model, change):
    torch.manual_seed(1)
    other = changed(model, change)
    for seed in range(3):
        tokens, hidden = sampled(other, seed)
        verdict = verify(states(model, tokens), PROMPT, prove(hidden, PROMPT))
        assert not verdict.accepted
        assert verdict.reason.startswith("beyond the limits")


def test_another_prompt_or_text_is_refused(model):
    tokens, hidden = sampled(model)
    proofs = prove(hidden, PROMPT)
    for at in (0, PROMPT):
        wrong = tokens.clone()
        wrong[at] = (wrong[at] + 1) % 2048
        verdict = verify(states(model, wrong), PROMPT, proofs)
        assert not verdict.accepted


def test_whatever_a_worker_sends_is_refused_in_words(model):
    tokens, hidden = sampled(model)
    proofs, own = prove(hidden, PROMPT), states(model, tokens)
    for wrong in (
        [],
        proofs[:-1],
        [b""] * 4,
        [b"\0" * 258] * 4,
        [b"\xff" * 258] * 4,
        [proofs[0][:-1], *proofs[1:]],
        proofs[::-1],
    ):
        assert not verify(own, PROMPT, wrong).accepted
    assert verify(own, PROMPT, proofs[:-1]).reason == "not 4 proofs of 258 bytes"


def test_states_that_cannot_be_proved_are_refused():
    for hidden, prompt, words in (
        (torch.ones(3), 1, "of the shape"),
        (torch.ones(3, 256), 4, "4 of a prompt"),
        (torch.ones(3, 64), 1, "64 wide"),
        (torch.full((3, 256), float("nan")), 1, "not finite"),
    ):
        with pytest.raises(ConfigError, match=words):
            prove(hidden, prompt)
