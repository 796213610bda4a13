"""vLLM itself, on the CPU: COMPOSER_TEST_VLLM names an interpreter that has it. Five starts, a minute or so each."""

from __future__ import annotations

import copy
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from transformers import Qwen3ForCausalLM

from composer_replication.loss.forward.models import save_policy
from composer_replication.observe import RunDir
from composer_replication.quickstart.language import project_path
from composer_replication.quickstart.policy import tiny_model, tiny_tokenizer
from composer_replication.quickstart.warm_start import imitate
from composer_replication.rollouts.serving import ServingEngine, SharedFolder, open_server
from composer_replication.rollouts.transformers_engine import TransformersEngine
from composer_replication.tasks.build import BuildOptions, build_tasks
from composer_replication.tokens import ChatRenderer
from composer_replication.types.errors import ModelError

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "tools"))
sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "trainer"))
sys.path.insert(0, str(Path(__file__).parents[1] / "shared"))
from living import children, gone_all
from served_policy import Policy, ask, unlike
from vllm_process import LACKING, RAW, WHOLE_PROMPTS, Vllm, small, vllm
from world import finish

PYTHON = os.environ["COMPOSER_TEST_VLLM"]
TOKENIZER = tiny_tokenizer()
PROMPT = tuple(TOKENIZER.encode("def total(prices):\n    return "))
STOP = (TOKENIZER.eos_token_id,)
TOLERANCE = 1e-5
"""Nats between two float32 implementations; 1e-6 is usual."""


def untied(seed: int) -> Qwen3ForCausalLM:
    """A policy with a head of its own: vLLM on a CPU cannot reload one that is tied to the embeddings."""
    tied = tiny_model(TOKENIZER, seed)
    config = copy.deepcopy(tied.config)
    config.tie_word_embeddings = False
    made = Qwen3ForCausalLM(config)
    made.load_state_dict({name: weight.clone() for name, weight in tied.state_dict().items()})
    return made


@pytest.fixture(scope="module")
def server(tmp_path_factory) -> Iterator[Vllm]:
    torch.set_num_threads(1)
    home = tmp_path_factory.mktemp("vllm")
    save_policy(untied(7), TOKENIZER, home / "policy")
    with vllm(PYTHON, home / "policy", home) as running:
        yield running


@pytest.fixture
def policy() -> Policy:
    return Policy(untied(0), TOKENIZER)


@pytest.fixture
def engine(server, policy, tmp_path) -> Iterator[ServingEngine]:
    made = ServingEngine(
        open_server("vllm", server.url),
        stop_ids=STOP,
        probe_ids=PROMPT,
        policy=policy,
        transfer=SharedFolder(tmp_path / "weights"),
    )
    yield made
    made.end()


@pytest.mark.parametrize("temperature", [0.0, 0.5, 1.0, 2.0])
def test_logprobs_are_those_of_the_trainers_forward_pass(engine, policy, temperature):
    for sample in engine.sample(ask(PROMPT, *"abcdefgh", tokens=64), temperature=temperature):
        assert unlike(policy.logprobs(PROMPT, sample.ids, temperature or 1.0), sample.logprobs) < TOLERANCE


def test_greedy_turns_are_those_of_the_trainers_own_engine(engine, policy):
    own, new = TransformersEngine(policy.model, TOKENIZER, stop_ids=STOP), PROMPT
    for _turn in range(3):
        theirs, ours = (e.sample(ask(new, "a", "b", tokens=64), temperature=0.0) for e in (engine, own))
        assert [(s.ids, s.finished) for s in theirs] == [(s.ids, s.finished) for s in ours]
        new = tuple(TOKENIZER.encode("\nnext: "))


def test_a_seed_decides_the_sample_whatever_else_is_under_way(engine):
    alone = [engine.sample(ask(PROMPT, name, tokens=32, seed=i), temperature=1.0)[0] for i, name in enumerate("abcd")]
    engine.close("abcd")
    together = engine.sample(ask(PROMPT, *"abcd", tokens=32), temperature=1.0)
    assert [s.ids for s in together] == [s.ids for s in alone]
    assert len({s.ids for s in alone}) == 4


def test_a_reload_and_nothing_else_changes_the_weights(engine, policy):
    first = engine.sample(ask(PROMPT, "a", tokens=32), temperature=0.0)[0]
    policy.model, policy.version = untied(1), 1
    again = engine.sample(ask(PROMPT, "b", tokens=32), temperature=0.0)[0]
    assert again.ids == first.ids
    assert unlike(policy.logprobs(PROMPT, again.ids), again.logprobs) > 0.05
    engine.reset()
    new = engine.sample(ask(PROMPT, "a", tokens=32), temperature=0.0)[0]
    assert engine.policy_version == 1
    assert unlike(policy.logprobs(PROMPT, new.ids), new.logprobs) < TOLERANCE
    long = tuple(PROMPT * 20)  # what was cached under the old weights would show here
    sample = engine.sample(ask(long, "c", tokens=32), temperature=1.0)[0]
    assert unlike(policy.logprobs(long, sample.ids), sample.logprobs) < TOLERANCE


def test_requests_under_way_are_answered_by_the_old_weights_and_later_ones_by_the_new(engine, policy, server, tmp_path):
    engine.sample(ask(PROMPT, "a"), temperature=0.0)
    old = copy.deepcopy(policy)
    other = ServingEngine(open_server("vllm", server.url), stop_ids=(), probe_ids=PROMPT)
    other.check()
    found = []
    busy = threading.Thread(
        target=lambda: found.extend(other.sample(ask(PROMPT, *map(str, range(16)), tokens=600), temperature=1.0))
    )
    busy.start()
    while server.metric("vllm:num_requests_running") < 16:
        pass
    policy.model, policy.version = untied(2), 1
    engine.reset()
    (new,) = engine.sample(ask(PROMPT, "a", tokens=32), temperature=0.0)
    busy.join()
    other.end()
    assert len(found) == 16
    for sample in found:
        assert unlike(old.logprobs(PROMPT, sample.ids), sample.logprobs) < TOLERANCE
    assert unlike(policy.logprobs(PROMPT, new.ids), new.logprobs) < TOLERANCE


def test_adapters_are_swapped_by_name(server, tmp_path):
    from peft import LoraConfig, get_peft_model

    base = Policy(untied(0), TOKENIZER)
    with_base = ServingEngine(
        open_server("vllm", server.url), stop_ids=STOP, probe_ids=PROMPT, policy=base, transfer=SharedFolder(tmp_path / "b")
    )
    plain = with_base.sample(ask(PROMPT, "a", tokens=32), temperature=0.0)[0]
    options = LoraConfig(r=4, target_modules=["q_proj", "v_proj", "down_proj"], init_lora_weights=False, task_type="CAUSAL_LM")
    policy = Policy(get_peft_model(copy.deepcopy(base.model), options), TOKENIZER, is_adapter=True)
    engine = ServingEngine(
        open_server("vllm", server.url), stop_ids=STOP, probe_ids=PROMPT, policy=policy, transfer=SharedFolder(tmp_path / "w")
    )
    for version in range(4):
        policy.version = version
        with torch.no_grad():
            for name, weight in policy.model.named_parameters():
                if "lora_B" in name:
                    weight += 0.2
        engine.reset()
        sample = engine.sample(ask(PROMPT, "a", tokens=32), temperature=1.0)[0]
        assert engine.policy_version == version
        assert unlike(policy.logprobs(PROMPT, sample.ids), sample.logprobs) < TOLERANCE
    assert with_base.sample(ask(PROMPT, "b", tokens=32), temperature=0.0)[0] == plain, "the policy without it is as it was"
    models = engine._server.http.run(engine._server.http.get("/v1/models"))["data"]
    assert len(models) == 2, "former adapters are unloaded"
    with_base.end()
    engine.end()


