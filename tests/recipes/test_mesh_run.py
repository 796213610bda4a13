"""The real actors of a mesh, in this process: what they compute together is what the local recipe computes."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import json
import sys
from pathlib import Path

import pytest
import torch
from mesh_in_process import LocalMesh
from rich.console import Console
from safetensors.torch import load_file

from composer_replication.config import SubstrateConfig, load_config, resolve_arm
from composer_replication.loss.forward.models import load_policy
from composer_replication.observe import RunDir, Terminal
from composer_replication.observe.metrics import deterministic
from composer_replication.recipes.mesh.driver import Driver, Roles
from composer_replication.recipes.mesh.generator import Generator
from composer_replication.recipes.mesh.sandbox_actors import EnvHost, Rewarder
from composer_replication.recipes.substrates import check_substrate
from composer_replication.trainer.report import train
from composer_replication.trainer.run_context import RunContext

sys.path.insert(0, str(Path(__file__).parents[1] / "trainer"))
sys.path.insert(0, str(Path(__file__).parents[1] / "teachers"))
sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))
from once import made_once
from teacher_server import Reply, TeacherServer
from test_step_rewards import write_prm
from wire_servers import Backend, WireServer
from world import make_world, name_teachers, run_text, world_at


@pytest.fixture(scope="module")
def run_file(tmp_path_factory):
    root = tmp_path_factory.mktemp("run")
    path = root / "run.toml"
    path.write_text(run_text(world_at(made_once(tmp_path_factory, "world", make_world))))
    return path


@pytest.mark.slow
@pytest.mark.parametrize(("host", "method"), [("env-0", "step"), ("rewarder", "grade")])
def test_a_death_while_several_rollouts_wait_for_the_dead(run_file, tmp_path, host, method):
    """None of a generator's threads is waited for by the loop that its answer comes over."""

    def kill(handle, called):
        if (handle.name, called) == (host, method) and mesh.calls.count((host, method)) == 2:
            handle.die()

    mesh = LocalMesh(kill)
    substrate = SubstrateConfig(type="ray", generators=1, max_staleness=0)
    config = load_config(run_file, ["--steps", "1", "--loss.hint.detectors", "[]"]).model_copy(update={"substrate": substrate})
    run_dir = RunDir.create(tmp_path / "run")

    async def main():
        context = RunContext.open(config, run_dir, Terminal(Console(quiet=True)))
        with context.terminal.phase("") as shown:
            driver = Driver(mesh, context, resolve_arm(config, "main"), "main", shown)
            await driver.run()
        return driver

    assert asyncio.run(main()).supervisor.replaced[host] == 1


class StuckOnce:
    stuck = False

    @classmethod
    async def here(cls):
        if not cls.stuck:
            cls.stuck = True
            await asyncio.Event().wait()


class StuckHost(EnvHost, StuckOnce):
    async def step(self, episode, call):
        await self.here()
        return await super().step(episode, call)


class StuckRewarder(Rewarder, StuckOnce):
    async def grade(self, task_id, submission):
        await self.here()
        return await super().grade(task_id, submission)


class StuckGenerator(Generator, StuckOnce):
    async def _load(self, ticket):
        await self.here()
        await super()._load(ticket)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("stuck", "name"),
    [({"env": StuckHost}, "env-0"), ({"rewarder": StuckRewarder}, "rewarder"), ({"generator": StuckGenerator}, "generator-0")],
)
def test_who_keeps_rollouts_waiting_is_replaced(run_file, tmp_path, stuck, name, monkeypatch):
    """A call that never returns, of an actor that answers others."""
    (actor,) = stuck.values()
    monkeypatch.setattr(actor, "stuck", False)
    substrate = SubstrateConfig(type="ray", generators=1, max_staleness=0)
    config = load_config(run_file, ["--steps", "1", "--rollout.stall_s", "15"]).model_copy(update={"substrate": substrate})
    run_dir = RunDir.create(tmp_path / "run")

    async def main():
        context = RunContext.open(config, run_dir, Terminal(Console(quiet=True), on_event=run_dir.log_event))
        with context.terminal.phase("") as shown:
            driver = Driver(LocalMesh(), context, resolve_arm(config, "main"), "main", shown, Roles(**stuck))
            await driver.run()
        return driver

    assert asyncio.run(main()).supervisor.replaced[name] >= 1
    assert any(" did not " in event["message"] for event in run_dir.read_events())


@pytest.mark.slow
def test_a_synchronous_mesh_with_one_generator_is_the_local_recipe(run_file, tmp_path):
    """Same trajectories, same metrics, same weights to the bit."""
    same_as_local(tmp_path, load_config(run_file, ["--name", "local", "--steps", "2"]))


