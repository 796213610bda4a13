"""One real use of what an extra installs, in an environment that holds nothing else; then the versions that it ran with.

usage: python smoke.py EXTRA [--write FILE]          FILE collects versions by extra, as JSON
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import platform
import tempfile
from collections.abc import Callable, Mapping
from importlib.metadata import requires, version
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

ALWAYS = ("torch", "transformers", "openai")


def tasks(folder: Path) -> Path:
    """A folder with one task."""
    from composer_replication.quickstart.language import project_path
    from composer_replication.tasks.build import build_tasks
    from composer_replication.tasks.report import BuildOptions

    options = BuildOptions(trivial=True, max_tasks=1, packages=("orchard/grafts.py",), jobs=1)
    assert build_tasks(str(project_path("orchard")), folder / "tasks", options).tasks
    return folder / "tasks"


def replaysim(_: Path) -> None:
    """data-juicer's own operators keep a pair."""
    from composer_replication.replaysim import DJNormalizer
    from composer_replication.teacher_replay import DPOPair

    words = "The tests pass once the price is rounded down, so I changed the division and ran them again."
    pair = DPOPair(
        state_id="1",
        state_messages=[{"role": "user", "content": words}],
        chosen=words,
        rejected="I left the division as it was, since the tests that fail are about something else altogether.",
        n_teachers_agreeing=2,
    )
    assert len(DJNormalizer(backend="data_juicer").normalize([pair])) == 1


def trl(folder: Path) -> None:
    """A step of our trainer moves the policy."""
    from datasets import Dataset
    from trl import GRPOConfig

    from composer_replication.quickstart.policy import tiny_model, tiny_tokenizer
    from composer_replication.recipes.trl.composer_trainer import ComposerReplicationTrainer

    tokenizer = tiny_tokenizer()
    model = tiny_model(tokenizer, 0, hidden=32, layers=2)
    before = [p.detach().clone() for p in model.parameters()]
    config = GRPOConfig(
        output_dir=str(folder),
        max_steps=1,
        per_device_train_batch_size=4,
        num_generations=4,
        max_completion_length=4,
        use_cpu=True,
        bf16=False,
        report_to="none",
        save_strategy="no",
    )
    ComposerReplicationTrainer(
        model=model,
        args=config,
        reward_funcs=[lambda completions, **_: [float(n) for n in range(len(completions))]],
        train_dataset=Dataset.from_list([{"prompt": "def f():"}] * 4),
        processing_class=tokenizer,
    ).train()
    assert any(not bool((p == old).all()) for p, old in zip(model.parameters(), before, strict=True))


def openenv(folder: Path) -> None:
    """A session of the server's environment."""
    from composer_replication.envs.suite import TaskSuite
    from composer_replication.integrations.openenv import CodingAction, CodingSession

    session = CodingSession(TaskSuite(tasks(folder)), itertools.count())
    session.reset()
    assert session.step(CodingAction(tool="list_files", arguments={})).content


def verifiers(folder: Path) -> None:
    """The taskset loads."""
    from composer_replication.integrations.verifiers import CodingTaskset, CodingTasksetConfig

    assert list(CodingTaskset(CodingTasksetConfig(tasks=tasks(folder))).load())


def gymnasium(folder: Path) -> None:
    """An episode begins."""
    import gymnasium

    env = gymnasium.make("composer_replication.integrations.gymnasium:CodingTasks-v0", folder=str(tasks(folder)))
    observation, _ = env.reset(seed=0)
    assert observation["status"] == "ok"
    env.close()


def peft(_: Path) -> None:
    """LoRA takes a gradient from the loss."""
    from peft import LoraConfig, get_peft_model

    from composer_replication.loss import compose_loss
    from composer_replication.loss.batch import build_batch
    from composer_replication.quickstart.policy import tiny_model, tiny_tokenizer

    tokenizer = tiny_tokenizer()
    model = tiny_model(tokenizer, 0, hidden=32, layers=2)
    adapted = get_peft_model(model, LoraConfig(r=2, target_modules=["q_proj"], task_type="CAUSAL_LM"))
    compose_loss(adapted, build_batch(tokenizer, model=adapted)).total.backward()
    assert any(p.grad is not None and bool(p.grad.any()) for p in adapted.parameters())


def torchao(_: Path) -> None:
    """AdamW with moments of 8 bits takes a step."""
    import torch

    from composer_replication.trainer.learning.low_memory import make_8bit_adamw

    weight = torch.nn.Parameter(torch.ones(64, 64))
    weight.grad = torch.ones_like(weight)
    make_8bit_adamw([weight], lr=0.1, betas=(0.9, 0.99), weight_decay=0.0).step()
    assert bool((weight < 1).all())


def remote(_: Path) -> None:
    """A server that is not there is said to be."""
    from composer_replication.sandbox import open_sandbox
    from composer_replication.types.errors import SandboxError

    said = ""
    try:
        open_sandbox("remote:http://127.0.0.1:9")
    except SandboxError as error:
        said = str(error)
    assert "127.0.0.1" in said