def test_a_folder_that_the_server_cannot_load(engine, policy, tmp_path, monkeypatch):
    engine.sample(ask(PROMPT, "a"), temperature=0.0)
    monkeypatch.setattr(policy, "save", lambda folder: None)
    engine.reset()
    with pytest.raises(ModelError, match="stays paused") as raised:
        engine.sample(ask(PROMPT, "a"), temperature=0.0)
    assert "readable under this path" in raised.value.fix
    monkeypatch.undo()
    (sample,) = engine.sample(ask(PROMPT, "a", tokens=32), temperature=0.0)
    assert unlike(policy.logprobs(PROMPT, sample.ids), sample.logprobs) < TOLERANCE


def test_the_window_and_the_vocabulary(engine, server):
    assert engine.context_window == 1024
    with pytest.raises(ModelError, match="may need"):
        engine.sample(ask(PROMPT, "a", tokens=1024), temperature=1.0)
    full = tuple(PROMPT * 100)[:1000]
    (sample,) = engine.sample(ask(full, "a", tokens=24), temperature=1.0)
    assert sample.finished or len(sample.ids) == 24
    with pytest.raises(ModelError, match="out of vocabulary") as raised:
        engine.sample(ask((5000,), "b"), temperature=1.0)
    assert "tokenizer" in raised.value.fix


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory) -> Path:
    """A folder with tasks and a policy that imitated their solutions."""
    folder = tmp_path_factory.mktemp("run")
    build_tasks(
        str(project_path("harbour")), folder / "tasks", BuildOptions(trivial=True, packages=("harbour/cargo.py",), max_tasks=3)
    )
    model = untied(0)
    imitate(model, ChatRenderer(TOKENIZER), steps=60, seed=0, batch_size=4)
    save_policy(model, TOKENIZER, folder / "policy")
    return folder


def train_on_servers(folder: Path, name: str, urls: list[str], *words: str) -> RunDir:
    """Train three steps, each on samples of the weights before it."""
    (folder / f"{name}.toml").write_text(
        f"""
name = "{name}"
steps = 3
threads = 1
[model]
path = "policy"
device = "cpu"
[tasks]
train = "tasks"
[rollout]
engine = "vllm"
{f"server_url = {json.dumps(urls)}" if urls else ""}
groups = 2
group_size = 3
turn_tokens = 48
trajectory_tokens = 144
context_tokens = 640
max_turns = 4
temperature = 0.8
[loss]
rlvr.importance = "tis"
replay.weight = 0.0
[optimizer]
learning_rate = 1e-3
"""
    )
    finish("train", str(folder / f"{name}.toml"), *words, cwd=folder)
    run = RunDir(folder / "runs" / name)
    means = [m.values["rlvr/importance/mean"] for m in run.read_metrics() if "rlvr/importance/mean" in m.values]
    assert means
    assert means == pytest.approx([1.0] * len(means), abs=1e-4)
    several = 0
    for step in range(1, 4):
        trajectories = run.read_trajectories("main", step)
        assert {t.policy_version for t in trajectories} == {step - 1}
        several += sum(len(t.turns) > 1 for t in trajectories)
    assert several, "some rollouts have more than one turn"
    return run


def test_a_run_trains_on_what_it_samples(server, run_folder):
    train_on_servers(run_folder, "served", [server.url])


def test_a_run_starts_its_server(run_folder, tmp_path, monkeypatch):
    for name, value in small(tmp_path).items():
        monkeypatch.setenv(name, value)
    own = {"rollout.server_python": PYTHON, "rollout.server_options": json.dumps(["--enforce-eager", *WHOLE_PROMPTS])}
    run = train_on_servers(run_folder, "own", [], *(word for name, value in own.items() for word in (f"--{name}", value)))
    assert "Application shutdown" in (run.ckpt_path / "main" / "serving" / "vllm.log").read_text()


