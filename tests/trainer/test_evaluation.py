"""`composer eval`: pass@k of policies on the held-out tasks of a run."""

from __future__ import annotations

import json
import math
import random
import statistics
from itertools import combinations
from pathlib import Path

import pytest
import scipy.stats
from in_process import composer_here
from made_trajectories import scored_group
from world import World

from composer_replication.config import load_config
from composer_replication.observe.metrics import interval_95, pass_at_k
from composer_replication.tasks import load_tasks
from composer_replication.trainer.stages.evaluation import policies_of, score
from composer_replication.types import Unscored
from composer_replication.types.errors import ConfigError


def test_pass_at_k_is_the_share_of_all_subsets_that_pass() -> None:
    draw = random.Random(1)
    for n in range(1, 8):
        rewards = [float(draw.random() < 0.4) for _ in range(n)]
        for k in range(1, n + 1):
            exact = statistics.mean(float(any(some)) for some in combinations(rewards, k))
            assert pass_at_k([("task", reward) for reward in rewards], k) == pytest.approx([exact])


def test_pass_at_k_leaves_out_unscored_rollouts_and_tasks_with_too_few() -> None:
    broken = Unscored("the box broke")
    rewards = [("a", 1.0), ("a", 0.0), ("a", broken), ("b", 0.5), ("b", broken), ("c", broken)]
    assert pass_at_k(rewards, 1) == [0.5, 0.0]
    assert pass_at_k(rewards, 2) == [1.0]
    assert pass_at_k(rewards, 3) == []


def test_the_interval_of_equal_outcomes_is_the_binomial_one() -> None:
    for n in (1, 5, 40):
        exact = scipy.stats.binomtest(0, n).proportion_ci(0.95, method="exact")
        assert interval_95([0.0] * n) == pytest.approx((exact.low, exact.high))
        assert interval_95([1.0] * n) == pytest.approx((1.0 - exact.high, 1.0))
    values = [0.0, 0.25, 0.5, 1.0, 0.0, 0.75, 0.25]
    low, high = scipy.stats.t.interval(0.95, len(values) - 1, statistics.mean(values), scipy.stats.sem(values))
    assert interval_95(values) == pytest.approx((low, high), abs=1e-3)
    assert all(math.isnan(end) for end in interval_95([0.5]))
    assert all(math.isnan(end) for end in interval_95([]))


def test_a_result_is_json_also_where_nothing_can_be_estimated() -> None:
    found = score("policy", "folder", [scored_group("a", 0.5)])
    plain = json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert plain["pass_at_1_se"] is None
    assert plain["pass_at"] == [{"k": 1, "tasks": 1, "mean": 0.0, "low": 0.0, "high": pytest.approx(0.975)}]


def test_the_policies_of_a_run(run_file: Path, world: World) -> None:
    config = load_config(run_file)
    assert policies_of(config) == {"start": str(world.policy)}
    for folder in ("sft/ckpt/main/step_00050", "ckpt/main/step_00010", "ckpt/main/step_00020"):
        (config.out / config.name / folder).mkdir(parents=True)
        (config.out / config.name / folder / "MANIFEST.sha256").write_text("")
    run = config.out / config.name
    assert policies_of(config) == {
        "start": str(world.policy),
        "sft": str(run / "sft/ckpt/main/step_00050"),
        "main": str(run / "ckpt/main/step_00020"),
    }
    with pytest.raises(ConfigError, match="the arm sft"):
        policies_of(load_config(run_file, ["--arms.sft.steps", "1"]))


@pytest.mark.slow
def test_policies_are_compared_and_nothing_is_rolled_out_twice(run_file: Path, world: World) -> None:
    words = ["eval", str(run_file), "--eval.samples", "3", "--policy", f"one={world.policy}", "--policy", f"other={world.policy}"]
    done = composer_here(*words, "--json", cwd=run_file.parent)
    assert done.returncode == 0, done.stderr
    one, other = json.loads(done.stdout)
    tasks = {task.spec.task_id for task in load_tasks(world.held_out)}
    assert set(one["pass_rates"]) == tasks
    assert (one["tasks"], one["rollouts"], one["unscored"]) == (len(tasks), 3 * len(tasks), 0)
    assert [each["k"] for each in one["pass_at"]] == [1, 2]
    assert one["pass_rates"] == other["pass_rates"]  # the same weights and draws
    assert "other against one, on 2 tasks: pass@1 +0.000" in done.stderr
    folder = run_file.parent / "runs" / "run" / "eval"
    kept = sorted((folder / "rollouts").glob("*/part_*.jsonl"))
    assert len(kept) == 2
    before = [path.stat().st_mtime_ns for path in kept]
    again = composer_here(*words, "--json", cwd=run_file.parent)
    assert json.loads(again.stdout) == [one, other]
    assert [path.stat().st_mtime_ns for path in kept] == before
    later = composer_here(*words, "--rollout.env_workers", "1", "--eval.every", "9", "--json", cwd=run_file.parent)
    assert json.loads(later.stdout) == [one, other]  # neither changes a rollout
    assert [path.stat().st_mtime_ns for path in kept] == before
    assert json.loads((folder / "results.json").read_text()) == [one, other]
    kept[0].unlink()  # as if it had been interrupted
    assert json.loads(composer_here(*words, "--json", cwd=run_file.parent).stdout) == [one, other]
    assert (folder / "report.html").is_file()
    shell = composer_here(*words[:6], "--sandbox.shell", "true", "--json", cwd=run_file.parent)
    assert shell.returncode == 0, shell.stderr
    assert len(sorted((folder / "rollouts").glob("*/part_*.jsonl"))) == 3  # other tools, other rollouts


def test_what_cannot_be_evaluated_is_refused(run_file: Path) -> None:
    done = composer_here("eval", str(run_file), "--policy", "nameless", cwd=run_file.parent)
    assert done.returncode == 2
    assert "write --policy tuned=path/to/model" in done.stderr
    text = run_file.read_text()
    run_file.write_text("\n".join(line for line in text.splitlines() if not line.startswith("held_out")))
    done = composer_here("eval", str(run_file), cwd=run_file.parent)
    assert done.returncode == 2
    assert "no held-out tasks to evaluate on" in done.stderr
