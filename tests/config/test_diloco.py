"""The section [diloco]: numbers that do not fit together are one clear error."""

from __future__ import annotations

import pytest
import tomli_w

from composer_replication.config import load_config
from composer_replication.errors import ConfigError
from composer_replication.recipes.diloco.job import check_job, rendezvous_of


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
        ({"sync_every": 10, "fragments": 3}, "sync_every = 10 is no multiple of fragments = 3"),
        ({"sync_every": 4, "fragments": 2, "delay": 2}, "delay = 2, and a round is held every 2 steps"),
        ({"replicas": 2, "quorum": 3}, "quorum = 3 of 2 replicas"),
        ({"steps": 25, "sync_every": 10}, "steps = 25 ends in the middle of a round"),
        ({"snapshot_every": 2, "state_every": 3}, "state_every = 3 is more than snapshot_every = 2"),
        ({"replicas": 3}, "rollout.groups = 8 cannot be shared out among 3 replicas"),
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
    check_job(run, resume=False, local=True)
    with pytest.raises(ConfigError, match="replicas elsewhere do not reach"):
        check_job(run, resume=False, local=False)
    check_job(config(rendezvous="memory://job-elsewhere"), resume=False, local=True)


def test_a_job_that_is_there_is_not_begun_again(config):
    run = config()
    (run.out / run.name / "store" / "arms" / "main").mkdir(parents=True)
    (run.out / run.name / "store" / "arms" / "main" / "run.json").write_text("{}")
    with pytest.raises(ConfigError, match="holds a job already"):
        check_job(run, resume=False, local=True)
    check_job(run, resume=True, local=True)


def test_a_run_without_replicas_is_none(config):
    with pytest.raises(ConfigError, match=r"diloco\.enabled = false"):
        check_job(config(enabled=False), resume=False, local=True)