@pytest.mark.slow
def test_a_mesh_reads_gate_step_rewards_and_muon_like_the_local_recipe(run_file, tmp_path):
    """Its teachers' actor asks the trainer's policy for the entropies that the gate reads."""
    path = tmp_path / "run.toml"
    path.write_text(run_file.read_text())
    words = ["--name", "local", "--steps", "2", "--optimizer.type", "muon", "--loss.replay.gate.rule", "flat"]
    words += ["--reward.prm.path", str(write_prm(tmp_path / "prm")), "--reward.prm.weight", "0.5"]
    words += ["--loss.replay.gate.doubtful", "0.2", "--loss.replay.gate.audit", "0", "--loss.replay.gate.findings", "false"]
    with TeacherServer(lambda _body, _number: Reply(calls=[("list_files", {})])) as server:
        name_teachers(path, server.base_url)
        logged = same_as_local(tmp_path, load_config(path, words))
    assert logged["replay/states_asked"] > 0 < logged["replay/states_skipped"]
    assert logged["replay/pairs"] > 0
    assert 0 < logged["reward/prm/mean"] < 1


def same_as_local(tmp_path, local):
    """Run a local configuration here and on a mesh; the metrics of the last step."""
    run_dir = RunDir.create(tmp_path / "local")
    quiet = Terminal(Console(quiet=True))
    asyncio.run(train(local, run_dir, quiet))

    substrate = SubstrateConfig(type="ray", generators=1, max_staleness=0)
    config = resolve_arm(local.model_copy(update={"name": "mesh", "substrate": substrate}), "main")
    mesh_dir = RunDir.create(tmp_path / "mesh")

    async def main():
        context = RunContext.open(config, mesh_dir, quiet)
        with quiet.phase("") as shown:
            await Driver(LocalMesh(), context, config, "main", shown).run()

    asyncio.run(main())
    for step in (1, 2):
        ours, theirs = mesh_dir.read_trajectories("main", step), run_dir.read_trajectories("main", step)
        assert [t.trajectory_id for t in ours] == [t.trajectory_id for t in theirs]
        assert [t.turns for t in ours] == [t.turns for t in theirs]
        assert [t.reward for t in ours] == [t.reward for t in theirs]
        assert mesh_dir.read_hints("main", step) == run_dir.read_hints("main", step)
    weights = [load_file(d.ckpt_path / "main" / "step_00002" / "model.safetensors") for d in (mesh_dir, run_dir)]
    assert weights[0].keys() == weights[1].keys()
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    ours, theirs = (
        {line.step: deterministic(line.values) for line in d.read_metrics() if line.step > 0} for d in (mesh_dir, run_dir)
    )
    assert ours == theirs
    return ours[2]


@pytest.mark.slow
@pytest.mark.parametrize("generators", [1, 2])
def test_generators_sample_from_servers_that_get_each_version_of_the_weights(run_file, tmp_path, generators):
    policy, tokenizer = load_policy(load_config(run_file).model)
    backends = [Backend(copy.deepcopy(policy), tokenizer) for _ in range(generators)]
    with contextlib.ExitStack() as stack:
        urls = [stack.enter_context(WireServer("sglang", backend)).url for backend in backends]
        words = ["--steps", "3", "--rollout.engine", "sglang", "--loss.rlvr.importance", "icepop", "--loss.hint.weight", "0"]
        words += ["--reward.effort.weight", "0.02"]  # where no verdicts differ, advantages do
        words += ["--rollout.server_url", json.dumps(urls), "--substrate.type", "ray", "--substrate.generators", str(generators)]
        config = load_config(run_file, [*words, "--substrate.max_staleness", "0"])
        check_substrate(config)
        run_dir = RunDir.create(tmp_path / "run")

        async def main():
            context = RunContext.open(config, run_dir, Terminal(Console(quiet=True)))
            with context.terminal.phase("") as shown:
                await Driver(LocalMesh(), context, resolve_arm(config, "main"), "main", shown).run()

        asyncio.run(main())
    for step in (1, 2, 3):
        assert {t.policy_version for t in run_dir.read_trajectories("main", step)} == {step - 1}
    last = run_dir.read_metrics()[-1].values
    assert last["rlvr/importance/mean"] == pytest.approx(1.0, abs=1e-4), "the log-probs are those of the weights that sampled"
    loads = [sum(path == "/update_weights_from_disk" for path, _ in backend.asked) for backend in backends]
    assert all(1 <= count <= 4 for count in loads), loads
    assert sum(loads) >= 3
    sampled = [sum(path == "/generate" for path, _ in backend.asked) for backend in backends]
    assert min(sampled) > 10, "every server is at work"
