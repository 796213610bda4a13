"""PRIME-RL's orchestrator passes its own tests with our algorithm in the place of its GRPO."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from composer_replication.recipes.prime_rl.config import write_configs
from composer_replication.recipes.prime_rl.settings import RUN_FILE

CHECKOUT = Path(os.environ["COMPOSER_PRIME_RL_SRC"]).absolute()
ROOT = Path(__file__).resolve().parents[2]
NEEDS_VLLM = "tests/unit/orchestrator/test_prefill_logprobs.py"


def test_its_own_tests_pass_beside_our_algorithm(run_file, tmp_path):
    stock = {"loss.rlvr.advantage": "dr_grpo", "loss.hint.weight": "0", "loss.replay.weight": "0"}
    (toml,) = write_configs(run_file(tmp_path / "given.toml", **stock), tmp_path / "out")
    paths = (
        CHECKOUT / "src",
        CHECKOUT / "packages" / "prime-rl-configs" / "src",
        Path(__file__).parent,
        ROOT,
        os.environ.get("PYTHONPATH"),
    )
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(str(path) for path in paths if path),
        "PYTHONDONTWRITEBYTECODE": "1",
        RUN_FILE: str(toml.parent / "run.toml"),
    }
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "beside"]
    tests = ["tests/unit/orchestrator", "--ignore", NEEDS_VLLM]
    done = subprocess.run([*command, *tests], cwd=CHECKOUT, env=environment, capture_output=True, text=True)
    print(done.stdout[-2000:])
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout
