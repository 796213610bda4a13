"""Servers that are started: their options, what keeps them from serving, and their end."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import psutil
import pytest

from composer_replication.config import ModelConfig
from composer_replication.loss.forward.models import load_policy, save_policy
from composer_replication.quickstart.policy import tiny_model, tiny_tokenizer
from composer_replication.rollouts.serving import StartedVllm, VllmOptions, open_server, require_vllm
from composer_replication.types.errors import ConfigError, MissingExtraError, ModelError

sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))
from wire_servers import Backend, WireServer

TOOLS = Path(__file__).parents[1] / "tools"
TOKENIZER = tiny_tokenizer()


@pytest.fixture
def wire_vllm(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Put a package that speaks vLLM's wire where vLLM would be installed."""
    monkeypatch.setenv("PYTHONPATH", str(TOOLS / "wire_vllm"))
    return monkeypatch


@pytest.fixture
def options(tmp_path: Path) -> VllmOptions:
    save_policy(tiny_model(TOKENIZER, 0, hidden=32, layers=2), TOKENIZER, tmp_path / "policy")
    return VllmOptions(model=str(tmp_path / "policy"), dtype="float32", window=640, more=("--enforce-eager",))


def test_the_options_of_a_server() -> None:
    plain = VllmOptions(model="m", dtype="bfloat16", window=640).words(8000, "mine")
    assert plain[1:5] == ["-m", "vllm.entrypoints.openai.api_server", "--model", "m"]
    pairs = {name: value for name, value in itertools.pairwise(plain) if name.startswith("--")}
    assert (pairs["--host"], pairs["--served-model-name"]) == ("127.0.0.1", "mine")
    assert (pairs["--port"], pairs["--dtype"], pairs["--max-model-len"]) == ("8000", "bfloat16", "640")
    assert pairs["--logprobs-mode"] == "processed_logprobs"
    assert not {"--enable-lora", "--enable-sleep-mode", "--tensor-parallel-size"} & set(plain)

    many = VllmOptions(model="m", dtype="bfloat16", window=640, lora_rank=12, gpus=(2, 3), more=("--seed", "1")).words(8000, "")
    assert many[-7:] == ["--enable-lora", "--max-lora-rank", "16", "--tensor-parallel-size", "2", "--seed", "1"]
    shared = VllmOptions(model="m", dtype="bfloat16", window=640, sleeps=True, more=("--gpu-memory-utilization", "0.7")).words(
        8000, ""
    )
    assert shared[-5:] == ["--enable-sleep-mode", "--gpu-memory-utilization", "0.7", "--gpu-memory-utilization", "0.7"]
    half = VllmOptions(model="m", dtype="bfloat16", window=640, sleeps=True).words(8000, "")
    assert half[-2:] == ["--gpu-memory-utilization", "0.5"]


def test_its_gpus_are_counted_among_those_that_the_run_sees(monkeypatch: pytest.MonkeyPatch) -> None:
    on = {gpus: VllmOptions(model="m", dtype="bfloat16", window=640, gpus=gpus) for gpus in ((), (1,), (0, 2))}
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert "CUDA_VISIBLE_DEVICES" not in on[()].environment()
    assert on[0, 2].environment()["CUDA_VISIBLE_DEVICES"] == "0,2"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5")
    assert "CUDA_VISIBLE_DEVICES" not in on[()].environment()
    assert on[1,].environment()["CUDA_VISIBLE_DEVICES"] == "5"
    for hidden, shown in (("4,5", 2), ("", 0), ("4,5,-1,6", 2)):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", hidden)
        with pytest.raises(ConfigError, match=rf"rollout\.server_gpus .* GPU 2, .* shows {shown}") as raised:
            on[0, 2].environment()
        assert "CUDA_VISIBLE_DEVICES" in (raised.value.fix or "")


def test_its_key_is_the_one_that_it_is_asked_with(monkeypatch: pytest.MonkeyPatch) -> None:
    options = VllmOptions(model="m", dtype="bfloat16", window=640)
    monkeypatch.delenv("COMPOSER_SERVER_KEY", raising=False)
    assert "VLLM_API_KEY" not in options.environment()
    monkeypatch.setenv("COMPOSER_SERVER_KEY", "a-key")
    assert options.environment()["VLLM_API_KEY"] == "a-key"


def test_an_interpreter_without_vllm_and_none_at_all(tmp_path: Path, wire_vllm: pytest.MonkeyPatch) -> None:
    require_vllm(Path(sys.executable))
    wire_vllm.delenv("PYTHONPATH")
    with pytest.raises(MissingExtraError, match="has no vLLM") as raised:
        require_vllm(Path(sys.executable))
    assert "rollout.server_python" in (raised.value.fix or "")
    with pytest.raises(MissingExtraError, match="cannot be run"):
        require_vllm(tmp_path / "python")


