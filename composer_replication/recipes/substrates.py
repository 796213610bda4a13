"""The substrates a run can be trained on: what each needs, what it cannot express, and who trains there.

An adapter is a module `composer_replication.recipes.<type>.substrate` with

- `check(config)`: raises ConfigError for an option of the run file that cannot be expressed there, naming the field and the
  substrates that can. It imports nothing of the framework.
- `async train(config, run_dir, terminal, *, start_label) -> list[SummaryRow]`: trains every arm, as `trainer.loop.train` does.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from types import ModuleType

from composer_replication.config import RunConfig, SubstrateType, resolve_arm
from composer_replication.errors import MissingExtraError
from composer_replication.observe import RunDir, Terminal
from composer_replication.observe.summary import SummaryRow

__all__ = ["SUBSTRATES", "Substrate", "check_substrate", "train_on"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Substrate:
    """What is known of a substrate without importing it."""

    about: str
    extra: str | None = None
    """Of this package, that installs it; None where nothing more is needed, or where no index has it."""
    needs: tuple[str, ...] = ()
    """Distributions."""
    cannot: tuple[str, ...] = ()
    """What it cannot express, in the words of the run file, and why."""
    how: str = ""
    """How it is installed, where it is no extra."""

    def installed(self) -> dict[str, str | None]:
        """Version of every distribution it needs; None for one that is missing."""
        found: dict[str, str | None] = {}
        for name in self.needs:
            try:
                found[name] = version(name)
            except PackageNotFoundError:
                found[name] = None
        return found


SUBSTRATES: Mapping[SubstrateType, Substrate] = {
    "local": Substrate(about="one process on one machine; with accelerate's launcher, several that share a batch"),
    "trl": Substrate(
        about="TRL's GRPOTrainer, with the hint and replay channels beside its own loss",
        extra="trl",
        needs=("trl", "datasets"),
    ),
    "verl": Substrate(
        about="verl's PPO trainer on Ray, FSDP2 engine, with the channels in the engine's step",
        extra="verl",
        needs=("verl", "ray", "TransferQueue"),
    ),
    "prime_rl": Substrate(
        about="PRIME-RL's asynchronous trainer, with the channels as its per-token loss components",
        needs=("verifiers",),
        how="a checkout of PRIME-RL named by COMPOSER_PRIME_RL_SRC (it is on no index)",
    ),
    "monarch": Substrate(
        about="generator, trainer, rewarder and teacher actors on Monarch", extra="monarch", needs=("torchmonarch",)
    ),
    "ray": Substrate(about="the same actors on Ray", extra="ray", needs=("ray",)),
}


def check_substrate(config: RunConfig) -> None:
    """Raises ConfigError when an arm asks for what the run's substrate cannot express."""
    kind = config.substrate.type
    if kind == "local":
        return
    for arm in config.arms:
        _adapter(kind).check(resolve_arm(config, arm))


async def train_on(config: RunConfig, run_dir: RunDir, terminal: Terminal, *, start_label: str = "start") -> list[SummaryRow]:
    """Train every arm of a run that `open_run` holds on the substrate it names.

    Raises:
        ConfigError: something is wrong with the run, or the substrate cannot express it.
        MissingExtraError: what the substrate needs is not installed.
        ComposerError: whatever a part of the recipe has to say.
    """
    kind = config.substrate.type
    if kind == "local":
        from composer_replication.trainer.loop import train

        return await train(config, run_dir, terminal, start_label=start_label)
    check_substrate(config)
    missing = [name for name, found in SUBSTRATES[kind].installed().items() if found is None]
    if missing:
        extra = SUBSTRATES[kind].extra
        fix = f"pip install 'composer-replication[{extra}]'" if extra else f"install {SUBSTRATES[kind].how}"
        raise MissingExtraError(f"substrate.type = {kind} needs {', '.join(missing)}", fix=fix)
    rows: list[SummaryRow] = await _adapter(kind).train(config, run_dir, terminal, start_label=start_label)
    return rows


def _adapter(kind: SubstrateType) -> ModuleType:
    return importlib.import_module(f"composer_replication.recipes.{kind}.substrate")
