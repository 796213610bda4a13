"""Limits of substrates: fields of a run file that they cannot follow. `composer doctor` lists them, and `refuse` checks them."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any

from composer_replication.config import RunConfig, SubstrateType
from composer_replication.config.model import Precision
from composer_replication.recipes.prime_rl.settings import FROZEN_URL
from composer_replication.types.errors import ConfigError


@dataclass(frozen=True, slots=True)
class SubstrateLimit:
    """A field of a run file that a substrate cannot follow, or not with every value."""

    field: str
    why: str
    values: tuple[str, ...] = ()
    """Values that are refused; none refuses all but those that switch the field off. What is off is never refused."""
    can: str = "local"
    """Substrates that can do it."""
    fix: str = "leave it out"
    when: Callable[[RunConfig], bool] = lambda _: True
    """A further condition."""
    condition: str = ""
    """The same in words."""
    zero_is_asked: bool = False
    """0 asks for something: the field is off where it is None."""

    def __str__(self) -> str:
        values = f" = {', '.join(self.values)}" if self.values else ""
        return f"{self.field}{values}{self.condition and f' {self.condition}'}: {self.why} ({self.can} can)"

    def value(self, config: RunConfig) -> Any:
        """Return the value that an arm has in the field."""
        return reduce(getattr, self.field.split("."), config)

    def is_broken(self, config: RunConfig) -> bool:
        """Return whether an arm asks for what the substrate cannot do."""
        value = self.value(config)
        asked = any(one in self.values for one in ([value] if isinstance(value, str) else value)) if self.values else value
        asked = asked or (self.zero_is_asked and value is not None)
        return bool(asked) and not (self.field.startswith("loss.hint.") and config.loss.hint.weight == 0) and self.when(config)

    def refusal(self, config: RunConfig) -> str:
        """Return what an arm asks for and why it is refused."""
        value = "" if self.field == "teachers" else f" = {self.value(config)}"
        return f"{self.field}{value}: {self.why}"


def refuse(config: RunConfig, kind: SubstrateType) -> None:
    """Raise ConfigError when an arm asks for what the substrate cannot do; all of it is named."""
    broken = [limit for limit in LIMITS[kind] if limit.is_broken(config)]
    if broken:
        first, *others = (limit.refusal(config) for limit in broken)
        more = f" (and {len(others)} more: {'; '.join(others)})" if others else ""
        fix = f"{broken[0].fix}, or set substrate.type = {broken[0].can}"
        raise ConfigError(f"substrate.type = {kind}: {first}{more}", fix=fix)


def unbraked(config: RunConfig, kind: SubstrateType) -> str | None:
    """Return what to watch where an arm has a loss that pushes answers down, and the substrate no brake on it; None elsewhere."""
    replay = config.loss.replay
    if kind not in ("trl", "verl", "prime_rl") or replay.weight == 0 or not replay.compares:
        return None
    return (
        f"loss.replay.variant = {replay.variant} has no brake on substrate.type = {kind}, whose loss is the same in every step; "
        f"watch replay/chosen/distance/mean, and raise loss.replay.anchor where it falls"
    )


def on_cpu(config: RunConfig) -> bool:
    """Return whether an arm trains without CUDA. Raises ModelError when it asks for CUDA and there is none."""
    from composer_replication.loss.forward.models import resolve_device  # imports torch

    return resolve_device(config.model.device).type == "cpu"


def precision_of(config: RunConfig) -> Precision:
    """Return the precision that an arm trains in. Raises ModelError as `on_cpu`."""
    from composer_replication.loss.forward.models import resolve_precision  # imports torch

    return resolve_precision(config.model)


def _unserved(config: RunConfig) -> bool:
    return not (config.substrate.options.get(f"orchestrator.env_vars.{FROZEN_URL}") or os.environ.get(FROZEN_URL))


def _servers(why: str) -> SubstrateLimit:
    return SubstrateLimit("rollout.engine", why, ("vllm", "sglang"), "local, monarch or ray")


def _own_rollouts(why: str) -> tuple[SubstrateLimit, ...]:
    return tuple(SubstrateLimit(field, why, can="local or trl") for field in ("env.use", "reward.function"))


def _reattempts(why: str) -> SubstrateLimit:
    return SubstrateLimit("loss.replay.reattempts", why, can="local")


_MESH = (
    *_own_rollouts("its actors run the tasks of tasks.train and grade them by their tests"),
    SubstrateLimit("curriculum.enabled", "groups are issued before the verdicts are in that a curriculum chooses by"),
    SubstrateLimit("rollout.refills", "groups are issued before it is known which of a step's teach nothing"),
    _reattempts("its generators have other rollouts under way when a step's hints are known"),
    SubstrateLimit("loss.hint.generators", "its trainer, which gives hints, samples nothing", ("policy",), "local or trl"),
)
_FULL = "local, monarch or ray"


def _one_update(why: str) -> tuple[SubstrateLimit, ...]:
    several = {"mini_batches": lambda c: c.optimizer.mini_batches > 1, "epochs": lambda c: c.optimizer.epochs > 1}
    return tuple(
        SubstrateLimit(f"optimizer.{field}", why, can=_FULL, when=when, condition="above 1") for field, when in several.items()
    )


def _ours_alone(why: str, *fields: str) -> tuple[SubstrateLimit, ...]:
    optional = ("entropy_target", "off_policy_threshold")
    return tuple(SubstrateLimit(f"loss.rlvr.{field}", why, can=_FULL, zero_is_asked=field in optional) for field in fields)


def _pairs_of_a_step(why: str) -> tuple[SubstrateLimit, ...]:
    whole = "KTO's reference point is that of all pairs of a step, which no pass has"
    return (
        SubstrateLimit("loss.replay.learning_rate", why, can=_FULL),
        SubstrateLimit("loss.replay.variant", whole, ("kto",), _FULL),
    )


def _no_cap_and_no_soft_targets(why: str) -> tuple[SubstrateLimit, ...]:
    soft = SubstrateLimit("loss.replay.soft_targets", "its pairs carry no distributions of teachers", can=_FULL)
    return (soft, *(SubstrateLimit(f"loss.{channel}.max_pull", why, can=_FULL) for channel in ("hint", "replay")))


_TRAINED_HERE = "local, trl, monarch or ray"
_ADAMW: Any = {"values": ("muon",), "can": _TRAINED_HERE, "fix": "set optimizer.type = adamw"}
_MERGED = SubstrateLimit(
    "model.path",
    "a folder with LoRA adapters is no whole model",
    can=_TRAINED_HERE,
    fix="write the whole one with `composer weights merge`",
    when=lambda config: (Path(config.model.path) / "adapter_config.json").is_file(),
    condition="with adapters",
)
_ASKING = ("judge", "consensus", "policy")
_ANY = "local, trl, verl, monarch or ray"
_WHOLE_STEP = "it needs the hints of a whole step at once, and PRIME-RL finishes one group at a time"
_PRESENT = "it reads the starting policy all through the run, and PRIME-RL serves only the present one"
_SERVE = f"serve it with `inference` on another GPU and set {FROZEN_URL} to its address"
_UNREAD = (
    *("reward.effort.weight", "reward.overlong_tokens", "reward.kl_weight", "reward.prm.weight", "reward.teacher_kl_weight"),
    *("curriculum.enabled", "rollout.timeout_s", "rollout.max_rollouts", "tasks.instruction", "tasks.held_out_share"),
)
_TOGETHER = ("timeout_s", "max_rollouts")
LIMITS: dict[SubstrateType, tuple[SubstrateLimit, ...]] = {
    "ray": _MESH,
    "monarch": _MESH,
    "trl": (
        _servers("TRL's vLLM server mode is for ComposerReplicationTrainer"),
        SubstrateLimit("loss.rlvr.objective", "TRL has no such surrogate", ("dppo",), _FULL),
        SubstrateLimit(
            "loss.rlvr.objective",
            "TRL has no lower limit for its ratios, and loss.rlvr.epsilon_low sets one",
            ("cispo",),
            _FULL,
            "leave loss.rlvr.epsilon_low out",
            lambda c: c.loss.rlvr.epsilon_low is not None and c.loss.rlvr.epsilon_low < 1.0,
            "with epsilon_low below 1",
        ),
        SubstrateLimit("loss.rlvr.kl_estimator", "TRL has k3 and its unbiased form", ("k2",), _FULL, "choose k3 or unbiased"),
        SubstrateLimit(
            "loss.rlvr.kl_estimator",
            "TRL's ratio in it is not the token's to the policy that sampled",
            ("unbiased",),
            _FULL,
            "choose k3",
            lambda c: c.loss.rlvr.importance != "none" or c.loss.rlvr.objective == "gspo",
            "with an importance correction or gspo",
        ),
        *_ours_alone("TRL averages entropies over each micro-batch", "entropy_bonus", "entropy_target"),
        *_one_update("a step of the run is an optimizer step of TRL's"),
        SubstrateLimit("rollout.refills", "a step takes a fixed number of rollouts"),
        *(SubstrateLimit(f"rollout.{name}", "TRL samples the turns of all rollouts together") for name in _TOGETHER),
        SubstrateLimit("reward.kl_weight", "the rollouts of a step are scored in one pass", can=_FULL),
        SubstrateLimit("reward.prm.weight", "a rollout has one advantage, and process rewards give each turn its own", can=_FULL),
        SubstrateLimit(
            "reward.teacher_kl_weight", "a rollout has one advantage, and teachers give each token its own", can=_FULL
        ),
        SubstrateLimit("loss.hint.useful_only", "the rollouts of a step are scored in one pass", can=_FULL),
        SubstrateLimit("model.frozen_copies", "TRL moves its models to its device", ("cpu",), _FULL),
        *_pairs_of_a_step("a step of the run is an optimizer step of TRL's"),
        *_no_cap_and_no_soft_targets("TRL builds its own loss, once for all steps"),
        _reattempts("TRL samples all rollouts of a step together, and its hints come after"),
        SubstrateLimit("model.router_balance", "TRL cuts its batches itself", can=_FULL),
        SubstrateLimit("model.router_replay", "TRL keeps no experts of its rollouts", can=_FULL),
    ),
    "verl": (
        _servers("its own servers sample"),
        *_own_rollouts("its agent loops run the tasks of tasks.train and grade them by their tests"),
        SubstrateLimit("optimizer.type", "verl builds its own AdamW", **_ADAMW),
        SubstrateLimit("optimizer.moments", "verl builds its own AdamW", ("8bit",), _TRAINED_HERE),
        SubstrateLimit(
            "model.precision",
            "verl's AdamW has no stochastic rounding",
            ("bfloat16",),
            _TRAINED_HERE,
            "set model.precision = mixed",
        ),
        SubstrateLimit("model.lora.rank", "hints and checkpoints are of whole weights on verl", can=_TRAINED_HERE),
        SubstrateLimit("model.compile", "verl compiles what it compiles by options of its own", can=_TRAINED_HERE),
        SubstrateLimit("model.frozen_copies", "verl shards its reference itself", ("cpu",), _FULL),
        *_pairs_of_a_step("verl builds its own optimizer"),
        *_no_cap_and_no_soft_targets("its engine's loss is the same in every step"),
        _reattempts("its data set has all pairs before the run begins"),
        SubstrateLimit("model.router_balance", "its engine reads no router", can=_FULL),
        SubstrateLimit("model.router_replay", "verl replays routers on Megatron alone", can=_FULL),
        _MERGED,
        *_one_update("a step of the run is an optimizer step of verl's"),
        SubstrateLimit("loss.rlvr.kl_estimator", "the engine's KL has no ratios", ("unbiased",), _FULL, "choose k3 or k2"),
        *_ours_alone("its policy loss sees neither", "entropy_bonus", "entropy_target", "off_policy_threshold"),
        SubstrateLimit(
            "loss.rlvr.importance_low",
            "its rollout correction takes no lower limit of 0",
            can=_FULL,
            fix="set a small number above 0",
            when=lambda c: c.loss.rlvr.importance == "icepop" and c.loss.rlvr.importance_low == 0,
            condition="= 0 with icepop",
            zero_is_asked=True,
        ),
        SubstrateLimit("curriculum.enabled", "its data set is in order before the run begins"),
        SubstrateLimit("rollout.refills", "its own filter throws groups away with their hints"),
        SubstrateLimit("rollout.timeout_s", "its agent loops wait for every rollout"),
        SubstrateLimit("rollout.max_rollouts", "its servers decide how many rollouts they hold"),
        SubstrateLimit("reward.kl_weight", "its advantage estimators see rewards, and no verdict apart from them"),
        SubstrateLimit("reward.prm.weight", "its agent loops have no process reward model", can=_FULL),
        SubstrateLimit("reward.teacher_kl_weight", "its agent loops ask no teachers about tokens", can=_FULL),
        SubstrateLimit("loss.hint.useful_only", "its agent loops have no weights to ask"),
        SubstrateLimit(
            "loss.hint.shuffle", "its agent loops see one task's trajectories, and the control needs other tasks' hints"
        ),
        SubstrateLimit("loss.hint.generators", "its agent loops are processes without the run's ledger", _ASKING),
        SubstrateLimit(
            "model.device", "Ray places its workers", when=lambda c: c.model.device.startswith("cuda:"), condition="= cuda:N"
        ),
        SubstrateLimit("loss.rlvr.kl_beta", "its reference policy needs pinned memory", when=on_cpu, condition="without CUDA"),
        SubstrateLimit(
            "loss.rlvr.importance",
            "the log-probs of its server are not the trainer's, and their ratio would be clipped as if the policy had moved",
            ("none",),
            fix="set loss.rlvr.importance = tis or icepop",
            when=lambda c: not c.model.device.startswith("cuda:") and not on_cpu(c),
            condition="with CUDA",
        ),
    ),
    "prime_rl": (
        _servers("its own servers sample"),
        *_own_rollouts("its environment servers run the tasks of tasks.train and grade them by their tests"),
        SubstrateLimit(
            "loss.rlvr.objective",
            "it averages over sequences, and PRIME-RL divides by tokens",
            ("grpo", "dr_grpo", "gspo", "sapo"),
            _ANY,
            "choose bnpo, dapo, cispo or dppo",
        ),
        SubstrateLimit(
            "loss.hint.form",
            "it compares distributions, and PRIME-RL sends one log-prob per token",
            can=_ANY,
            fix="choose sampled_token, the reverse KL on sampled tokens",
            when=lambda c: c.loss.hint.form != "sampled_token",
            condition="other than sampled_token",
        ),
        SubstrateLimit(
            "loss.hint.self_teacher",
            "PRIME-RL serves the present policy and nothing in between",
            ("ema", "trust_region"),
            _ANY,
            "choose live or frozen",
        ),
        SubstrateLimit(
            "loss.hint.reduction",
            "it divides by hinted turns, and PRIME-RL by their tokens",
            ("turn",),
            _ANY,
            "choose token, with a weight that is larger by the tokens of a turn",
        ),
        SubstrateLimit("loss.hint.shuffle", _WHOLE_STEP, can=_ANY, fix="set it to false"),
        SubstrateLimit("loss.hint.useful_only", _WHOLE_STEP, can=_ANY, fix="set it to false"),
        _reattempts("its orchestrator reads all pairs before the run begins"),
        SubstrateLimit("loss.hint.generators", "they ask teachers, and PRIME-RL's orchestrator cannot", _ASKING, _ANY),
        SubstrateLimit(
            "loss.rlvr.kl_beta",
            "PRIME-RL sends one reference log-prob per token, and loss.hint.weight is above 0 too",
            can=_ANY,
            fix="set one of them to 0",
            when=lambda c: c.loss.hint.weight > 0,
            condition="with hints",
        ),
        SubstrateLimit(
            "loss.hint.self_teacher", _PRESENT, ("frozen",), _ANY, f"{_SERVE}, choose live", _unserved, "unless it is served"
        ),
        SubstrateLimit("loss.rlvr.kl_beta", _PRESENT, can=_ANY, fix=_SERVE, when=_unserved, condition="unless it is served"),
        SubstrateLimit(
            "rollout.temperature",
            "PRIME-RL's reference log-probs are those of temperature 1",
            can=_ANY,
            fix="set rollout.temperature and loss.hint.temperature to 1",
            when=lambda c: c.rollout.temperature != 1.0 and (c.loss.hint.weight > 0 or c.loss.rlvr.kl_beta > 0),
            condition="other than 1 with hints or kl_beta",
        ),
        SubstrateLimit(
            "teachers",
            "teachers would be asked while it trains, and PRIME-RL's orchestrator cannot ask them",
            can=_ANY,
            fix="ask them before: `composer replay`, `composer pairs extract`, and loss.replay.pairs names the file",
            when=lambda c: c.loss.replay.weight > 0,
        ),
        *(SubstrateLimit(field, "PRIME-RL does not read it", can=_ANY) for field in _UNREAD),
        *_ours_alone("PRIME-RL gives a loss no distributions", "entropy_bonus", "entropy_target"),
        *_no_cap_and_no_soft_targets("PRIME-RL's loss is the same in every step"),
        *_one_update("PRIME-RL decides how many updates a batch gets"),
        *_pairs_of_a_step("PRIME-RL builds its own optimizer"),
        SubstrateLimit(
            "optimizer.type", "PRIME-RL builds its own optimizer, and its Muon follows other rules than this one", **_ADAMW
        ),
        SubstrateLimit("model.device", "PRIME-RL's trainer runs on GPUs alone", ("cpu",), _ANY),
        SubstrateLimit(
            "model.precision",
            "PRIME-RL keeps float32 weights and multiplies in bfloat16",
            ("float32", "bfloat16"),
            _ANY,
            "set model.precision = mixed",
        ),
        SubstrateLimit("model.lora.rank", "PRIME-RL has adapters of its own kind", can=_TRAINED_HERE),
        SubstrateLimit("model.router_balance", "PRIME-RL gives a loss no router", can=_FULL),
        SubstrateLimit("model.router_replay", "PRIME-RL replays routers by an option of its own", can=_FULL),
        _MERGED,
    ),
}
"""By substrate; `local` has none."""