@pytest.mark.slow
def test_it_serves_until_it_is_ended(options: VllmOptions, tmp_path: Path, wire_vllm: pytest.MonkeyPatch) -> None:
    wire_vllm.setenv("WIRE_VLLM", "orphan")
    wire_vllm.setenv("MASTER_ADDR", "127.0.0.1")
    (tmp_path / "log").write_text("Error: of a start before\n")
    wire_vllm.setenv("http_proxy", "http://127.0.0.1:9")
    wire_vllm.setenv("VLLM_API_KEY", "of-another-program")
    before = below()
    started = StartedVllm(options, tmp_path / "log", timeout_s=120)
    wire_vllm.delenv("http_proxy")
    server = open_server("vllm", started.url, model=started.name)
    assert server.http.run(server.facts()).window > 0
    server.http.end()
    mine = below() - before
    assert len(mine) > 2, "the guard, the server and what it started"
    started.close()
    assert not any(alive(process) for process in mine)
    log = (tmp_path / "log").read_text()
    assert "--enforce-eager" in log
    assert "in the group of None" in log, "torchrun's group is not the server's"
    assert started.last_words() == "in the group of None"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "timeout_s", "said"),
    [("broken", 120, "ValueError: .*no device was found"), ("silent", 1, "does not serve after 1 s")],
)
def test_one_that_does_not_serve(
    options: VllmOptions, tmp_path: Path, wire_vllm: pytest.MonkeyPatch, fault: str, timeout_s: float, said: str
) -> None:
    wire_vllm.setenv("WIRE_VLLM", fault)
    before = below()
    with pytest.raises(ModelError, match=said) as raised:
        StartedVllm(options, tmp_path / "log", timeout_s=timeout_s)
    assert str(tmp_path / "log") in (raised.value.fix or "")
    assert "\x1b" not in raised.value.message
    assert below() <= before


@pytest.mark.slow
def test_another_server_at_its_port_is_not_taken_for_it(
    options: VllmOptions, tmp_path: Path, wire_vllm: pytest.MonkeyPatch
) -> None:
    model, tokenizer = load_policy(ModelConfig(path=options.model, device="cpu"))
    with WireServer("vllm", Backend(model, tokenizer)) as other:
        taken = int(other.url.rpartition(":")[2])
        wire_vllm.setattr("composer_replication.rollouts.serving.started._free_port", lambda: taken)
        with pytest.raises(ModelError, match=r"before it served: OSError: .*Address already in use"):
            StartedVllm(options, tmp_path / "log", timeout_s=120)


@pytest.mark.slow
def test_a_server_is_asked_with_its_key(options: VllmOptions, tmp_path: Path, wire_vllm: pytest.MonkeyPatch) -> None:
    wire_vllm.setenv("COMPOSER_SERVER_KEY", "local-9fKq27LmZx81TnVb")
    with closing(StartedVllm(options, tmp_path / "log", timeout_s=120)) as running:
        server = open_server("vllm", running.url, model=running.name)
        assert server.http.run(server.facts()).window > 0
        server.http.end()


STARTS = """
import sys
from pathlib import Path
from composer_replication.rollouts.serving import StartedVllm, VllmOptions
started = StartedVllm(VllmOptions(model=sys.argv[1], dtype="float32", window=640), Path(sys.argv[2]), timeout_s=120)
print("up", flush=True)
sys.stdin.read()
"""


@pytest.mark.slow
def test_it_ends_with_a_killed_run(options: VllmOptions, tmp_path: Path, wire_vllm: pytest.MonkeyPatch) -> None:
    command = [sys.executable, "-c", STARTS, options.model, str(tmp_path / "log")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None
        assert run.stdout.readline() == "up\n"
        mine = psutil.Process(run.pid).children(recursive=True)
        run.kill()
    assert len(mine) > 1
    until = time.monotonic() + 120
    while any(alive(process) for process in mine):
        assert time.monotonic() < until, "a hang"
        time.sleep(0.05)


def below() -> set[psutil.Process]:
    return set(psutil.Process(os.getpid()).children(recursive=True))


def alive(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.mark.slow
def test_its_last_words_hold_no_key(options: VllmOptions, tmp_path: Path, wire_vllm: pytest.MonkeyPatch) -> None:
    wire_vllm.setenv("COMPOSER_SERVER_KEY", "local-9fKq27LmZx81TnVb")
    with closing(StartedVllm(options, tmp_path / "log", timeout_s=120)) as started:
        with (tmp_path / "log").open("a") as log:
            log.write(f"\nValueError: {'x' * 470} key local-9fKq27LmZx81TnVb\n")
        words = started.last_words()
    assert words.startswith("ValueError: xxx")
    assert "local" not in words
