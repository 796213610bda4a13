"""Stopping processes, and a rewarder that stops itself; its process needs no torch."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from composer_replication.recipes.mesh.sandbox_actors import Rewarder


def stop_once(run, name, pid=None):
    """Stop a process, this one by default, the first time that this is asked for under this name in this run."""
    try:
        (Path(run) / f"stopped.{name}").touch(exist_ok=False)
    except FileExistsError:
        return
    os.kill(pid or os.getpid(), signal.SIGSTOP)


def stopped(run):
    """What was stopped."""
    return {path.suffix[1:] for path in Path(run).glob("stopped.*")}


class StoppedRewarder(Rewarder):
    def __init__(self, port, boxes, verdicts):
        super().__init__(port, boxes, verdicts)
        self.run = verdicts.parent

    async def grade(self, task_id, submission):
        if (self.run / "stopped.stepping").exists():
            stop_once(self.run, "grading")
        return await super().grade(task_id, submission)
