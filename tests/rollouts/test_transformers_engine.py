from __future__ import annotations

import gc
import weakref

import pytest
import torch
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    Lfm2Config,
    Lfm2ForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MambaConfig,
    MambaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
)

from composer_replication.config import RunConfig
from composer_replication.rollouts import transformers_engine
from composer_replication.rollouts.protocol import SampleRequest
from composer_replication.rollouts.sampling import draw, uniforms
from composer_replication.rollouts.transformers_engine import PREFILL_TOKENS, TransformersEngine
from composer_replication.tokens import byte_level_tokenizer
from composer_replication.trainer.planning import plan
from composer_replication.trainer.planning.live_bytes import LiveBytes
from composer_replication.types.errors import ModelError

VOCAB, NEVER, STOPS = 64, 999, (5, 17, 33, 40)
SMALL = {"vocab_size": VOCAB, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
SMALL |= {"num_key_value_heads": 2, "max_position_embeddings": 256, "pad_token_id": 0, "eos_token_id": None, "bos_token_id": None}


def make(kind: str):
    torch.manual_seed(7)
    match kind:
        case "qwen3":
            model = Qwen3ForCausalLM(Qwen3Config(**SMALL, head_dim=8))
        case "qwen3-eager":
            model = Qwen3ForCausalLM(Qwen3Config(**SMALL, head_dim=8, attn_implementation="eager"))
        case "llama":
            model = LlamaForCausalLM(LlamaConfig(**SMALL))
        case "gpt2":
            model = GPT2LMHeadModel(
                GPT2Config(vocab_size=VOCAB, n_embd=32, n_layer=2, n_head=4, n_positions=256, eos_token_id=None)
            )
        case "mistral-sliding":
            model = MistralForCausalLM(MistralConfig(**SMALL, sliding_window=6))
        case "lfm2-convolutions":
            model = Lfm2ForCausalLM(Lfm2Config(**SMALL, layer_types=["conv", "full_attention"]))
    with torch.no_grad():  # sharpen: random tiny models are otherwise nearly uniform, and rounding would decide an argmax
        for p in model.parameters():
            p.mul_(2.5)
    model.generation_config.eos_token_id = None
    return model.eval()


def engine_of(model, stops=(NEVER,)):
    return TransformersEngine(model, byte_level_tokenizer(), stop_ids=stops)


def request(name, ids, *, tokens=9, seed=0):
    return SampleRequest(session=name, new_ids=tuple(ids), max_new_tokens=tokens, seed=seed)


def random_ids(generator, low, high):
    n = int(torch.randint(low, high + 1, (1,), generator=generator))
    return torch.randint(1, VOCAB, (n,), generator=generator).tolist()


def forced_logprobs(model, context, action, temperature):
    logits = model(torch.tensor([context + action])).logits[0, len(context) - 1 : -1].float()
    logprobs = torch.log_softmax(logits / temperature if temperature else logits, -1)
    return logprobs.gather(1, torch.tensor(action)[:, None])[:, 0]


@pytest.mark.parametrize("kind", ["qwen3", "qwen3-eager", "llama", "gpt2", "mistral-sliding"])
def test_greedy_is_generate_token_for_token(kind):
    model, g = make(kind), torch.Generator().manual_seed(1)
    prompts = [random_ids(g, 3, 30) for _ in range(6)]
    samples = engine_of(model).sample([request(str(i), p, tokens=20) for i, p in enumerate(prompts)], temperature=0)
    for prompt, sample in zip(prompts, samples, strict=True):
        expected = model.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
            do_sample=False,
            max_new_tokens=20,
        )[0, len(prompt) :]
        assert sample.ids == tuple(expected.tolist())
        assert not sample.finished
    assert len({s.ids for s in samples}) > 1


@pytest.mark.parametrize("kind", ["qwen3", "qwen3-eager", "llama", "gpt2", "mistral-sliding", "lfm2-convolutions"])
@pytest.mark.parametrize("temperature", [0.7, 0.0])
@pytest.mark.parametrize("at_once", [PREFILL_TOKENS, 10], ids=["at once", "ahead"])
@torch.no_grad()
def test_logprobs_are_those_of_a_full_forward_over_ragged_turns(kind, temperature, at_once, monkeypatch):
    """Several turns; sessions come and go between calls, in another order, with different budgets and observation lengths. What
    is new to them is read in one pass, or in several."""
    monkeypatch.setattr(transformers_engine, "PREFILL_TOKENS", at_once)
    model, g = make(kind), torch.Generator().manual_seed(2)
    engine = engine_of(model, STOPS)
    contexts: dict[str, list[int]] = {}
    finished = 0
    for turn in range(4):
        for i in range(3):
            contexts[f"{turn}-{i}"] = []
        names = [n for i, n in enumerate(reversed(contexts)) if turn == 0 or (i + turn) % 3]
        requests = [request(n, random_ids(g, 1, 12), tokens=1 + 3 * (i % 5), seed=turn * 100 + i) for i, n in enumerate(names)]
        for r, sample in zip(requests, engine.sample(requests, temperature=temperature), strict=True):
            context = contexts[r.session] + list(r.new_ids)
            assert sample.finished == (sample.ids[-1] in STOPS)
            assert not set(STOPS) & set(sample.ids[:-1])
            assert sample.finished or len(sample.ids) == r.max_new_tokens
            expected = forced_logprobs(model, context, list(sample.ids), temperature)
            torch.testing.assert_close(torch.tensor(sample.logprobs), expected, atol=1e-4, rtol=0)
            contexts[r.session] = context + list(sample.ids)
            finished += sample.finished
    assert engine.cache_mode == ("session" if kind in ("qwen3", "qwen3-eager", "llama", "gpt2") else "recompute")
    assert finished or temperature == 0


