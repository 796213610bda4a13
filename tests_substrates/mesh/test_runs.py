"""Two generators and one trainer, for real: each role is killed in turn, and the driver; the run completes, every group once."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import tomllib

import pytest
import tomli_w
from living import children, gone, gone_all
from one_gradient import LOSS, case, local_gradient, relative_error
from rich.console import Console
from stopped_members import StoppedGenerator, StoppedTrainer
from stopping import StoppedRewarder, stopped
from teacher_server import Reply, TeacherServer
from watched_trainer import WatchedTrainer
from world import name_teachers, run_text

from composer_replication.config import load_config, resolve_arm
from composer_replication.observe import RunDir, Terminal
from composer_replication.recipes.mesh.driver import Driver, Roles
from composer_replication.recipes.mesh.ledger import GroupLedger
from composer_replication.recipes.substrates import SUBSTRATES
from composer_replication.trainer.run_context import RunContext

STALL_S = 100.0
"""A limit that an actor's start keeps on a busy machine."""
VICTIMS = ("generator-0", "rewarder", "env-0", "trainer")


@pytest.fixture
def run_file(world, tmp_path, kind):
    path = tmp_path / "run.toml"
    data = tomllib.loads(run_text(world)) | {"steps": 7, "checkpoint_every": 3}
    data["substrate"] = {"type": kind, "generators": 2, "max_staleness": 1}
    data["eval"] = {"every": 7, "samples": 1}
    path.write_text(tomli_w.dumps(data))
    return path


def check_books(run, *, steps, groups=2, max_staleness=1):
    ledger = GroupLedger(run / "mesh" / "main")
    assert sorted(ledger.trained) == list(range(1, steps + 1))
    over = [n for numbers in ledger.trained.values() for n in numbers] + list(ledger.dropped)
    assert sorted(over) == sorted(ledger.issued), "each group once: trained on, or dropped"
    seen = []
    for step in range(1, steps + 1):
        trajectories = RunDir(run).read_trajectories("main", step)
        assert len({t.task_id for t in trajectories}) <= groups
        assert all(0 <= step - 1 - t.policy_version <= max_staleness for t in trajectories)
        seen += [t.trajectory_id for t in trajectories]
    assert len(set(seen)) == len(seen) == steps * groups * 3
    return ledger


async def killed_in_turn(driver):
    """Kill one role after each step."""
    for step, name in enumerate(VICTIMS, start=1):
        while driver.version < step or name not in driver.supervisor.handles or driver.supervisor.replaced.total() < step - 1:
            await asyncio.sleep(0.05)
        os.kill(driver.supervisor.handles[name].pid, signal.SIGKILL)


def test_each_role_is_killed_in_turn(run_file, on_mesh):
    """The pool of teachers too, while it asks them."""
    run = run_file.parent / "runs" / "run"
    handles = {}

    def slow(_body, number):
        if number == 3:
            os.kill(handles["teachers"].pid, signal.SIGKILL)
        return Reply(calls=[("list_files", {})])

    async def work(mesh):
        config = load_config(run_file, [])
        run_dir = RunDir.create(run)
        with Terminal(Console(quiet=True), on_event=run_dir.log_event).phase("") as shown:
            context = RunContext.open(config, run_dir, shown._terminal)
            driver = Driver(mesh, context, resolve_arm(config, "main"), "main", shown)
            handles_of(driver)
            killer = asyncio.create_task(killed_in_turn(driver))
            try:
                await driver.run()
            finally:
                killer.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await killer
            return driver

    def handles_of(driver):
        driver.supervisor.handles = handles

    with TeacherServer(slow) as server:
        name_teachers(run_file, server.base_url)
        driver = on_mesh(work, boxes=True)
    check_books(run, steps=7)
    assert driver.supervisor.replaced == dict.fromkeys((*VICTIMS, "teachers"), 1)
    assert RunDir(run).read_pairs("main")
    events = [e["message"] for e in RunDir(run).read_events() if "was replaced in" in e["message"]]
    print("\n".join(events))
    channels = [line.values for line in RunDir(run).read_metrics() if line.step > 0]
    assert any(values.get("replay/loss", 0.0) > 0 for values in channels)
    assert any(values.get("hint/turns", 0.0) > 0 and values["hint/loss"] > 0 for values in channels)
    assert all(values["rlvr/tokens"] > 0 for values in channels)