def test_a_mesh_on_ray_has_a_server_for_each_generator(server, run_folder, tmp_path):
    """Two servers, two generators: both sample, both get each version of the weights."""
    words = ["--substrate.type", "ray", "--substrate.generators", "2", "--substrate.max_staleness", "0"]
    with vllm(PYTHON, run_folder / "policy", tmp_path) as second:
        before = server.metric("vllm:generation_tokens_total")
        train_on_servers(run_folder, "mesh", [server.url, second.url], *words)
        sampled = [server.metric("vllm:generation_tokens_total") - before, second.metric("vllm:generation_tokens_total")]
    assert min(sampled) > 100, "every server is at work"


def test_a_server_that_is_not_started_as_it_must_be(tmp_path):
    save_policy(untied(0), TOKENIZER, tmp_path / "policy")
    with vllm(PYTHON, tmp_path / "policy", tmp_path, *RAW, lora_rank=0, environment=LACKING) as running:
        at = open_server("vllm", running.url)
        plain = ServingEngine(at, stop_ids=STOP, probe_ids=PROMPT)
        with pytest.raises(ModelError, match="do not depend on the temperature") as raised:
            plain.check()
        assert raised.value.fix == "start vLLM with --logprobs-mode processed_logprobs"
        for adapter, needed in ((False, "VLLM_SERVER_DEV_MODE=1"), (True, "VLLM_ALLOW_RUNTIME_LORA_UPDATING=True")):
            learning = Policy(untied(0), TOKENIZER, is_adapter=adapter)
            engine = ServingEngine(at, stop_ids=STOP, probe_ids=PROMPT, policy=learning, transfer=SharedFolder(tmp_path / "w"))
            with pytest.raises(ModelError, match="while it runs") as raised:
                engine.check()
            assert needed in raised.value.fix
        plain.end()


SERVES = """
import pathlib, sys
from vllm_process import vllm
python, policy, home = sys.argv[1:]
with vllm(python, pathlib.Path(policy), pathlib.Path(home)):
    print("up", flush=True)
    sys.stdin.read()
"""


def test_a_server_ends_with_a_killed_parent(tmp_path):
    save_policy(untied(0), TOKENIZER, tmp_path / "policy")
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "tests" / "tools")}
    command = [sys.executable, "-c", SERVES, PYTHON, str(tmp_path / "policy"), str(tmp_path)]
    before = children()
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment) as parent:
        said = parent.stdout.readline()
        started = children() - before - {parent.pid}
        parent.kill()
    assert said == "up\n"
    assert len(started) > 1  # the guard, the server and its engine
    assert gone_all(started)


def test_a_tied_head_is_found_out_and_a_killed_server_is_an_error(tmp_path):
    save_policy(tiny_model(TOKENIZER, 0), TOKENIZER, tmp_path / "policy")
    with vllm(PYTHON, tmp_path / "policy", tmp_path) as running:
        tied = Policy(tiny_model(TOKENIZER, 0), TOKENIZER)
        at = open_server("vllm", running.url, attempts=2)
        engine = ServingEngine(at, stop_ids=STOP, probe_ids=PROMPT, policy=tied, transfer=SharedFolder(tmp_path / "w"))
        engine.sample(ask(PROMPT, "a"), temperature=1.0)
        tied.model, tied.version = tiny_model(TOKENIZER, 1), 1
        engine.reset()
        with pytest.raises(ModelError, match="nats from the policy's own") as raised:
            engine.sample(ask(PROMPT, "a"), temperature=1.0)
        assert "tied" in raised.value.fix

        other = ServingEngine(at, stop_ids=(), probe_ids=PROMPT)
        other.check()
        raised = []

        def sample() -> None:
            try:
                other.sample(ask(PROMPT, *map(str, range(16)), tokens=900), temperature=1.0)
            except ModelError as error:
                raised.append(error)

        busy = threading.Thread(target=sample)
        busy.start()
        while running.metric("vllm:num_requests_running") < 16:
            pass
        os.killpg(running.program.group, signal.SIGKILL)
        busy.join()
        assert "broke before the answer was whole" in raised[0].message
        with pytest.raises(ModelError, match="no server can be reached"):
            other.check()
        engine.end()
