"""The engine records the experts that each token of a session goes through, and the learner sends it through them again."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from mixtures import EXPERTS, mixture_config
from torch import Tensor
from transformers import Qwen3MoeForCausalLM

from composer_replication.config import load_config
from composer_replication.loss.batch import collate
from composer_replication.loss.forward import action_entropies, enable_router_replay, experts_tensor, forward, routing
from composer_replication.loss.forward.models import make_policy
from composer_replication.rollouts.protocol import Sample, SampleRequest
from composer_replication.rollouts.transformers_engine import TransformersEngine
from composer_replication.tokens import byte_level_tokenizer
from composer_replication.trainer.learning.learner import Learner
from composer_replication.types import StopReason, Trajectory, Turn, from_json, to_json
from composer_replication.types.routed_experts import RoutedExperts

STOPS = (5, 17, 33, 40)
CHATS = ([9, 8, 7, 6, 1, 2, 3], [9, 8], [9, 8, 7, 6, 1, 2, 3])


def mixture(**options: Any) -> Any:
    torch.manual_seed(0)
    config = mixture_config()
    for name, value in options.items():
        setattr(config, name, value)
    model: Any = Qwen3MoeForCausalLM(config).double().eval()
    model.set_experts_implementation("eager")  # the grouped product has no float64
    enable_router_replay(model)
    return model


def of_the_whole(model: Any, ids: list[int]) -> Tensor:
    with torch.no_grad(), routing() as seen:
        forward(model, torch.tensor([ids]), None)
    return seen.experts()


def turns(engine: TransformersEngine, count: int, tokens: int = 12) -> list[tuple[list[int], Sample]]:
    """Sample turns of three sessions, two of which begin alike; return what each has read and sampled, and its last."""
    contexts: list[list[int]] = [[] for _ in CHATS]
    samples: list[Sample] = []
    for turn in range(count):
        new = [chat if turn == 0 else [20 + turn, 21 + number] for number, chat in enumerate(CHATS)]
        requests = [
            SampleRequest(session=str(n), new_ids=tuple(ids), max_new_tokens=tokens, seed=10 * turn + n)
            for n, ids in enumerate(new)
        ]
        samples = engine.sample(requests, temperature=1.0)
        for context, ids, sample in zip(contexts, new, samples, strict=True):
            context += [*ids, *sample.ids]
    return list(zip(contexts, samples, strict=True))


@pytest.mark.parametrize("window", [None, 6], ids=["sessions", "recomputed"])
@pytest.mark.parametrize("count", [1, 3])
def test_they_are_those_of_a_pass_over_the_whole(count: int, window: int | None) -> None:
    options = {"sliding_window": window, "use_sliding_window": True, "layer_types": ["sliding_attention"] * 2} if window else {}
    model = mixture(**options)
    engine = TransformersEngine(model, byte_level_tokenizer(), stop_ids=STOPS)
    assert engine.cache_mode == ("recompute" if window else "session")
    found = turns(engine, count)
    assert len({len(ids) for ids, _ in found}) > 1, "rows end at other places"
    for ids, sample in found:
        assert sample.experts is not None
        recorded = experts_tensor(sample.experts)
        assert len(recorded) == len(ids) - 1, "the last token was not read any more"
        assert recorded.equal(of_the_whole(model, ids)[:-1])


def test_without_it_nothing_is_recorded() -> None:
    torch.manual_seed(0)
    model: Any = Qwen3MoeForCausalLM(mixture_config()).eval()
    (_, sample), *_ = turns(TransformersEngine(model, byte_level_tokenizer(), stop_ids=STOPS), 1)
    assert sample.experts is None


def trajectory(number: int, ids: list[int], sample: Sample) -> Trajectory:
    """A rollout of one turn."""
    prompt = ids[: len(ids) - len(sample.ids)]
    return Trajectory(
        trajectory_id=f"0/task/{number}",
        task_id="task",
        policy_version=0,
        messages=(),
        tools=(),
        prompt_ids=tuple(prompt),
        turns=(Turn(action_ids=sample.ids, logprobs=sample.logprobs, text=""),),
        stop_reason=StopReason.NO_TOOL_CALL,
        temperature=1.0,
        reward=1.0,
        experts=None if sample.experts is None else sample.experts.written(),
    )


def test_a_policy_whose_router_is_rounded_learns_through_the_sampler_s_experts(run_file: Path) -> None:
    words = ["--loss.hint.weight", "0", "--loss.replay.weight", "0", "--model.router_replay", "true"]
    config = load_config(run_file, words)
    torch.manual_seed(0)
    policy: Any = make_policy(config.model, mixture_config())
    engine = TransformersEngine(policy, byte_level_tokenizer(), stop_ids=STOPS)
    made = [trajectory(number, *one) for number, one in enumerate(turns(engine, 1))]
    made = [from_json(Trajectory, json.loads(json.dumps(to_json(one)))) for one in made]
    batch = collate(made, [1.0, -1.0, 0.5], pad_id=0)
    assert batch["routed_experts"].shape[:2] == batch["input_ids"].shape
    with torch.no_grad():  # the sampler's was another precision
        for layer in policy.model.layers:
            layer.mlp.gate.weight.add_(0.02 * torch.randn_like(layer.mlp.gate.weight))
    entropies = action_entropies(policy, made)
    assert action_entropies(policy, [replace(one, experts=None) for one in made]) != entropies
    distances = {}
    for way in ("given", "chosen"):
        rows = batch if way == "given" else {key: value for key, value in batch.items() if key != "routed_experts"}
        learner = Learner(make_policy(config.model, mixture_config()), config)
        learner.policy.load_state_dict(policy.state_dict())
        metrics = learner.update(dict(rows)).metrics
        distances[way] = abs(metrics["rlvr/ratio/mean"] - 1.0)
        assert (metrics.get("routing/changed", 0.0) > 0.0) == (way == "given")
    assert distances["given"] < 0.3 * distances["chosen"], distances


def test_the_reference_goes_through_them_too(run_file: Path) -> None:
    """Else a policy would be held to the noise of its router."""
    words = [
        "--loss.hint.weight",
        "0",
        "--loss.replay.weight",
        "0",
        "--model.router_replay",
        "true",
        "--loss.rlvr.kl_beta",
        "0.1",
    ]
    config = load_config(run_file, words)
    torch.manual_seed(0)
    learner = Learner(make_policy(config.model, mixture_config()), config)
    made = [
        trajectory(n, *one)
        for n, one in enumerate(turns(TransformersEngine(learner.policy, byte_level_tokenizer(), stop_ids=STOPS), 1))
    ]
    batch = collate(made, [1.0, -1.0, 0.5], pad_id=0)
    given = batch["routed_experts"]
    batch["routed_experts"] = torch.where(given < 0, given, (given + 1) % EXPERTS)  # not what either would choose
    assert learner.update(batch).metrics["rlvr/kl_ref/mean"] == pytest.approx(0.0, abs=1e-9)


def test_experts_of_two_models_are_no_batch() -> None:
    found = turns(TransformersEngine(mixture(), byte_level_tokenizer(), stop_ids=STOPS), 1)
    one, other, _ = [trajectory(number, *some) for number, some in enumerate(found)]
    assert one.experts is not None
    cut = experts_tensor(one.experts)[:, :1]
    odd = replace(one, experts=RoutedExperts.of(cut.contiguous().numpy().tobytes(), (len(cut), 1, 2)))
    with pytest.raises(ValueError, match="experts of several models"):
        collate([odd, other], [1.0, 1.0], pad_id=0)
    unknown = collate([replace(one, experts=None), other], [1.0, 1.0], pad_id=0)["routed_experts"]
    assert unknown[0].eq(-1).all()
    assert not unknown[1].eq(-1).all()


@pytest.mark.parametrize("data", ["", "!", "eJwDAAAAAAE=", None])
def test_damaged_experts_are_refused(data: str | None) -> None:
    whole = RoutedExperts.of(b"\1\0" * 12, (3, 2, 2))
    assert whole.raw() == b"\1\0" * 12
    bad = replace(whole, shape=(2, 2, 2)) if data is None else replace(whole, data=data)
    with pytest.raises(ValueError, match="routed experts"):
        bad.raw()
