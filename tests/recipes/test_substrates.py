"""What a run file can say of its substrate, and what is said when that is not here."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from types import SimpleNamespace

import pytest
from in_process import composer_here

from composer_replication.config import (
    EnvConfig,
    LossConfig,
    ModelConfig,
    RewardConfig,
    RlvrConfig,
    RolloutConfig,
    RunConfig,
    SubstrateConfig,
    TasksConfig,
    load_config,
    resolve_arm,
    to_toml,
)
from composer_replication.recipes import substrates
from composer_replication.recipes.substrates import SUBSTRATES, Need, Substrate, check_substrate, train_on
from composer_replication.types.errors import ConfigError, MissingExtraError

HERE = Path(__file__).resolve().parent


def run(**substrate: object) -> RunConfig:
    return RunConfig(model=ModelConfig(path="policy"), tasks=TasksConfig(train=HERE), substrate=SubstrateConfig(**substrate))


@pytest.fixture
def metadata(monkeypatch):
    """`metadata(requirements, versions)` stands in for what is installed."""

    def install(requirements: list[str], versions: dict[str, str]) -> None:
        def version(name: str) -> str:
            if name not in versions:
                raise PackageNotFoundError(name)
            return versions[name]

        monkeypatch.setattr(substrates, "requires", lambda _: requirements)
        monkeypatch.setattr(substrates, "version", version)

    return install


WANTED = ["torch>=2", 'a-trainer<2,>=1; extra == "trl"', 'its-friend; extra == "trl"', 'a-server; extra == "verl"']


def test_needs_are_those_of_the_extra_alone(metadata):
    metadata(WANTED, {"torch": "2.1", "a-trainer": "1.5", "its-friend": "3"})
    trl = SUBSTRATES["trl"]
    assert trl.needs() == [Need("a-trainer<2,>=1", "1.5"), Need("its-friend", "3")]
    assert trl.missing() == []
    assert SUBSTRATES["local"].needs() == []


@pytest.mark.parametrize(
    ("versions", "said"),
    [
        ({"its-friend": "3"}, ["a-trainer<2,>=1 (not installed)"]),
        ({"a-trainer": "2.0", "its-friend": "3"}, ["a-trainer<2,>=1 (found 2.0)"]),
        ({}, ["a-trainer<2,>=1 (not installed)", "its-friend (not installed)"]),
    ],
)
def test_what_is_missing_or_of_another_version_is_said(metadata, versions, said):
    metadata(WANTED, versions)
    assert SUBSTRATES["trl"].missing() == said


def test_an_extra_that_the_installation_does_not_know_is_missing(metadata):
    metadata(WANTED, {})
    assert "too old" in SUBSTRATES["monarch"].missing()[0]


def test_a_checkout_has_to_hold_the_framework(metadata, monkeypatch, tmp_path):
    metadata([], {})
    somewhere = Substrate(about="", checkout="SOME_SRC", module="some_framework")
    monkeypatch.delenv("SOME_SRC", raising=False)
    assert somewhere.missing() == ["some_framework, installed or in a checkout named by SOME_SRC"]
    monkeypatch.setenv("SOME_SRC", str(tmp_path))
    assert somewhere.missing(), "any folder will not do"
    (tmp_path / "src" / "some_framework").mkdir(parents=True)
    assert somewhere.missing() == []


def test_what_is_installed_needs_no_checkout(metadata, monkeypatch):
    metadata([], {})
    monkeypatch.delenv("SOME_SRC", raising=False)
    assert Substrate(about="", checkout="SOME_SRC", module="json").missing() == []


def test_what_samples_on_a_gpu_is_asked_for_where_there_is_one(metadata, monkeypatch: pytest.MonkeyPatch) -> None:
    metadata(["verl==0.9.1; extra == 'verl'"], {"verl": "0.9.1"})
    one = Substrate(about="", extra="verl", cuda_extra="surely_not_there")
    ours = "pip install 'composer-replication[verl]'"
    monkeypatch.setattr(substrates, "has_cuda", lambda: False)
    assert (one.missing(), one.fix) == ([], ours)
    monkeypatch.setattr(substrates, "has_cuda", lambda: True)
    assert one.missing() == ["surely_not_there, with CUDA (not installed)"]
    assert one.fix == f"pip install 'verl[surely_not_there]==0.9.1' and {ours}"
    assert Substrate(about="", extra="verl", cuda_extra="json").missing() == []


def test_a_run_without_what_its_substrate_needs_does_not_start(metadata, monkeypatch):
    metadata(WANTED, {})
    monkeypatch.setitem(sys.modules, "composer_replication.recipes.trl.substrate", SimpleNamespace(check=lambda _: None))
    with pytest.raises(MissingExtraError, match=r"substrate\.type = trl needs a-trainer") as refused:
        asyncio.run(train_on(run(type="trl"), None, None))
    assert refused.value.fix == "pip install 'composer-replication[trl]'"


def test_every_arm_is_checked(monkeypatch):
    def check(config: RunConfig) -> None:
        if config.loss.hint.weight > 1:
            raise ConfigError("loss.hint.weight is too much")

    monkeypatch.setitem(sys.modules, "composer_replication.recipes.trl.substrate", SimpleNamespace(check=check))
    good = run(type="trl")
    check_substrate(good)
    with pytest.raises(ConfigError, match="too much"):
        check_substrate(good.model_copy(update={"arms": {"fine": {}, "heavy": {"loss.hint.weight": 2.0}}}))


def test_arms_share_the_substrate():
    config = run().model_copy(update={"arms": {"other": {"substrate.type": "trl"}}})
    with pytest.raises(ConfigError, match=r"substrate\.type is the same for all arms"):
        resolve_arm(config, "other")


@pytest.mark.parametrize("field", ["generators", "max_staleness"])
def test_what_only_a_mesh_reads_is_refused_elsewhere(field):
    with pytest.raises(ValueError, match="is not read with type = local"):
        SubstrateConfig(**{field: 3})


@pytest.mark.parametrize("kind", [kind for kind in SUBSTRATES if kind != "monarch"])
def test_several_trainers_are_refused_where_there_is_one(kind):
    assert SubstrateConfig(type="monarch", trainers=2).trainers == 2
    with pytest.raises(ValueError, match=f"trainers = 2 is not read with type = {kind}") as refused:
        SubstrateConfig(type=kind, trainers=2)
    assert refused.value.errors()[0]["ctx"]["fix"] == "remove trainers, or choose type = monarch"


def test_the_doctor_says_what_is_missing(metadata, tmp_path):
    metadata(WANTED, {"its-friend": "3"})
    said = composer_here("doctor", "--substrate", "trl", cwd=tmp_path)
    assert said.returncode == 2
    assert "a-trainer<2,>=1 (not installed)" in said.stdout
    assert "composer-replication[trl]" in said.stdout
    metadata(WANTED, {"a-trainer": "1.2", "its-friend": "3"})
    said = composer_here("doctor", "--substrate", "trl", "--json", cwd=tmp_path)
    assert said.returncode == 0
    found = json.loads(said.stdout.strip().splitlines()[-1])
    assert found["needs"] == {"a-trainer<2,>=1": "1.2", "its-friend": "3"}
    assert found["missing"] == []


def test_options_may_be_written_with_dots_in_any_way(tmp_path):
    head = f'[model]\npath = "policy"\n[tasks]\ntrain = "{HERE}"\n[substrate]\ntype = "verl"\n'
    wanted = {"trainer.nnodes": 2, "actor.optim.lr": 0.5}
    path = tmp_path / "run.toml"
    for written in ('[substrate.options]\n"trainer.nnodes" = 2\n"actor.optim.lr" = 0.5', "options = { trainer.nnodes = 2 }"):
        path.write_text(f"{head}{written}\n")
        config = load_config(path, ["--substrate.options.actor.optim.lr", "0.5"])
        assert config.substrate.options == wanted
    path.write_text(to_toml(config))
    assert load_config(path).substrate.options == wanted


@pytest.mark.parametrize("kind", [kind for kind in SUBSTRATES if kind != "local"])
def test_only_a_mesh_samples_from_servers(kind):
    rollout = RolloutConfig(engine="vllm", server_url="http://127.0.0.1:8000")
    mesh = kind in ("ray", "monarch")
    config = run(type=kind, **({"generators": 1} if mesh else {}))
    config = config.model_copy(update={"rollout": rollout, "loss": LossConfig(rlvr=RlvrConfig(importance="tis"))})
    refused = pytest.raises(ConfigError, match=r"rollout\.engine = vllm: ")
    with contextlib.nullcontext() if mesh else refused:
        check_substrate(config)


@pytest.mark.parametrize("kind", [kind for kind in SUBSTRATES if kind not in ("local", "trl")])
@pytest.mark.parametrize("field", ["env.use", "reward.function"])
def test_an_environment_or_reward_that_no_rollout_would_ask_is_refused_and_listed(kind, field):
    env = EnvConfig(use="gymnasium") if field == "env.use" else EnvConfig()
    reward = RewardConfig(function="my.module:score" if field == "reward.function" else None)
    base = run(type=kind)
    config = base.model_copy(update={"env": env, "reward": reward, "tasks": TasksConfig() if env.use else base.tasks})
    with pytest.raises(ConfigError, match=f"{field} = ") as refused:
        check_substrate(config)
    assert kind in refused.value.message
    assert any(line.startswith(field) for line in SUBSTRATES[kind].cannot), "composer doctor says so too"
