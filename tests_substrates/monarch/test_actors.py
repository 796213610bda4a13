"""The Monarch classes of a run's roles, and a trainer that is two of them."""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import signal
import tomllib

import pytest
import tomli_w
import torch
from monarch_members import Judge, Member, pids_of
from one_gradient import LOSS, case, local_gradient, relative_error
from rich.console import Console
from watched_trainer import WatchedTrainer
from world import make_world, run_text

from composer_replication.config import load_config, resolve_arm
from composer_replication.observe import RunDir, Terminal
from composer_replication.recipes.mesh.driver import Driver
from composer_replication.recipes.mesh.generator import Generator
from composer_replication.recipes.mesh.ledger import GroupLedger
from composer_replication.recipes.mesh.sandbox_actors import EnvHost, Rewarder
from composer_replication.recipes.mesh.trainer import TeacherActor, Trainer
from composer_replication.recipes.monarch import actors
from composer_replication.recipes.monarch import mesh as monarch_mesh
from composer_replication.recipes.monarch.host import Host
from composer_replication.recipes.monarch.substrate import mesh_of
from composer_replication.trainer.run_context import RunContext
from composer_replication.types.errors import ConfigError

PLAIN = (Generator, Trainer, Rewarder, TeacherActor, EnvHost)
HANG_S = 1200


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return make_world(tmp_path_factory.mktemp("world"))


@pytest.fixture
def run_file(world, tmp_path):
    path = tmp_path / "run.toml"
    data = tomllib.loads(run_text(world)) | {"steps": 4, "checkpoint_every": 2}
    data["substrate"] = {"type": "monarch", "generators": 1, "max_staleness": 0}
    data["eval"] = {"every": 4, "samples": 1}
    state = [{"role": "user", "content": "How is cargo counted?"}]
    pair = {"state_messages": state, "rejected": "No.", "n_teachers_agreeing": 2}
    pairs = [{"state_id": f"s{i}", "chosen": f"In crates: {i}.", **pair} for i in range(6)]
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
    data["loss"] = {"replay": {"pairs": "pairs.jsonl"}}
    path.write_text(tomli_w.dumps(data))
    return path


def test_each_role_of_a_run_has_its_actor():
    assert [actors.actor_for(build).role for build in PLAIN] == ["generator", "trainer", "rewarder", "teachers", "env"]
    assert len({actors.actor_for(build) for build in PLAIN} - {Host}) == len(PLAIN)
    assert {actor.backend for actor in actors.ACTORS.values()} == {"monarch"}
    assert actors.actor_for(WatchedTrainer) is actors.TrainerActor
    assert actors.actor_for(Member) is Host


@pytest.mark.parametrize("build", PLAIN)
def test_an_endpoint_runs_a_method_of_its_role(build):
    actor = actors.actor_for(build)
    for method, name in actor.endpoints.items():
        assert inspect.isfunction(getattr(build, method))
        assert getattr(actor, name)._method.__closure__[0].cell_contents == method


def test_a_call_goes_through_the_endpoint_of_its_role(on_mesh, monkeypatch):
    orders = []
    ask = monarch_mesh._ask

    async def noted(handle, order, letters):
        orders.append(order)
        return await ask(handle, order, letters)

    monkeypatch.setattr(monarch_mesh, "_ask", noted)

    async def work(mesh):
        judge = await mesh.spawn("rewarder", Judge)
        assert judge.actor is actors.RewarderActor
        assert await judge.call("grade", "task", {"a.py": b"1"}) == "task: a.py"
        assert await judge.call("other") == "other"
        reply = await judge.hosts.slice(ranks=0).score.call_one("task", {})
        assert (reply.value, reply.error) == ("task: ", None)

    on_mesh(work)
    assert orders == ["build", "score", "run"]


def test_two_trainers_find_the_gradient_of_one(run_file, on_mesh, tmp_path):
    fixed = case()
    config = load_config(run_file, [])
    optimizer = config.optimizer.model_copy(update={"max_grad_norm": 1e9, "micro_batch_tokens": 1})
    model = config.model.model_copy(update={"path": str(fixed.save(tmp_path / "policy"))})
    config = config.model_copy(update={"loss": LOSS, "optimizer": optimizer, "model": model})
    run_dir = RunDir.create(tmp_path / "gradient")

    async def work(mesh):
        trainer = await mesh.spawn("trainer", WatchedTrainer, config, "main", run_dir.path)
        assert len(set(pids_of(trainer))) == 2
        assert await trainer.call_all("at") == [0, 0]
        return await trainer.call("gradient_of_update", fixed.batch)

    error = relative_error(on_mesh(work, ranks={"trainer": 2}), local_gradient(fixed))
    print(f"relative error of two trainers: {error:.1e}")
    assert error < 1e-5


def run_it(run_file, folder, trainers, *words, kill=None):
    """The driver of a finished run; with `kill`, that rank is killed after the third step."""
    config = load_config(run_file, ["--substrate.trainers", str(trainers), *words])
    run_dir = RunDir.create(folder)

    async def killed(driver):
        while driver.version < 3:
            await asyncio.sleep(0.05)
        os.kill(pids_of(driver.supervisor.handles["trainer"])[kill], signal.SIGKILL)

    async def work():
        mesh = mesh_of(config)
        try:
            async with asyncio.timeout(HANG_S):
                with Terminal(Console(quiet=True), on_event=run_dir.log_event).phase("") as shown:
                    context = RunContext.open(config, run_dir, shown._terminal)
                    driver = Driver(mesh, context, resolve_arm(config, "main"), "main", shown)
                    killer = asyncio.create_task(killed(driver)) if kill is not None else None
                    await driver.run()
                    if killer is not None:
                        await killer
                    return driver
        finally:
            await mesh.close()

    return asyncio.run(work())


def test_a_run_with_two_trainers_takes_the_steps_of_one(run_file, tmp_path):
    """One of them is killed: both come back from the checkpoint."""
    two = run_it(run_file, tmp_path / "two", 2, kill=1)
    one = run_it(run_file, tmp_path / "one", 1, "--steps", "1")
    assert len(pids_of(two.supervisor.handles["trainer"])) == 2
    assert two.supervisor.replaced == {"trainer": 1}
    ledger = GroupLedger(tmp_path / "two" / "mesh" / "main")
    assert sorted(ledger.trained) == [1, 2, 3, 4]
    assert sorted(n for numbers in ledger.trained.values() for n in numbers) == sorted(ledger.issued)
    first = [RunDir(tmp_path / name).read_trajectories("main", 1) for name in ("one", "two")]
    assert [t.turns for t in first[0]] == [t.turns for t in first[1]]
    alone, shared = (
        next(line.values for line in RunDir(tmp_path / name).read_metrics() if line.step == 1) for name in ("one", "two")
    )
    learnt = [name for name in alone if name.startswith(("rlvr/", "hint/", "replay/", "loss/", "optimizer/"))]
    assert alone["replay/loss"] > 0
    assert alone["optimizer/grad_norm"] > 0
    assert {name: shared[name] for name in learnt} == pytest.approx({name: alone[name] for name in learnt}, rel=1e-4, abs=1e-7)
    assert one.version == 1
    assert two.version == 4
    assert (tmp_path / "two" / "ckpt" / "main" / "step_00004" / "MANIFEST.sha256").is_file()


def test_more_trainers_than_gpus_are_refused(run_file, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    config = load_config(run_file, ["--model.device", "cuda", "--substrate.trainers", "2"])
    with pytest.raises(ConfigError, match=r"substrate\.trainers = 2: each trains on a separate GPU, and this machine has 1"):
        mesh_of(config)
