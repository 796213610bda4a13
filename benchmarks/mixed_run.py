"""One run on the tasks of ten projects in five languages (`examples/languages/sources.txt`): build, check, train for three steps.

The set is built with environments of its own (`tasks build --from --install`); the solution of every task must be rewarded, and
doing nothing must not. A small untaught policy then trains on it by `composer train` with the shell tools: what it samples is
worth nothing, but tasks of every language are played, graded and learned from. What is built and trained is kept below `--work`.
The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import tomli_w
from coverage_world import verdicts
from measuring import ROOT, emit

from composer_replication.api.runs import load_run
from composer_replication.loss.forward.models import save_policy
from composer_replication.quickstart.policy import tiny_model, tiny_tokenizer
from composer_replication.quickstart.warm_start import imitate
from composer_replication.tasks.folders import load_tasks
from composer_replication.tasks.report import BuildOptions
from composer_replication.tasks.sets.build_set import build_set
from composer_replication.tasks.sets.sources_file import read_sources
from composer_replication.tokens.renderer import ChatRenderer

SOURCES = ROOT / "examples" / "languages" / "sources.txt"
STEPS, GROUPS, CONTEXT = 3, 10, 4096
_MOST_TASKS, _TIMEOUT_S = 5, 600.0


def make_policy(folder: Path) -> None:
    """Make a policy that writes calls of tools, and knows nothing of these tasks."""
    tokenizer = tiny_tokenizer()
    tokenizer.model_max_length = CONTEXT
    model = tiny_model(tokenizer, 0, hidden=64, layers=2)
    model.config.max_position_embeddings = CONTEXT
    imitate(model, ChatRenderer(tokenizer), steps=60, seed=0, batch_size=4)
    save_policy(model, tokenizer, folder)


def train(work: Path) -> dict[str, Any]:
    """Train for three steps, and return how many rollouts of each language were graded."""
    if not (work / "policy").exists():
        make_policy(work / "policy")
    run_file = {
        "name": "run",
        "steps": STEPS,
        "threads": 1,
        "model": {"path": str(work / "policy"), "device": "cpu"},
        "tasks": {"train": str(work / "tasks")},
        "sandbox": {"shell": True},
        "rollout": {
            **{"groups": GROUPS, "group_size": 2, "turn_tokens": 48, "max_turns": 4},
            **{"trajectory_tokens": 512, "context_tokens": CONTEXT},
        },
        "loss": {"replay": {"weight": 0.0}},
    }
    (work / "run.toml").write_text(tomli_w.dumps(run_file), "utf-8")
    command = [sys.executable, "-c", "from composer_replication.cli import main; main()", "train", str(work / "run.toml")]
    begun = ["--resume"] if (work / "run").exists() else []
    done = subprocess.run([*command, "--out", str(work), *begun], text=True, stdin=subprocess.DEVNULL, check=False)
    if done.returncode:
        raise SystemExit(f"the run ended with {done.returncode}")
    languages = {task.spec.task_id: task.spec.language for task in load_tasks(work / "tasks")}
    run = load_run(work / "run")
    played = [row["trajectory"] for row in run.trajectories()]
    return {
        "rollouts": dict(sorted(Counter(languages[one.task_id] for one in played).items())),
        "scored": sum(isinstance(one.reward, float) for one in played),
        "steps": max(row["step"] for row in run.metrics),
    }


def main() -> None:
    """Build, check and train; exit with 1 where something does not hold."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, default=ROOT / "runs" / "mixed", help="keep tasks, policy and run here")
    parser.add_argument("--write", type=Path, help="write the figures to this file")
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    build = BuildOptions(install=True, max_tasks=_MOST_TASKS, timeout_s=_TIMEOUT_S)
    report = build_set(read_sources(SOURCES), options.work / "tasks", build)
    built = {one.source: one.tasks or one.reason for one in report.sources}
    print(json.dumps(built, indent=1), flush=True)
    wrong = verdicts(options.work / "tasks")
    found = train(options.work)
    repositories = sum(isinstance(count, int) for count in built.values())
    whole = repositories == len(built) and not any(wrong.values()) and found["steps"] == STEPS and len(found["rollouts"]) >= 4
    figures = {"built": built, "wrong": wrong, **found, "repositories": repositories, "passed": whole}
    emit("mixed_run", figures, options.write)
    raise SystemExit(not figures["passed"])


if __name__ == "__main__":
    main()
