"""`composer train` on verl is killed after a step: nothing is left running, and it goes on with the steps it would have taken."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from subprocess import PIPE

import pytest
from living import gone_all

from composer_replication.config import RunConfig, to_toml
from composer_replication.observe import RunDir
from composer_replication.quickstart.run import quickstart_config
from composer_replication.quickstart.teachers import TEACHERS, served
from composer_replication.recipes.verl.plan import PLAN

ARM, KILLED_AFTER, STEPS = "three_channels", 3, 4
NOT_ITS = {PLAN, "VERL_PLATFORM", "RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"}
"""What other tests set for a process that is a rank itself."""
SAME = ("reward/mean", "rlvr/loss", "hint/loss", "hint/turns", "replay/loss", "optimizer/grad_norm")


def steps_of(run: Path) -> dict[int, dict[str, float]]:
    if not (run / "metrics.jsonl").exists():
        return {}
    return {line.step: line.values for line in RunDir(run).read_metrics() if line.step > 0}


def test_killed_after_a_step_it_goes_on_from_its_checkpoint(prepared, tmp_path):
    run, run_file = tmp_path / "run", tmp_path / "run.toml"
    command = [str(Path(sys.executable).with_name("composer")), "train", str(run_file)]
    environment = {name: value for name, value in os.environ.items() if name not in NOT_ITS}
    with served({name: prepared / "teachers" / name for name in TEACHERS}) as teachers:
        made = quickstart_config(prepared, run, teachers, seed=0, steps=STEPS, sandbox="auto").model_dump()
        made["rollout"] |= {"group_size": 4}
        made |= {"arms": {ARM: {}}, "substrate": {"type": "verl"}, "checkpoint_every": 2}
        made["eval"] |= {"every": STEPS, "samples": 1}
        run_file.write_text(to_toml(RunConfig.model_validate(made)))
        with (
            (tmp_path / "said").open("wb") as said,
            subprocess.Popen(command, stdout=said, stderr=said, env=environment) as process,
        ):
            while KILLED_AFTER not in steps_of(run):
                assert process.poll() is None, (tmp_path / "said").read_text()[-2000:]
                time.sleep(0.2)
            process.kill()
        before = steps_of(run)[KILLED_AFTER]
        left = (int(pid) for pid in subprocess.run(["pgrep", "-f", str(run)], stdout=PIPE, text=True, check=False).stdout.split())
        assert gone_all(left)  # the guard asks them to end, and kills who does not
        subprocess.run([*command, "--resume"], check=True, env=environment)
    after = steps_of(run)
    assert sorted(after) == list(range(1, STEPS + 1))
    for name in SAME:
        assert after[KILLED_AFTER][name] == pytest.approx(before[name], rel=1e-4), name
    assert any(after[KILLED_AFTER][name] != 0 for name in ("rlvr/loss", "hint/loss"))
