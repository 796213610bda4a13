from __future__ import annotations

import asyncio
import contextlib
import copy
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import peft
import pytest
import torch

from composer_replication.diloco.store import open_store
from composer_replication.loss.forward.models import save_policy
from composer_replication.quickstart.policy import tiny_model, tiny_tokenizer
from composer_replication.rollouts.serving import KEY_VARIABLE, ServingEngine, SharedFolder, open_server
from composer_replication.rollouts.serving.through_store import ThroughStore
from composer_replication.rollouts.transformers_engine import TransformersEngine
from composer_replication.types.errors import ConfigError, ModelError, StorageError
from composer_replication.weights.follow import follow

sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))
import served_policy
from served_policy import Policy, unlike
from wire_servers import Backend, WireServer

TOKENIZER = tiny_tokenizer()
PROMPT = tuple(TOKENIZER.encode("def total(prices):\n    return "))
STOP = (TOKENIZER.eos_token_id,)
LORA = peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"], init_lora_weights=False, task_type="CAUSAL_LM")
TOLERANCE = 2e-6
"""Between batched and single forward passes in float32."""


def model(seed=0):
    made = tiny_model(TOKENIZER, seed, hidden=32, layers=2)
    with torch.no_grad():
        made.get_output_embeddings().weight.mul_(10)  # sharper than at random
    return made


@pytest.fixture(params=["vllm", "sglang"])
def kind(request):
    return request.param


@contextlib.contextmanager
def serving(kind, *faults, served=None, policy=None, transfer=None, key="", attempts=3, sleeps=False):
    """A server, and an engine at it that the caller has not checked."""
    with WireServer(kind, Backend(served or model(), TOKENIZER, faults, key=key)) as server:
        at = open_server(kind, server.url, attempts=attempts)
        sleeper = at if sleeps else None
        engine = ServingEngine(at, stop_ids=STOP, probe_ids=PROMPT, policy=policy, transfer=transfer, sleeper=sleeper)
        try:
            yield engine, server.backend
        finally:
            engine.end()


def ask(*names, ids=PROMPT, **more):
    return served_policy.ask(ids, *names, **more)


def policy_of(model, **more):
    return Policy(model, TOKENIZER, **more)


@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0, 2.0])
def test_logprobs_are_those_of_the_distribution_sampled_from(kind, temperature):
    with serving(kind) as (engine, backend):
        for sample in engine.sample(ask("a", "b", "c"), temperature=temperature):
            own = policy_of(backend.base).logprobs(PROMPT, sample.ids, temperature or 1.0)
            assert unlike(own, sample.logprobs) < TOLERANCE


def test_greedy_turns_are_those_of_the_trainers_own_engine(kind):
    own = TransformersEngine(model(), TOKENIZER, stop_ids=STOP)
    with serving(kind) as (engine, _):
        new = PROMPT
        for _turn in range(3):
            theirs, ours = (e.sample(ask("a", "b", ids=new), temperature=0.0) for e in (engine, own))
            assert [s.ids for s in theirs] == [s.ids for s in ours]
            assert [s.finished for s in theirs] == [s.finished for s in ours]
            new = tuple(TOKENIZER.encode("\nnext: "))


def test_a_seed_decides_the_sample_and_a_batch_is_under_way_together(kind):
    with serving(kind) as (engine, backend):
        alone = engine.sample(ask("a", seed=5), temperature=1.0)[0]
        backend.gate.clear()
        opened = threading.Thread(target=_open_when, args=(backend, 3))
        opened.start()
        together = engine.sample(ask("b", "c", "d", seed=4), temperature=1.0)
        opened.join()
        assert together[1].ids == alone.ids
        assert len({s.ids for s in together}) > 1
        assert backend.most_under_way == 3


def _open_when(backend, count):
    while backend.under_way < count:
        pass
    backend.gate.set()


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("raw", r"do not depend on the temperature.*\n.*(processed_logprobs|SGLANG_RETURN_ORIGINAL_LOGPROB)"),
        ("no_ids", "without token ids"),
        ("no_logprobs", "without log-probs"),
        ("nan", "not finite"),
        ("reads_more", "read"),
        ("refuses", "HTTP 500: out of memory"),
        ("always_busy", "busy: HTTP 503"),
        ("crash", "broke before the answer was whole"),
        ("page", "is not an? (vLLM|SGLang) server"),
    ],
)
def test_what_a_server_lacks_is_said_before_anything_is_sampled(kind, fault, said):
    with serving(kind, fault) as (engine, _), pytest.raises(ModelError, match=f"(?s){said}") as raised:
        engine.check()
    assert engine.url in raised.value.message
    assert raised.value.fix


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("alien_stop", "ended a turn at token"),
        ("cut", "stopped after 1 of 12"),
        ("short", "12 tokens and 11|log-probs of other tokens"),
        ("nan", "finite"),
    ],
)
def test_an_answer_that_is_none_moves_no_session(kind, fault, said):
    with serving(kind) as (engine, backend):
        engine.check()
        backend.faults.add(fault)
        with pytest.raises(ModelError, match=said):
            engine.sample(ask("a"), temperature=1.0)
        backend.faults.clear()
        own = TransformersEngine(backend.base, TOKENIZER, stop_ids=STOP)
        engine.close(["a"])
        assert engine.sample(ask("a"), temperature=0.0)[0].ids == own.sample(ask("a"), temperature=0.0)[0].ids


def test_what_costs_nothing_is_tried_again_and_what_broke_is_not(kind):
    with serving(kind) as (engine, backend):
        engine.check()
        backend.faults.add("busy")
        backend.refused = 0
        assert len(engine.sample(ask("a"), temperature=1.0)) == 1
        assert backend.refused == 3
        backend.faults = {"crash"}
        before = len(backend.asked)
        with pytest.raises(ModelError, match="broke"):
            engine.sample(ask("a"), temperature=1.0)
        assert len(backend.asked) == before + 1


def test_an_address_where_nobody_is(kind):
    with WireServer(kind, Backend(model(), TOKENIZER)) as server:
        url = server.url
    engine = ServingEngine(open_server(kind, url, attempts=2), stop_ids=STOP, probe_ids=PROMPT)
    with pytest.raises(ModelError, match=f"no server can be reached at {url}"):
        engine.check()
    engine.end()
    with pytest.raises(ConfigError, match="not an address"):
        open_server(kind, "127.0.0.1:8000")


@pytest.mark.parametrize(("asked", "there"), [("vllm", "sglang"), ("sglang", "vllm")])
def test_a_server_of_the_other_kind(asked, there):
    with WireServer(there, Backend(model(), TOKENIZER)) as server:
        engine = ServingEngine(open_server(asked, server.url), stop_ids=STOP, probe_ids=PROMPT)
        with pytest.raises(ModelError) as raised:
            engine.check()
        assert "give the address of" in raised.value.fix
        engine.end()


def test_a_model_that_is_not_served():
    with WireServer("vllm", Backend(model(), TOKENIZER)) as server:
        engine = ServingEngine(open_server("vllm", server.url, model="other"), stop_ids=STOP, probe_ids=PROMPT)
        with pytest.raises(ModelError, match="does not serve 'other' but policy"):
            engine.check()
        engine.end()


def test_a_key(kind, monkeypatch):
    with serving(kind, key="secret") as (engine, _), pytest.raises(ModelError, match="401") as raised:
        engine.check()
    assert KEY_VARIABLE in raised.value.fix
    monkeypatch.setenv(KEY_VARIABLE, "secret")
    with serving(kind, key="secret") as (engine, _):
        engine.check()


def test_the_window_is_kept(kind):
    with serving(kind) as (engine, backend):
        assert engine.context_window == backend.base.config.max_position_embeddings - (2 if kind == "sglang" else 0)
        room = engine.context_window - len(PROMPT)
        with pytest.raises(ModelError, match="may need 10"):
            engine.sample(ask("a", tokens=room + 1), temperature=1.0)
        with pytest.raises(ValueError, match="nothing to read"):
            engine.sample(ask("a", ids=()), temperature=1.0)
        long = tuple(PROMPT * 60)[: engine.context_window - 3]
        (sample,) = engine.sample(ask("a", ids=long, tokens=3), temperature=0.0)
        assert sample.finished or len(sample.ids) == 3


