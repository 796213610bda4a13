"""Compiled blocks compute what they compute otherwise: in updates with shared prefixes, in readings, and in rollouts."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from composer_replication.loss import compose_loss
from composer_replication.loss.batch import collate
from composer_replication.loss.forward import enable_checkpointing, sequence_logprobs, update_mode
from composer_replication.loss.forward.modes import compile_blocks
from composer_replication.rollouts.protocol import SampleRequest
from composer_replication.rollouts.transformers_engine import TransformersEngine
from composer_replication.types.errors import ModelError

pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")  # dynamo looks at it
ALL_ON = {"alpha_sdpo": 0.5, "beta_replay": 0.3, "strict": True}


@pytest.fixture
def compiled(new_model):
    """A model, and a copy whose blocks dynamo traces; what it would generate code for runs as it is."""
    torch._dynamo.reset()
    plain = new_model(dtype=torch.float64, layers=12)
    other = copy.deepcopy(plain)
    compile_blocks(other, backend="eager")
    with torch._dynamo.config.patch(fail_on_recompile_limit_hit=True):
        yield plain, other
    torch._dynamo.reset()


@pytest.mark.slow
@pytest.mark.parametrize("checkpointing", [False, True])
def test_gradients_and_readings_are_the_same(compiled, new_maker, checkpointing):
    for model in compiled if checkpointing else ():
        enable_checkpointing(model)
        update_mode(model)
    batches = [collate(*new_maker(seed).everything(), pad_id=0) for seed in range(3)]  # of other lengths
    for batch in batches:
        found = []
        for model in compiled:
            loss = compose_loss(model, batch, **ALL_ON)
            assert loss.fallbacks == {}
            rows = batch["input_ids"], batch["attention_mask"], batch["response_mask"]
            with torch.no_grad():
                found.append([sequence_logprobs(model, *rows), *torch.autograd.grad(loss.total, list(model.parameters()))])
        for a, b in zip(*found, strict=True):
            torch.testing.assert_close(a, b)


def request(number, ids, most, seed):
    return SampleRequest(session=f"s{number}", new_ids=tuple(ids), max_new_tokens=most, seed=seed)


@pytest.mark.slow
def test_rollouts_are_the_same(compiled, tokenizer):
    ids = tokenizer.encode("a turn of some length", add_special_tokens=False)
    sampled = []
    for model in compiled:
        engine = TransformersEngine(model, tokenizer)
        first = engine.sample([request(i, ids, 12, i) for i in range(3)], temperature=1.0)
        more = [request(i, ids[: 3 + i], 8, 9 + i) for i in range(3)]
        sampled.append([sample.ids for sample in (*first, *engine.sample(more, temperature=1.0))])
    assert sampled[0] == sampled[1]


def test_the_names_of_the_weights_stay(compiled):
    plain, other = compiled
    assert plain.state_dict().keys() == other.state_dict().keys()


def test_a_model_that_does_not_name_its_blocks_is_refused():
    with pytest.raises(ModelError, match="Linear does not name its blocks"):
        compile_blocks(nn.Linear(2, 2))
