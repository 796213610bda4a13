"""The substrates that a run can be trained on: their requirements, their limits and their adapters.

An adapter is a module `composer_replication.recipes.<type>.substrate` with

- `check(config)`: raises ConfigError for an option of the run file that cannot be expressed there, naming the field and the
  substrates that can. It imports nothing of the framework. Without it only the fields in `limits.LIMITS` are refused.
- `async train_arm(context, config, arm, shown) -> SummaryRow`: trains one arm (`trainer.report.TrainArm`). An adapter that
  reads no `RunContext` has `async train(config, run_dir, terminal) -> list[SummaryRow]` for all arms instead.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import PackageNotFoundError, requires, version
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from packaging.requirements import Requirement

from composer_replication.config import RunConfig, SubstrateType, resolve_arm
from composer_replication.observe import RunDir, Terminal
from composer_replication.observe.summary import SummaryRow
from composer_replication.recipes.limits import LIMITS, refuse, unbraked
from composer_replication.types.errors import ConfigError, MissingExtraError

if TYPE_CHECKING:
    from composer_replication.envs.source import EnvSource
    from composer_replication.trainer.rewards import RewardFunction
    from composer_replication.trainer.train import StepCallback


def has_cuda() -> bool:
    """Return whether torch finds a GPU."""
    import torch  # takes seconds

    return torch.cuda.is_available()


@dataclass(frozen=True, slots=True)
class Need:
    """A distribution that a substrate needs, and the version that is installed."""

    requirement: str
    """The requirement in pip's form: `trl<2,>=1.16`."""
    found: str | None
    """The version installed; None for none."""

    @property
    def met(self) -> bool:
        """True when the installed version is one that is asked for."""
        return self.found is not None and Requirement(self.requirement).specifier.contains(self.found, prereleases=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Substrate:
    """The facts about a substrate that are known without importing it."""

    about: str
    extra: str | None = None
    """The extra of this package that installs it; None where nothing more is needed."""
    cannot: tuple[str, ...] = ()
    """Limits, each with its reason."""
    checkout: str | None = None
    """Environment variable that names a checkout, for a substrate that is on no index."""
    module: str = ""
    """The module that is imported: in `src` of the checkout, unless it is installed."""
    cuda_extra: str = ""
    """The extra of the framework itself that brings what samples on a GPU, named like its module; empty where nothing does."""

    def needs(self) -> list[Need]:
        """Return every distribution that its extra names, from this package's metadata."""
        found = []
        for line in (requires("composer-replication") or ()) if self.extra else ():
            requirement = Requirement(line)
            marker = requirement.marker
            if marker is None or marker.evaluate({"extra": ""}) or not marker.evaluate({"extra": str(self.extra)}):
                continue
            try:
                here: str | None = version(requirement.name)
            except PackageNotFoundError:
                here = None
            found.append(Need(f"{requirement.name}{requirement.specifier}", here))
        return found

    def missing(self) -> list[str]:
        """Return what keeps a run from starting, in a few words each; empty when nothing does."""
        lacking = [
            f"{need.requirement} (not installed)" if need.found is None else f"{need.requirement} (found {need.found})"
            for need in self.needs()
            if not need.met
        ]
        if self.extra and not self.needs():
            lacking.append(f"the extra {self.extra}, which this installation is too old to know")
        checkout = Path(os.environ.get(self.checkout or "") or "/nowhere")
        if self.checkout and not (checkout / "src" / self.module).is_dir() and find_spec(self.module) is None:
            lacking.append(f"{self.module}, installed or in a checkout named by {self.checkout}")
        if self._lacks_sampler():
            lacking.append(f"{self.cuda_extra}, with CUDA (not installed)")
        return lacking

    def _lacks_sampler(self) -> bool:
        return bool(self.cuda_extra) and has_cuda() and find_spec(self.cuda_extra) is None

    @property
    def fix(self) -> str:
        """The command or setting that supplies what is missing."""
        steps = [f"pip install 'composer-replication[{self.extra}]'"] if self.extra else []
        if self._lacks_sampler():
            own = next(Requirement(need.requirement) for need in self.needs() if Requirement(need.requirement).name == self.extra)
            steps.insert(0, f"pip install '{own.name}[{self.cuda_extra}]{own.specifier}'")
        steps += [f"set {self.checkout} to the folder of a checkout"] if self.checkout else []
        return " and ".join(steps)


SUBSTRATES: Mapping[SubstrateType, Substrate] = {
    "local": Substrate(about="one process; started by torchrun, several that share each update"),
    "trl": Substrate(
        about="TRL's GRPOTrainer, with the hint and replay channels added to its loss",
        extra="trl",
        cannot=(
            *map(str, LIMITS["trl"]),
            "several processes: use ComposerReplicationTrainer in a script of yours",
        ),
    ),
    "verl": Substrate(
        about="verl's trainer on Ray with its FSDP2 engine, the channels in the engine's step",
        extra="verl",
        cuda_extra="vllm",
        cannot=(
            *map(str, LIMITS["verl"]),
            "SGLang as its own server: it takes no list of stop tokens together with ignore_eos (vLLM does)",
        ),
    ),
    "prime_rl": Substrate(
        about="PRIME-RL's asynchronous trainer on two GPUs or more, the channels as its per-token loss components",
        cannot=tuple(map(str, LIMITS["prime_rl"])),
        checkout="COMPOSER_PRIME_RL_SRC",
        module="prime_rl",
    ),
    "monarch": Substrate(
        about="generators, trainer, rewarder and teachers as actors on Monarch",
        extra="monarch",
        cannot=tuple(map(str, LIMITS["monarch"])),
    ),
    "ray": Substrate(
        about="the same actors on Ray, its own or a cluster named by RAY_ADDRESS",
        extra="ray",
        cannot=(*map(str, LIMITS["ray"]), "substrate.trainers: the trainer is one process (monarch can)"),
    ),
}


def check_substrate(config: RunConfig) -> None:
    """Raise ConfigError when an arm asks for what the run's substrate cannot express."""
    kind = config.substrate.type
    if kind == "local":
        return
    for arm in config.arms:
        check = getattr(_adapter(kind), "check", partial(refuse, kind=kind))
        check(resolve_arm(config, arm))


async def train_on(
    config: RunConfig,
    run_dir: RunDir,
    terminal: Terminal,
    *,
    env: EnvSource | None = None,
    reward: RewardFunction | None = None,
    callbacks: Sequence[StepCallback] = (),
) -> list[SummaryRow]:
    """Train every arm of a run that `open_run` holds on the substrate it names.

    `env`, `reward` and `callbacks` are those of `api.train`; only `local` takes them.

    Raises:
        ConfigError: something is wrong with the run, or the substrate cannot express it.
        MissingExtraError: what the substrate needs is not installed.
        ComposerError: whatever a part of the recipe has to say.
    """
    from composer_replication.trainer.report import train

    kind = config.substrate.type
    if kind == "local":
        return await train(config, run_dir, terminal, env=env, reward=reward, callbacks=callbacks)
    if env is not None or reward is not None or callbacks:
        raise ConfigError(
            f"env, reward and callbacks are objects of this process, and substrate.type = {kind} trains in others",
            fix="name them by import path in [env] and reward.function, or set substrate.type = local",
        )
    check_substrate(config)
    if missing := SUBSTRATES[kind].missing():
        raise MissingExtraError(f"substrate.type = {kind} needs {', '.join(missing)}", fix=SUBSTRATES[kind].fix)
    for arm in config.arms:
        if (why := unbraked(resolve_arm(config, arm), kind)) is not None:
            terminal.note(f"{arm}: {why}")
    adapter = _adapter(kind)
    if hasattr(adapter, "train_arm"):
        return await train(config, run_dir, terminal, one=adapter.train_arm)
    rows: list[SummaryRow] = await adapter.train(config, run_dir, terminal)
    return rows


def _adapter(kind: SubstrateType) -> ModuleType:
    return importlib.import_module(f"composer_replication.recipes.{kind}.substrate")