def test_whoever_is_stopped_is_replaced(run_file, on_mesh):
    """SIGSTOP: the trainer in its step and while its weights are fetched, a generator before it loads, the rewarder."""
    run = run_file.parent / "runs" / "run"

    async def work(mesh):
        config = load_config(run_file, ["--rollout.stall_s", str(STALL_S)])
        run_dir = RunDir.create(run)
        with Terminal(Console(quiet=True), on_event=run_dir.log_event).phase("") as shown:
            context = RunContext.open(config, run_dir, shown._terminal)
            roles = Roles(generator=StoppedGenerator, trainer=StoppedTrainer, rewarder=StoppedRewarder)
            driver = Driver(mesh, context, resolve_arm(config, "main"), "main", shown, roles)
            await driver.run()
            return driver

    driver = on_mesh(work, boxes=True)
    check_books(run, steps=7)
    events = [e["message"] for e in RunDir(run).read_events() if "was replaced in" in e["message"]]
    print("\n".join(events))
    assert stopped(run) == {"stepping", "sending", "loading", "grading"}
    assert driver.supervisor.replaced["trainer"] >= 2
    assert driver.supervisor.replaced["rewarder"] >= 1
    assert driver.supervisor.replaced["generator-0"] + driver.supervisor.replaced["generator-1"] >= 1


def wait_for(condition, process):
    while not condition():
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.1)


def test_the_driver_is_killed_and_the_run_resumed(run_file):
    """Its actors end with it; what they had finished is kept."""
    run = run_file.parent / "runs" / "run"
    before = children()
    command = [sys.executable, "-m", "composer_replication.cli", "train", str(run_file), "--resume"]
    command[1:3] = ["-c", "from composer_replication.cli import main; main()"]
    first = subprocess.Popen(command, cwd=run_file.parent, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        wait_for(lambda: len(GroupLedger(run / "mesh" / "main").trained) >= 5, first)
    finally:
        started = children() - before - {first.pid}
        first.kill()
        first.communicate()
    assert started
    assert gone_all(started)
    books = GroupLedger(run / "mesh" / "main")
    second = subprocess.run(command, cwd=run_file.parent, capture_output=True, text=True, check=False)
    assert second.returncode == 0, second.stdout + second.stderr
    assert "resumed at step 3 of 7" in second.stdout
    ledger = check_books(run, steps=7)
    assert {step: ledger.trained[step] for step in books.trained} == books.trained
    assert gone(before)
    assert json.loads((run / "summary.json").read_text())


def test_one_gradient(run_file, on_mesh, tmp_path):
    """The trainer of a mesh finds the gradient that `compose_loss` finds on the same batch."""
    fixed = case()
    config = load_config(run_file, [])
    optimizer = config.optimizer.model_copy(update={"max_grad_norm": 1e9, "micro_batch_tokens": 64})
    model = config.model.model_copy(update={"path": str(fixed.save(tmp_path / "policy"))})
    config = config.model_copy(update={"loss": LOSS, "optimizer": optimizer, "model": model})
    run_dir = RunDir.create(run_file.parent / "runs" / "gradient")

    async def work(mesh):
        trainer = await mesh.spawn("trainer", WatchedTrainer, config, "main", run_dir.path)
        return await trainer.call("gradient_of_update", fixed.batch)

    expected = local_gradient(fixed)
    assert relative_error(on_mesh(work), expected) < 1e-6


def test_the_extra_is_known(kind):
    assert not SUBSTRATES[kind].missing()