def test_same_batch_same_bits_and_other_neighbours_same_tokens():
    model, g = make("qwen3"), torch.Generator().manual_seed(3)
    first = [request(str(i), random_ids(g, 3, 20), tokens=12, seed=50 + i) for i in range(7)]
    second = [request(str(i), random_ids(g, 3, 9), tokens=12, seed=90 + i) for i in range(7)]
    runs = []
    for _ in range(2):
        engine = engine_of(model, STOPS)
        runs.append([engine.sample(first, temperature=1.0), engine.sample(second, temperature=1.0)])
    assert runs[0] == runs[1]
    alone = engine_of(model, STOPS)
    for i in reversed(range(7)):
        for turn, requests in enumerate((first, second)):
            (sample,) = alone.sample([requests[i]], temperature=1.0)
            assert sample.ids == runs[0][turn][i].ids
            assert sample.logprobs == pytest.approx(runs[0][turn][i].logprobs, abs=1e-4)
    assert len({s.ids for s in runs[0][0]}) == 7


def test_siblings_share_a_prompt_and_draw_for_themselves():
    model = make("qwen3")
    prompt, other = list(range(1, 12)), list(range(20, 40))
    mixed = [request(f"a{i}", prompt, seed=i) for i in range(3)] + [request("b", other, seed=9)] + [request("a3", prompt, seed=0)]
    engine = engine_of(model)
    samples = engine.sample(mixed, temperature=1.0)
    assert samples[0].ids == samples[4].ids, "same prompt, same seed"
    assert samples[0].ids != samples[1].ids
    for r, sample in zip(mixed, samples, strict=True):
        (alone,) = engine_of(model).sample([r], temperature=1.0)
        assert alone.ids == sample.ids
    follow_ups = engine.sample([request("a0", [3]), request("b", [3])], temperature=0)
    for r, before, after in ((mixed[0], samples[0], follow_ups[0]), (mixed[3], samples[3], follow_ups[1])):
        (fresh,) = engine_of(model).sample([request("x", [*r.new_ids, *before.ids, 3])], temperature=0)
        assert fresh.ids == after.ids


@pytest.mark.parametrize("kind", ["qwen3", "mistral-sliding"])
def test_close_frees_the_cache_and_reset_forgets_the_weights(kind):
    model = make(kind)
    engine = engine_of(model)
    engine.sample([request("a", [1, 2, 3]), request("b", [1, 2, 3, 4])], temperature=1.0)
    tensors = {n: [t for layer in s.layers for t in layer] for n, s in engine._sessions.items()}
    assert all(t.untyped_storage().nbytes() == t.nbytes for ts in tensors.values() for t in ts), (
        "no session holds another's memory"
    )
    references = {n: [weakref.ref(t) for t in ts] for n, ts in tensors.items()}
    assert len(references["a"]) == (4 if kind == "qwen3" else 0)
    del tensors
    engine.close(["a", "never opened"])
    gc.collect()
    assert len(engine._sessions) == 1
    assert all(r() is None for r in references["a"])
    assert all(r() is not None for r in references["b"])

    with torch.no_grad():
        for p in model.parameters():
            p.mul_(-1.1)
    engine.reset()
    assert len(engine._sessions) == 0
    (sample,) = engine.sample([request("a", [1, 2, 3], tokens=4)], temperature=1.0)
    with torch.no_grad():
        expected = forced_logprobs(model, [1, 2, 3], list(sample.ids), 1.0)
    torch.testing.assert_close(torch.tensor(sample.logprobs), expected, atol=1e-4, rtol=0)


def test_training_mode_is_restored_and_no_graph_is_kept():
    model = make("gpt2").train()
    samples = [engine_of(model).sample([request("a", [1, 2])], temperature=1.0) for _ in range(2)]
    assert samples[0] == samples[1], "no dropout while sampling"
    assert model.training
    loss = model(torch.tensor([[1, 2, 3]]), labels=torch.tensor([[1, 2, 3]])).loss
    loss.backward()