# --- weights --------------------------------------------------------------------------------------------------------------


def test_a_reload_and_nothing_else_changes_the_weights(kind, tmp_path):
    policy = policy_of(model(0))
    with serving(kind, served=model(7), policy=policy, transfer=SharedFolder(tmp_path / "w")) as (engine, backend):
        assert engine.policy_version is None
        first = engine.sample(ask("a"), temperature=0.0)[0]
        assert engine.policy_version == 0
        assert unlike(policy.logprobs(PROMPT, first.ids), first.logprobs) < TOLERANCE
        policy.model, policy.version = model(1), 1
        again = engine.sample(ask("b"), temperature=0.0)[0]
        assert again == first, "the trainer's weights have moved and the server's have not"
        assert unlike(policy.logprobs(PROMPT, again.ids), again.logprobs) > 0.1
        engine.reset()
        new = engine.sample(ask("a"), temperature=0.0)[0]
        assert engine.policy_version == 1
        assert unlike(policy.logprobs(PROMPT, new.ids), new.logprobs) < TOLERANCE
        (kept,) = (tmp_path / "w").iterdir()
        assert backend.label == kept.name


@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated:FutureWarning")
def test_adapters_are_swapped_by_name(kind, tmp_path):
    base = model()
    policy = policy_of(peft.get_peft_model(copy.deepcopy(base), LORA), is_adapter=True)
    with serving(kind, served=base, policy=policy, transfer=SharedFolder(tmp_path / "w")) as (engine, backend):
        first = engine.sample(ask("a"), temperature=0.0)[0]
        assert unlike(policy.logprobs(PROMPT, first.ids), first.logprobs) < TOLERANCE
        with torch.no_grad():
            for name, weight in policy.model.named_parameters():
                if "lora_B" in name:
                    weight += 0.5
        policy.version = 1
        again = engine.sample(ask("b"), temperature=0.0)[0]
        assert unlike(first.logprobs, again.logprobs) < TOLERANCE
        engine.reset()
        new = engine.sample(ask("a"), temperature=0.0)[0]
        assert unlike(policy.logprobs(PROMPT, new.ids), new.logprobs) < TOLERANCE
        assert len(backend.adapters) == 1, "the former one is unloaded"
        backend.adapters.clear()
        with pytest.raises(ModelError) as raised:
            engine.sample(ask("c"), temperature=0.0)
        assert "started again" in raised.value.fix


def test_a_server_that_keeps_its_old_weights_is_found_out(kind, tmp_path):
    with serving(kind, "keeps", served=model(3), policy=policy_of(model(0)), transfer=SharedFolder(tmp_path / "w")) as (
        engine,
        backend,
    ):
        with pytest.raises(ModelError, match="nats from the policy's own"):
            engine.sample(ask("a"), temperature=1.0)
        assert engine.policy_version is None
        backend.faults.clear()
        engine.sample(ask("a"), temperature=1.0)
        assert engine.policy_version == 0


def test_weights_of_somebody_else_are_found_out(kind, tmp_path):
    with serving(kind, policy=policy_of(model(0)), transfer=SharedFolder(tmp_path / "w")) as (engine, backend):
        engine.sample(ask("a"), temperature=1.0)
        backend.label = "default"  # as after a new start
        with pytest.raises(ModelError, match="sampled from the weights 'default'"):
            engine.sample(ask("b"), temperature=1.0)
        if kind == "vllm":
            backend.faults.add("no_loading")
            with pytest.raises(ModelError, match="/weight_info answered HTTP 404"):
                engine.sample(ask("b"), temperature=1.0)


def test_a_server_that_cannot_load(kind, tmp_path):
    for adapter in (True, False)[: 1 if kind == "sglang" else 2]:
        policy = policy_of(model(), is_adapter=adapter)
        with serving(kind, "no_loading", policy=policy, transfer=SharedFolder(tmp_path / "w")) as (engine, _):
            with pytest.raises(ModelError, match="cannot load") as raised:
                engine.check()
            assert "start" in raised.value.fix