def verl(folder: Path) -> None:
    """verl loads our plugin inside a run, and knows our policy loss then."""
    import os

    from composer_replication.config import ModelConfig, RunConfig, TasksConfig
    from composer_replication.recipes.verl.plan import PLAN, ArmPlan

    config = RunConfig(model=ModelConfig(path=str(folder)), tasks=TasksConfig(train=folder))
    plan = ArmPlan("main", config, 512, folder / "arm")
    plan.write()
    os.environ |= {PLAN: str(plan.path), "VERL_PLATFORM": "cpu"}
    from verl.trainer.ppo.core_algos import get_policy_loss_fn

    assert get_policy_loss_fn("composer").__module__.startswith("composer_replication")


def ray(_: Path) -> None:
    """An actor of the mesh answers."""
    from composer_replication.recipes.ray.mesh import RayMesh

    assert asyncio.run(_asked(RayMesh(store_bytes=100 << 20))) > 0


def monarch(_: Path) -> None:
    """An actor of the mesh answers."""
    from composer_replication.recipes.monarch.mesh import MonarchMesh

    assert asyncio.run(_asked(MonarchMesh())) > 0


def modal(_: Path) -> None:
    """A replica would be a sandbox with the image that is named."""
    from composer_replication.diloco.serverless import ModalExecutor

    assert ModalExecutor(image="python:3.11", gpu="A100").backend_name == "modal"


def hf(_: Path) -> None:
    """A service that is not there is said to be."""
    import os

    os.environ |= {"HF_ENDPOINT": "http://127.0.0.1:9", "HF_TOKEN": "hf_none"}
    from composer_replication.diloco.serverless import HFJobsExecutor
    from composer_replication.types.errors import BackendError

    said = ""
    try:
        HFJobsExecutor(hardware="a10g-large").launch_replicas(1, "m:f", {"rendezvous_uri": "s3://bucket/run"})
    except BackendError as error:
        said = str(error)
    assert "does not answer" in said


def sky(folder: Path) -> None:
    """Resources that are none are said to be."""
    from composer_replication.diloco.serverless import SkyExecutor
    from composer_replication.types.errors import ConfigError

    said = ""
    try:
        SkyExecutor(cpus="many").launch_replicas(1, "m:f", {"rendezvous_uri": folder})
    except ConfigError as error:
        said = str(error)
    assert "many" in said


def diloco(_: Path) -> None:
    """A replica that is alone holds a round."""
    from torch import nn, optim

    from composer_replication.diloco.manager import MockManager
    from composer_replication.diloco.outer_loop import make_diloco_outer_loop

    model = nn.Linear(2, 2)
    inner = optim.SGD(model.parameters(), lr=0.1)
    with make_diloco_outer_loop(MockManager(), model, inner_optimizer=inner, sync_every=1) as loop:
        model.weight.square().sum().backward()
        inner.step()
    assert loop.round == 1


async def _asked(mesh: Any) -> float:
    """CPU-seconds of an actor that it is given."""
    from composer_replication.recipes.mesh.sandbox_actors import EnvHost, SandboxPool

    boxes = SandboxPool(tasks={}, pythons={}, limits={}, sandbox="auto", toolset="basic", workers=1)
    try:
        return float(await (await mesh.spawn("env-0", EnvHost, boxes)).call("cpu_s"))
    finally:
        await mesh.close()


SMOKE: Mapping[str, Callable[[Path], None]] = {
    "replaysim": replaysim,
    "trl": trl,
    "openenv": openenv,
    "verifiers": verifiers,
    "gymnasium": gymnasium,
    "peft": peft,
    "torchao": torchao,
    "remote": remote,
    "verl": verl,
    "ray": ray,
    "monarch": monarch,
    "modal": modal,
    "hf": hf,
    "sky": sky,
    "diloco": diloco,
}
"""By extra."""


def versions(extra: str) -> dict[str, str]:
    """Of Python, of what every environment has, and of what the extra names."""
    asked = [Requirement(line) for line in requires("composer-replication") or ()]
    named = [r.name for r in asked if r.marker is not None and f'"{extra}"' in str(r.marker)]
    return {"python": platform.python_version()} | {name: version(name) for name in dict.fromkeys([*ALWAYS, *named])}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("extra", choices=SMOKE)
    parser.add_argument("--write", type=Path, help="add the versions to this file")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        SMOKE[asked.extra](Path(folder))
    tested = versions(asked.extra)
    if asked.write:
        known = json.loads(asked.write.read_text("utf-8")) if asked.write.exists() else {}
        asked.write.write_text(json.dumps(dict(sorted({**known, asked.extra: tested}.items())), indent=1) + "\n", "utf-8")
    print(json.dumps({"extra": asked.extra, **tested}))


if __name__ == "__main__":
    main()
