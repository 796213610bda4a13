"""Token classification: what a score depends on, where the gradient goes, what is refused."""

from __future__ import annotations

import json
import logging

import pytest
import torch
from prm_world import RENDERER, TOKENIZER, config, corpus, model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, BertConfig, ViTConfig

from composer_replication.loss.forward.models import save_policy
from composer_replication.prm import IGNORED, encode, load_prm, make_prm, score, start_prm
from composer_replication.prm.model import pad, parts, step_logits
from composer_replication.prm.train import step_loss
from composer_replication.types.errors import ModelError

PAD = TOKENIZER.pad_token_id


def examples(tasks=3):
    """Of two lengths."""
    both = [corpus(tasks=tasks, siblings=1, turns=turns) for turns in (1, 3)]
    return [e for found, labels in both for t in found for e in encode(t, RENDERER, labels[t.trajectory_id])]


def gradient(network, *batches):
    network.zero_grad()
    for batch in batches:
        step_loss(network, batch).backward()
    return torch.cat([p.grad.flatten() for p in network.parameters()])


def test_what_is_masked_has_no_influence():
    """Padding, its length, tokens after the last labelled step and their logits: not on the loss, not on any gradient."""
    network, (first, second) = model(), examples(tasks=1)
    whole = gradient(network, pad([first, second], PAD))
    assert whole.abs().sum() > 0
    torch.testing.assert_close(gradient(network, pad([first], PAD), pad([second], PAD)), whole)
    longer = pad([first, second], PAD)
    extra = torch.randint(5, 200, (2, 9))
    longer["input_ids"] = torch.cat([longer["input_ids"], extra], 1)
    longer["attention_mask"] = torch.cat([longer["attention_mask"], torch.zeros_like(extra)], 1)
    longer["labels"] = torch.cat([longer["labels"], torch.full(extra.shape, IGNORED)], 1)
    torch.testing.assert_close(gradient(network, longer), whole)
    longer["attention_mask"][:] = 1  # what follows a step is not read, even where it is no padding
    torch.testing.assert_close(gradient(network, longer), whole)


def test_the_gradient_enters_at_labelled_tokens_only():
    network, batch = model(), pad(examples(), PAD)
    batch["labels"][0][batch["labels"][0] != IGNORED] = IGNORED
    seen = []
    network.score.register_forward_hook(lambda _module, _inputs, logits: (logits.retain_grad(), seen.append(logits))[0])
    step_loss(network, batch).backward()
    (logits,) = seen
    assert torch.equal(logits.grad.abs().sum(-1) > 0, batch["labels"] != IGNORED)


def test_the_loss_is_the_cross_entropy_of_the_two_labels():
    network, batch = model(), pad(examples(), PAD)
    labelled = batch["labels"] != IGNORED
    logits = network(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits[labelled]
    expected = torch.nn.functional.cross_entropy(logits, batch["labels"][labelled].long(), reduction="sum")
    torch.testing.assert_close(step_loss(network, batch), expected)


def test_scores_are_the_same_in_any_company_and_at_any_length():
    network, found = model(), examples(tasks=4)
    alone = [score(network, [e], pad_id=PAD)[0] for e in found]
    done = []
    together = score(network, found, pad_id=PAD, tokens=500, on_done=done.append)
    assert sum(done) == len(found)
    assert [len(row) for row in together] == [len(e.steps) for e in found]
    for one, other in zip(alone, together, strict=True):
        assert one == pytest.approx(other, abs=1e-5)
    positions = torch.zeros(1, len(found[0].input_ids), dtype=torch.bool)
    positions[0, found[0].steps[0].end] = True
    cut = {k: v[:, : found[0].steps[0].end + 1] for k, v in pad(found[:1], PAD).items()}
    value = step_logits(network, cut, positions[:, : found[0].steps[0].end + 1]).sigmoid().detach()
    assert float(value) == pytest.approx(alone[0][0], abs=1e-5)


def test_parts_hold_every_example_once_and_no_more_than_fits():
    found = examples(tasks=5)
    made = list(parts(found, 300))
    assert sorted(i for part in made for i in part) == list(range(len(found)))
    assert all(len(part) * max(len(found[i].input_ids) for i in part) <= 300 or len(part) == 1 for part in made)
    assert len(made) > 1


def test_a_saved_model_scores_as_before(tmp_path):
    network, found = model(seed=3), examples()
    save_policy(network, TOKENIZER, tmp_path)
    loaded, tokenizer = load_prm(str(tmp_path))
    assert score(loaded, found, pad_id=tokenizer.pad_token_id) == score(network, found, pad_id=PAD)


def test_a_policy_gets_a_new_head_and_is_no_reward_model(tmp_path):
    with torch.random.fork_rng():
        policy = AutoModelForCausalLM.from_config(config())
    save_policy(policy, TOKENIZER, tmp_path)
    one, _ = start_prm(str(tmp_path), seed=1)
    same, _ = start_prm(str(tmp_path), seed=1)
    other, _ = start_prm(str(tmp_path), seed=2)
    assert torch.equal(one.model.embed_tokens.weight, policy.model.embed_tokens.weight)
    assert torch.equal(one.score.weight, same.score.weight)
    assert not torch.equal(one.score.weight, other.score.weight)
    with pytest.raises(ModelError, match="not a process reward model"):
        load_prm(str(tmp_path))


@pytest.fixture
def said():
    """What transformers logs."""
    records = []
    handler = logging.Handler()
    handler.emit = lambda record: records.append(record.getMessage())
    logging.getLogger("transformers").addHandler(handler)
    yield records
    logging.getLogger("transformers").removeHandler(handler)


def test_that_the_head_is_new_is_no_news_but_missing_weights_are(tmp_path, said):
    with torch.random.fork_rng():
        save_policy(AutoModelForCausalLM.from_config(config()), TOKENIZER, tmp_path)
    start_prm(str(tmp_path))
    assert said == []
    weights = load_file(tmp_path / "model.safetensors")
    save_file({name: w for name, w in weights.items() if "q_proj" not in name}, tmp_path / "model.safetensors", {"format": "pt"})
    start_prm(str(tmp_path))
    assert ["LOAD REPORT" in text and "q_proj" in text for text in said] == [True]


def test_a_trace_longer_than_the_tokenizer_expects_is_no_news(tmp_path, said):
    save_policy(model(), TOKENIZER, tmp_path)
    settings = tmp_path / "tokenizer_config.json"
    settings.write_text(json.dumps({**json.loads(settings.read_text()), "model_max_length": 4}))
    for tokenizer in (start_prm(str(tmp_path))[1], load_prm(str(tmp_path))[1]):
        assert len(tokenizer.encode("longer than that")) > tokenizer.model_max_length == 4
    assert said == []


def test_a_model_that_reads_ahead_is_refused():
    bert = BertConfig(vocab_size=300, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2)
    with pytest.raises(ModelError, match="not causal"):
        make_prm(bert)


def test_an_architecture_without_the_head_is_refused(tmp_path):
    with pytest.raises(ModelError, match="no token classification head"):
        make_prm(ViTConfig())
    with pytest.raises(ModelError, match="no such folder"):
        start_prm(str(tmp_path / "none"))