def test_a_folder_that_only_this_machine_has(kind, tmp_path):
    class Elsewhere(Policy):
        def save(self, folder):
            folder.joinpath("nothing").touch()

    policy = Elsewhere(model(), TOKENIZER)
    with serving(kind, policy=policy, transfer=SharedFolder(tmp_path / "w")) as (engine, backend):
        with pytest.raises(ModelError, match="no weights in") as raised:
            engine.sample(ask("a"), temperature=1.0)
        assert "readable under this path" in raised.value.fix
        assert backend.gate.is_set() == (kind == "sglang"), "vLLM stays paused: nobody samples from half of the weights"
        Elsewhere.save = Policy.save
        engine.sample(ask("a"), temperature=1.0)
        assert backend.gate.is_set()


def test_a_disk_that_cannot_be_written(kind, tmp_path):
    (tmp_path / "w").write_text("a file")
    with (
        serving(kind, policy=policy_of(model()), transfer=SharedFolder(tmp_path / "w")) as (engine, _),
        pytest.raises(StorageError, match="server"),
    ):
        engine.sample(ask("a"), temperature=1.0)


@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated:FutureWarning")
@pytest.mark.parametrize("adapter", [False, True])
def test_a_server_that_shares_the_gpu_sleeps_and_has_the_weights_again_afterwards(tmp_path, adapter, monkeypatch):
    """At level 2 it drops its weights, which are loaded anyway; under adapters it keeps those of the base (level 1)."""
    base = model()
    learning = policy_of(peft.get_peft_model(model(), LORA) if adapter else model(), is_adapter=adapter)
    transfer, made_room = SharedFolder(tmp_path / "weights"), []
    with serving("vllm", served=base, policy=learning, transfer=transfer, sleeps=True) as (engine, backend):
        (first,) = engine.sample(ask("a"), temperature=0.0)
        engine.rest()
        engine.rest()
        assert backend.asleep
        slept = [path for path, _ in backend.asked if path.startswith("/sleep")]
        assert slept == [f"/sleep?level={1 if adapter else 2}&mode=wait"], "once"
        monkeypatch.setattr(Policy, "make_room", lambda _: made_room.append(backend.asleep))
        (again,) = engine.sample(ask("b"), temperature=0.0)
        assert not backend.asleep
        assert made_room == [True], "before it takes the memory"
        assert again.ids == first.ids
        assert again.logprobs == pytest.approx(first.logprobs, abs=TOLERANCE)


def test_a_server_that_somebody_else_started_does_not_sleep(kind, tmp_path):
    transfer = SharedFolder(tmp_path / "weights")
    with serving(kind, policy=policy_of(model()), transfer=transfer) as (engine, backend):
        engine.sample(ask("a"), temperature=0.0)
        asked = len(backend.asked)
        engine.rest()
        assert len(backend.asked) == asked


@pytest.mark.slow
def test_a_server_killed_while_it_samples(kind, tmp_path):
    save_policy(model(), TOKENIZER, tmp_path / "policy")
    program = [
        sys.executable,
        str(Path(__file__).parents[1] / "tools" / "wire_servers.py"),
        kind,
        str(tmp_path / "policy"),
        "hold",
    ]
    with subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            url = process.stdout.readline().split()[-1]
            engine = ServingEngine(open_server(kind, url, attempts=2), stop_ids=STOP, probe_ids=PROMPT)
            killed = threading.Thread(target=lambda: (process.stdout.readline(), os.kill(process.pid, signal.SIGKILL)))
            killed.start()
            with pytest.raises(ModelError, match="broke before the answer was whole"):
                engine.check()
            killed.join()
            process.wait()  # a signal that was sent has not yet closed the sockets
            with pytest.raises(ModelError, match="no server can be reached"):
                engine.check()
            engine.end()
        finally:
            process.kill()


# --- one turn at a time ---------------------------------------------------------------------------------------------------