def test_errors_name_the_fix():
    with pytest.raises(ModelError, match="encoder-decoder"):
        engine_of(T5ForConditionalGeneration(T5Config(vocab_size=9, d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2)))
    with pytest.raises(ModelError, match=r"no attention layer|neither `cache` nor `past_key_values`"):
        engine_of(MambaForCausalLM(MambaConfig(vocab_size=VOCAB, hidden_size=32, num_hidden_layers=1, state_size=4)))
    model = make("qwen3")
    with pytest.raises(ModelError, match="no token ends a turn"):
        TransformersEngine(model, byte_level_tokenizer(), stop_ids=[])
    engine = engine_of(model)
    assert engine.context_window == 256
    with pytest.raises(ModelError, match="has 256") as error:
        engine.sample([request("a", [1] * 250, tokens=9)], temperature=1.0)
    assert error.value.fix == "lower rollout.context_tokens"
    with torch.no_grad():
        model.model.norm.weight.fill_(float("nan"))
    for temperature in (1.0, 0.0):
        with pytest.raises(ModelError, match="not finite"):
            engine.sample([request("a", [1, 2], tokens=3)], temperature=temperature)


def test_exhausted_memory_names_what_to_lower(monkeypatch):
    engine = engine_of(make("qwen3"))

    def exhausted(*_args):
        raise torch.OutOfMemoryError("no room")

    monkeypatch.setattr(engine, "_forward", exhausted)
    with pytest.raises(ModelError, match="while sampling 1 turns at once: no room"):
        engine.sample([request("a", [1, 2])], temperature=1.0)


def test_a_session_whose_call_failed_is_not_taken_for_a_new_one(monkeypatch):
    """Its keys were on their way into the batch: to go on without them would answer another conversation."""
    engine = engine_of(make("qwen3"))
    engine.sample([request("a", [1, 2])], temperature=1.0)

    def exhausted(*_args):
        raise torch.OutOfMemoryError("no room")

    with monkeypatch.context() as patch:
        patch.setattr(engine, "_forward", exhausted)
        with pytest.raises(ModelError, match="no room"):
            engine.sample([request("a", [3]), request("b", [1, 2])], temperature=1.0)
    with pytest.raises(ModelError, match="session 'a' was lost by a call that failed"):
        engine.sample([request("a", [3])], temperature=1.0)
    assert engine.sample([request("b", [1, 2])], temperature=1.0), "it had no state yet"
    engine.close(["a"])
    assert engine.sample([request("a", [1, 2])], temperature=1.0)


@pytest.mark.slow
@pytest.mark.parametrize("cohorts", [1, 2])
def test_keys_and_values_take_what_the_plan_says(cohorts, monkeypatch):
    """Eight rows that become as long as they may, read and sampled cohort by cohort."""
    for module in (transformers_engine, plan):
        monkeypatch.setattr(module, "PREFILL_TOKENS", 256)
    layers, rollouts, turn, context = 8, 8, 16, 512
    shape = SMALL | {"num_hidden_layers": layers, "max_position_embeddings": 4096}
    engine = engine_of(Qwen3ForCausalLM(Qwen3Config(**shape, head_dim=8)).eval())
    g = torch.Generator().manual_seed(1)
    of_a_token = layers * 2 * (2 * 8) * 4
    with LiveBytes(torch.device("cpu")) as live:
        for new in (context // 2, context // 2 - 2 * turn):
            for cohort in range(cohorts):
                requests = [
                    request(str(i), torch.randint(1, VOCAB, (new,), generator=g).tolist(), tokens=turn, seed=i)
                    for i in range(rollouts)[cohort::cohorts]
                ]
                engine.sample(requests, temperature=1.0)
        peak = live.peak
    rollout = {"context_tokens": context, "turn_tokens": turn, "cohorts": cohorts}
    config = RunConfig.model_validate({"rollout": rollout, "model": {"path": "made"}, "tasks": {"train": "tasks"}})
    planned = plan.cache_tokens(config, context, rollouts, layers) * of_a_token
    reading = 256 * 6 * 48 * 4  # a few tensors as wide as the feed-forward layer
    assert planned / 1.3 < peak < planned + reading


def test_stop_tokens_come_from_config_tokenizer_and_template():
    model = make("qwen3")
    model.generation_config.eos_token_id = [7, 9]
    engine = TransformersEngine(model, byte_level_tokenizer())
    assert engine._stop.tolist() == [2, 7, 9]


def test_draws_follow_the_distribution():
    logits = torch.tensor([[0.0, 1.0, float("-inf"), 2.0]]).repeat(40_000, 1)
    for temperature in (0.5, 1.0, 2.0):
        uniform = uniforms([11], 40_000, torch.device("cpu"))[0]
        ids, logprobs = draw(logits, uniform, temperature)
        p = torch.softmax(logits[0] / temperature, -1)
        frequencies = torch.bincount(ids, minlength=4) / 40_000
        assert frequencies[2] == 0
        assert (frequencies - p).abs().max() < 4 * 0.5 / 200, "four standard errors"
        torch.testing.assert_close(logprobs, p.log()[ids])
    greedy, _ = draw(logits[:1], torch.zeros(1, dtype=torch.float64), 0.0)
    assert greedy.tolist() == [3]
    edges = torch.tensor([0.0, 1 - 2**-53], dtype=torch.float64)
    ids, _ = draw(torch.tensor([[float("-inf"), 0.0, 0.0, float("-inf")]]).repeat(2, 1), edges, 1.0)
    assert ids.tolist() == [1, 2], "impossible ids are not drawn at either end"
