"""PRIME-RL from the checkout that COMPOSER_PRIME_RL_SRC names, a tiny policy, and a run that every test can change."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CHECKOUT = Path(os.environ["COMPOSER_PRIME_RL_SRC"]).absolute()
os.environ["TORCHDYNAMO_DISABLE"] = "1"  # compiling its log-softmax for a CPU takes a minute
HERE = Path(__file__).resolve().parent
UPSTREAM = (CHECKOUT / "src", CHECKOUT / "packages" / "prime-rl-configs" / "src")
for place in (*UPSTREAM, ROOT / "tests_substrates" / "shared", HERE):
    sys.path.insert(0, str(place))


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("filterwarnings", "default")


@pytest.fixture(scope="session")
def tasks(tmp_path_factory):
    """A folder of two tasks."""
    from composer_replication.tasks.build import build_tasks
    from composer_replication.tasks.report import BuildOptions

    project = ROOT / "composer_replication" / "quickstart" / "projects" / "orchard"
    out = tmp_path_factory.mktemp("built") / "tasks"
    assert (
        len(
            build_tasks(str(project), out, BuildOptions(trivial=True, max_tasks=2, packages=("orchard/grafts.py",), jobs=1)).tasks
        )
        == 2
    )
    return out


@pytest.fixture(scope="session")
def policy(tmp_path_factory):
    """Model (float64, on the CPU), tokenizer and folder."""
    import torch

    from composer_replication.loss.forward.models import save_policy
    from composer_replication.quickstart.policy import tiny_model, tiny_tokenizer

    tokenizer = tiny_tokenizer()
    model = tiny_model(tokenizer, 0, hidden=32, layers=2)
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(0)
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    folder = tmp_path_factory.mktemp("policy")
    save_policy(model, tokenizer, folder)
    return model.double().eval(), tokenizer, folder


PAIRS = (
    (
        "one",
        "Which file?",
        '{"name": "read_file", "arguments": {"path": "a.py"}}',
        '{"name": "list_files", "arguments": {}}',
        1.0,
    ),
    ("two", "And now?", '{"name": "submit", "arguments": {}}', '{"name": "read_file", "arguments": {"path": "orchard.py"}}', 0.5),
    ("three", "What is left?", "Nothing is left.", '{"name": "run_tests", "arguments": {}}', 0.75),
)


@pytest.fixture(scope="session")
def pairs_file(tmp_path_factory):
    import json

    path = tmp_path_factory.mktemp("pairs") / "pairs.jsonl"
    rows = [
        {
            "state_id": name,
            "state_messages": [{"role": "user", "content": said}],
            "chosen": chosen,
            "rejected": rejected,
            "n_teachers_agreeing": 2,
            "confidence": confidence,
        }
        for name, said, chosen, rejected, confidence in PAIRS
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def run_file(tasks, policy, pairs_file):
    """`run_file(**overrides)` by dotted key: a resolved run that PRIME-RL can express, all channels on."""
    from composer_replication.config import load_config

    def make(path, **overrides):
        path.write_text(
            f'steps = 3\n[model]\npath = "{policy[2]}"\n[tasks]\ntrain = "{tasks}"\n[substrate]\ntype = "prime_rl"\n'
            "[rollout]\ngroups = 2\ngroup_size = 2\ncontext_tokens = 1000\ntrajectory_tokens = 500\nturn_tokens = 100\n"
            '[loss.hint]\nweight = 0.7\nform = "sampled_token"\nself_teacher = "live"\nreduction = "token"\n'
            f'[loss.replay]\nvariant = "dpo"\nweight = 0.4\npairs = "{pairs_file}"\npairs_per_step = 3\n'
        )
        words = [word for key, value in overrides.items() for word in (f"--{key}", str(value))]
        return load_config(path, words)

    return make


@pytest.fixture
def algorithm(run_file, policy, tmp_path, monkeypatch):
    """`algorithm(**overrides)`: ours, as PRIME-RL builds it and sets it up, and its run."""
    from prime_rl.configs.algorithm import GRPOAlgoConfig
    from prime_rl.orchestrator import algo
    from rollouts import Pool

    from composer_replication.recipes.prime_rl.algorithm import register
    from composer_replication.recipes.prime_rl.config import write_configs
    from composer_replication.recipes.prime_rl.settings import RUN_FILE

    monkeypatch.setitem(algo.ALGORITHM_CLASSES, "grpo", algo.ALGORITHM_CLASSES["grpo"])
    register()

    def make(**overrides):
        (toml,) = write_configs(run_file(tmp_path / "given.toml", **overrides), tmp_path / "out")
        monkeypatch.setenv(RUN_FILE, str(toml.parent / "run.toml"))
        built = algo.build_algorithm(GRPOAlgoConfig(), Pool(policy[0]))
        assert type(built).__name__ == "ComposerAlgorithm"
        asyncio.run(built.setup())
        return built, built.run_config

    return make