def sample_each(engine, *requests, temperature=0.0):
    """Every request by itself, all together."""

    async def main():
        return await asyncio.gather(*(engine.sample_one(r, temperature=temperature) for r in requests))

    return asyncio.run(main())


def test_turns_asked_for_one_by_one_are_those_of_a_batch_and_load_the_weights_once(kind, tmp_path):
    policy = policy_of(model(0))
    with serving(kind, served=model(7), policy=policy, transfer=SharedFolder(tmp_path / "w")) as (engine, backend):
        new, old = PROMPT, TransformersEngine(model(0), TOKENIZER, stop_ids=STOP)
        for _turn in range(2):
            requests = ask("a", "b", "c", ids=new)
            assert [s.ids for s in sample_each(engine, *requests)] == [s.ids for s in old.sample(requests, temperature=0.0)]
            new = tuple(TOKENIZER.encode("\nnext: "))
        assert engine.policy_version == 0
        loads = [path for path, _ in backend.asked if path in ("/collective_rpc", "/update_weights_from_disk")]
        assert len(loads) == 1
        assert len(engine._sessions) == 3
        policy.model, policy.version = model(1), 1
        engine.reset()
        (fresh,) = sample_each(engine, *ask("a"))
        assert engine.policy_version == 1
        assert unlike(policy.logprobs(PROMPT, fresh.ids), fresh.logprobs) < TOLERANCE


def test_one_turn_from_the_weights_of_somebody_else_is_found_out(kind, tmp_path):
    with serving(kind, policy=policy_of(model(0)), transfer=SharedFolder(tmp_path / "w")) as (engine, backend):
        sample_each(engine, *ask("a"))
        backend.label = "default"  # as after a new start
        with pytest.raises(ModelError, match="sampled from the weights 'default'"):
            sample_each(engine, *ask("b"))
        assert len(engine._sessions) == 1, "no session has moved"


def test_one_turn_that_fails_says_why_and_weights_that_cannot_be_loaded_are_tried_again(kind, tmp_path):
    with serving(kind, "keeps", served=model(3), policy=policy_of(model(0)), transfer=SharedFolder(tmp_path / "w")) as (
        engine,
        backend,
    ):
        for _attempt in range(2):
            with pytest.raises(ModelError, match="nats from the policy's own"):
                sample_each(engine, *ask("a", "b"))
        backend.faults = {"refuses"}
        with pytest.raises(ModelError, match="HTTP 500: out of memory"):
            sample_each(engine, *ask("a"))
        backend.faults.clear()
        assert len(sample_each(engine, *ask("a", "b"))) == 2


@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated:FutureWarning")
@pytest.mark.parametrize("adapter", [False, True])
def test_weights_reach_a_server_through_a_store(kind, tmp_path, adapter):
    """The server is given a folder that a follower has written, for full weights and for adapters."""
    base, moved = model(0), model(1)
    if adapter:
        base, moved = (peft.get_peft_model(model(0), LORA) for _ in range(2))
    policy, store = policy_of(base, is_adapter=adapter), open_store(tmp_path / "store")
    written = []
    follower = threading.Thread(target=lambda: written.extend(follow(store, tmp_path / "there", run="run", versions=2)))
    follower.start()
    transfer = ThroughStore(store, tmp_path / "scratch", run="run", timeout_s=60)
    with serving(kind, served=model(0 if adapter else 7), policy=policy, transfer=transfer) as (engine, backend):
        first = engine.sample(ask("a"), temperature=0.0)[0]
        policy.model, policy.version = moved, 1
        engine.reset()
        second = engine.sample(ask("b"), temperature=0.0)[0]
        assert unlike(policy.logprobs(PROMPT, second.ids), second.logprobs) < TOLERANCE
        assert first != second
        assert engine.policy_version == 1
    follower.join()
    assert [pulled.version for pulled in written] == [0, 1]
    named = [str(body) for _, body in backend.asked if "composer-" in str(body)]
    assert any(str(tmp_path / "there") in body for body in named)
    assert not any("scratch" in body for body in named)
