"""A server says which experts of a mixture its tokens went through, and the engine hands that on."""

from __future__ import annotations

import base64
import io
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from mixtures import CHOSEN, mixture_config
from transformers import Qwen3MoeForCausalLM

from composer_replication.loss.forward import enable_router_replay, experts_tensor, forward, routing
from composer_replication.quickstart.policy import tiny_tokenizer
from composer_replication.rollouts.protocol import SampleRequest
from composer_replication.rollouts.serving import ServingEngine, open_server
from composer_replication.rollouts.serving.experts import experts_of_bytes, experts_of_npy
from composer_replication.rollouts.serving.started import VllmOptions
from composer_replication.types.errors import ModelError

sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))
from wire_servers import Backend, WireServer

TOKENIZER = tiny_tokenizer()
PROMPT = tuple(TOKENIZER.encode("def total(prices):\n    return "))
STOP = (TOKENIZER.eos_token_id,)
KINDS: tuple[Literal["vllm", "sglang"], ...] = ("vllm", "sglang")


def mixture(*, says: bool = True) -> Any:
    torch.manual_seed(0)
    config = mixture_config()
    config.vocab_size = len(TOKENIZER)
    config.max_position_embeddings = 256
    model: Any = Qwen3MoeForCausalLM(config).eval()
    if says:
        enable_router_replay(model)
    return model


@contextmanager
def served(kind: Literal["vllm", "sglang"], model: Any, *faults: str, experts: int = CHOSEN) -> Iterator[ServingEngine]:
    with WireServer(kind, Backend(model, TOKENIZER, faults)) as server:
        engine = ServingEngine(open_server(kind, server.url, attempts=2), stop_ids=STOP, probe_ids=PROMPT, experts=experts)
        try:
            yield engine
        finally:
            engine.end()


def ask(ids: tuple[int, ...]) -> SampleRequest:
    return SampleRequest(session="a", new_ids=ids, max_new_tokens=6, seed=3)


@pytest.mark.parametrize("kind", KINDS)
def test_turns_come_with_the_experts_of_the_whole_session(kind: Literal["vllm", "sglang"]) -> None:
    model = mixture()
    with served(kind, model) as engine:
        engine.check()
        (first,) = engine.sample([ask(PROMPT)], temperature=1.0)
        (second,) = engine.sample([ask(PROMPT[:3])], temperature=1.0)
    for ids, sample in (((*PROMPT, *first.ids), first), ((*PROMPT, *first.ids, *PROMPT[:3], *second.ids), second)):
        assert sample.experts is not None
        with torch.no_grad(), routing() as seen:
            forward(model, torch.tensor([ids]), None)
        assert experts_tensor(sample.experts).equal(seen.experts()[:-1])


@pytest.mark.parametrize("kind", KINDS)
def test_a_server_that_says_nothing_or_too_little_is_found_out(kind: Literal["vllm", "sglang"]) -> None:
    with (
        served(kind, mixture(says=False)) as engine,
        pytest.raises(ModelError, match=r"(?s)without the experts .* --enable-return-routed-experts"),
    ):
        engine.check()
    with served(kind, mixture(says=False), experts=0) as engine:
        engine.check()
        assert engine.sample([ask(PROMPT)], temperature=1.0)[0].experts is None, "nobody asked"
    with served(kind, mixture(), "few_experts") as engine, pytest.raises(ModelError, match="experts"):
        engine.check()
    with served(kind, mixture(), experts=3) as engine, pytest.raises(ModelError, match="experts"):
        engine.check()


def npy(array: Any) -> str:
    held = io.BytesIO()
    np.save(held, array, allow_pickle=True)
    return base64.b64encode(held.getvalue()).decode()


@pytest.mark.parametrize(
    "text", [None, 7, "", "!!", "AAAA", npy(np.zeros((2, 2))), npy(np.zeros((2, 2, 2))), npy(np.array([{}]))]
)
def test_what_is_no_such_array_is_refused(text: Any) -> None:
    with pytest.raises(ValueError, match=r".+"):
        experts_of_npy(text)


def test_widths_and_orders_of_bytes_are_read() -> None:
    whole = np.arange(12).reshape(3, 2, 2)
    for kind in ("uint8", "uint16", "<i4", ">i2", "int64"):
        assert experts_tensor(experts_of_npy(npy(whole.astype(kind)))).tolist() == whole.tolist()
    text = base64.b64encode(whole.astype("<i4").tobytes()).decode()
    assert experts_tensor(experts_of_bytes(text, None, 2, 3)).tolist() == whole.tolist()
    for kind in ("uint8", "uint16", "int32"):
        text = base64.b64encode(whole.astype(np.dtype(kind).newbyteorder("<")).tobytes()).decode()
        assert experts_tensor(experts_of_bytes(text, kind, 2, 3)).tolist() == whole.tolist()
    with pytest.raises(ValueError, match="no integers"):
        experts_of_bytes(text, "no such type", 2, 3)
    for chosen, tokens in ((5, 3), (2, 0), (2, 7)):
        with pytest.raises(ValueError, match="integers are not"):
            experts_of_bytes(text, None, chosen, tokens)
    with pytest.raises(ValueError, match="no integers"):
        experts_of_bytes(None, None, 2, 3)


def test_a_server_of_a_run_is_started_to_say_them() -> None:
    words = VllmOptions(model="m", dtype="bfloat16", window=64, says_experts=True).words(1, "policy")
    assert "--enable-return-routed-experts" in words
    assert "--enable-return-routed-experts" not in VllmOptions(model="m", dtype="bfloat16", window=64).words(1, "policy")
