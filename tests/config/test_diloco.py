"""The section [diloco]: numbers that do not fit together are one clear error."""

from __future__ import annotations

import pytest
import tomli_w

from composer_replication.config import load_config
from composer_replication.diloco import serverless
from composer_replication.recipes.diloco.job import check_job, open_executor, rendezvous_of
from composer_replication.types.errors import ConfigError


@pytest.fixture
def config(tmp_path):
    """`config(**diloco)` is a run of replicas."""

    def load(steps=20, **diloco):
        (tmp_path / "tasks").mkdir(exist_ok=True)
        run = {"steps": steps, "model": {"path": "policy"}, "tasks": {"train": "tasks"}, "diloco": {"enabled": True, **diloco}}
        path = tmp_path / "run.toml"
        path.write_text(tomli_w.dumps(run))
        return load_config(path)

    return load


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"sync_every": 10, "fragments": 3}, "sync_every = 10 is not a multiple of fragments = 3"),
        ({"sync_every": 4, "fragments": 2, "delay": 2}, "delay = 2, and a round is held every 2 steps"),
        ({"replicas": 2, "quorum": 3}, "quorum = 3 of 2 replicas"),
        ({"replicas": 4, "quorum": 3}, "quorum = 3, deadline_s = None and 4 replicas"),
        ({"deadline_s": 5.0}, "quorum = None, deadline_s = 5.0 and 2 replicas"),
        ({"quorum": 2, "deadline_s": 5.0}, "quorum = 2, deadline_s = 5.0 and 2 replicas"),
        ({"quorum": 1, "deadline_s": 50.0, "timeout_s": 50.0}, "deadline_s = 50 is not less than timeout_s = 50"),
        ({"steps": 25, "sync_every": 10}, "steps = 25 ends in the middle of a round"),
        ({"snapshot_every": 2, "state_every": 3}, "state_every = 3 is more than snapshot_every = 2"),
        ({"replicas": 3}, "rollout.groups = 8 cannot be shared out among 3 replicas"),
        ({"executor": {"image": "python:3.11"}}, "image = python:3.11 is not read with type = local"),
        ({"executor": {"type": "hf", "gpu": "A100"}}, "gpu = A100 is not read with type = hf"),
        ({"executor": {"type": "modal", "hardware": "a10g-large"}}, "hardware = a10g-large is not read with type = modal"),
        ({"executor": {"type": "slurm"}}, "diloco.executor.type"),
        ({"executor": {"restarts": -1}}, "diloco.executor.restarts"),
        ({"enabled": False, "codec": "fp32"}, "codec = fp32 is not read with enabled = false"),
        ({"codec": "zip"}, "diloco.codec"),
    ],
)
def test_what_does_not_fit_is_refused(config, given, says):
    with pytest.raises(ConfigError, match=says):
        config(**given)


def test_replicas_elsewhere_need_a_store_they_can_reach(config):
    run = config()
    assert rendezvous_of(run) == str(run.out / run.name / "store")
    check_job(run, resume=False)
    for executor in ("modal", "hf", "sky"):
        with pytest.raises(ConfigError, match="replicas elsewhere do not reach"):
            check_job(config(executor={"type": executor}), resume=False)
    with pytest.raises(ConfigError, match="replicas elsewhere do not reach"):
        check_job(config(executor={"type": "modal"}, rendezvous=str(run.out)), resume=False)
    check_job(config(executor={"type": "sky"}, rendezvous=str(run.out)), resume=False)
    check_job(config(rendezvous="memory://job-elsewhere"), resume=False)


def test_a_job_that_is_there_is_not_begun_again(config):
    run = config()
    (run.out / run.name / "store" / "arms" / "main").mkdir(parents=True)
    (run.out / run.name / "store" / "arms" / "main" / "run.json").write_text("{}")
    with pytest.raises(ConfigError, match="holds a job already"):
        check_job(run, resume=False)
    check_job(run, resume=True)


def test_a_run_without_replicas_is_none(config):
    with pytest.raises(ConfigError, match=r"diloco\.enabled = false"):
        check_job(config(enabled=False), resume=False)


IN_CONTAINERS = {"image": "ghcr.io/me/it:1", "setup": "", "env": {"COLOUR": "blue"}, "secrets": ["THE_KEY"]}
WHERE_NOT_SET = {"env": {}, "secrets": ()}


@pytest.mark.parametrize(
    ("kind", "name", "given", "made"),
    [
        ("modal", "ModalExecutor", {"gpu": "H100:8", "cpu": 2.0, "region": "us"}, {"gpu": "H100:8", "cpu": 2.0, "region": "us"}),
        ("hf", "HFJobsExecutor", {"hardware": "a10g-large", "namespace": "us"}, {"hardware": "a10g-large", "namespace": "us"}),
        (
            "sky",
            "SkyExecutor",
            {"infra": "aws", "cpus": "8+", "use_spot": True},
            {"infra": "aws", "cpus": "8+", "use_spot": True},
        ),
    ],
)
def test_the_executor_is_made_with_what_the_run_file_says_of_it(config, monkeypatch, kind, name, given, made):
    monkeypatch.setattr(serverless, name, lambda **options: options, raising=False)
    more = {"use_spot": False} if kind == "sky" else {}
    assert open_executor(config(executor={"type": kind}).diloco.executor) == WHERE_NOT_SET | more
    found = open_executor(config(executor={"type": kind, **IN_CONTAINERS, **given}).diloco.executor)
    assert found == IN_CONTAINERS | {"secrets": ("THE_KEY",)} | made


def test_replicas_of_this_machine_are_the_default_and_an_empty_image_is_skypilots_own_machine(config, monkeypatch):
    assert isinstance(open_executor(config().diloco.executor), serverless.LocalProcessExecutor)
    monkeypatch.setattr(serverless, "SkyExecutor", lambda **options: options, raising=False)
    assert open_executor(config(executor={"type": "sky", "image": ""}).diloco.executor)["image"] is None
