"""verl in this process: on the CPU, with the plan of a run, as `main_ppo`'s processes have it."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "shared"))
os.environ["VERL_PLATFORM"] = "cpu"
os.environ["WANDB_MODE"] = "disabled"
os.environ.setdefault("HF_HUB_OFFLINE", "1")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("filterwarnings", "default")


@pytest.fixture(scope="session")
def planned(tmp_path_factory):
    """A function that makes a plan for a policy the present one: verl's plugin is loaded with the first."""
    from composer_replication.config import ModelConfig, RunConfig, TasksConfig
    from composer_replication.recipes.verl.plan import PLAN, ArmPlan

    def plan(policy: Path, **sections):
        folder = tmp_path_factory.mktemp("arm")
        config = RunConfig(model=ModelConfig(path=str(policy)), tasks=TasksConfig(train=folder), **sections)
        made = ArmPlan("main", config, 512, folder)
        made.write()
        os.environ[PLAN] = str(made.path)
        import verl  # noqa: F401  loads the plugin

        return made

    return plan


@pytest.fixture(scope="session")
def alone():
    """torch.distributed with one rank."""
    import torch.distributed as dist

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    os.environ |= {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    dist.init_process_group("gloo")
    yield
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def case():
    """The policy and the batch of all substrates."""
    import one_gradient

    return one_gradient.case()


@pytest.fixture(scope="module")
def policy(case, tmp_path_factory):
    """The case's policy as a folder."""
    return case.save(tmp_path_factory.mktemp("policy") / "policy")


@pytest.fixture(scope="session")
def prepared(tmp_path_factory) -> Path:
    """The quickstart's tasks, policy and teachers. COMPOSER_PREPARED names a folder that is kept; it takes minutes to fill."""
    from composer_replication.observe import Terminal
    from composer_replication.quickstart.run import prepare

    folder = Path(os.environ.get("COMPOSER_PREPARED") or tmp_path_factory.mktemp("quickstart") / "prepared")
    prepare(folder, Terminal(), seed=0, sandbox="auto")
    return folder
