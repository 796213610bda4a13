"""Plans of the run files in `examples/training`: memory on a GPU and the work of a step, made on a CPU without any weights.

The planner builds a few blocks of each published architecture with random weights and lets them take updates
(`trainer.planning`), as `composer train --dry-run` does; here in the precision, and with the checkpointing, that a GPU would be
given. Bytes are those of tensors: what CUDA itself takes is not among them. No GPU was asked, and nothing is timed: the work
of a step is arithmetic, for rollouts as long as the file allows. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from measuring import ROOT, digest_of_code, emit
from transformers import PreTrainedConfig, Qwen2Config, Qwen3Config, Qwen3MoeConfig

from composer_replication.config import RunConfig, load_config
from composer_replication.trainer.planning.plan import make_plan, rollouts_at_once

RUNS = ROOT / "examples" / "training"
_MEASURED = ("examples/training/*.toml", *(f"composer_replication/{room}/**/*.py" for room in ("trainer/planning", "loss")))
"""The code that the figures are of."""
_GIB = 2**30
_TASKS, _HELD_OUT = 100, 11
_QWEN3 = {"head_dim": 128, "vocab_size": 151_936, "max_position_embeddings": 262_144}
ARCHITECTURES: dict[str, tuple[PreTrainedConfig, float, int]] = {
    "qwen25_05b.toml": (
        Qwen2Config(
            hidden_size=896,
            intermediate_size=4864,
            num_hidden_layers=24,
            num_attention_heads=14,
            num_key_value_heads=2,
            vocab_size=151_936,
            tie_word_embeddings=True,
        ),
        0.49e9,
        24,
    ),
    "qwen3_4b_lora.toml": (
        Qwen3Config(
            hidden_size=2560,
            intermediate_size=9728,
            num_hidden_layers=36,
            num_attention_heads=32,
            num_key_value_heads=8,
            tie_word_embeddings=True,
            **_QWEN3,
        ),
        4.0e9,
        24,
    ),
    "qwen25_7b.toml": (
        Qwen2Config(
            hidden_size=3584,
            intermediate_size=18_944,
            num_hidden_layers=28,
            num_attention_heads=28,
            num_key_value_heads=4,
            vocab_size=152_064,
            tie_word_embeddings=False,
        ),
        7.6e9,
        24,
    ),
    "qwen3_coder_30b_a3b_lora.toml": (
        Qwen3MoeConfig(
            hidden_size=2048,
            intermediate_size=5472,
            moe_intermediate_size=768,
            num_experts=128,
            num_experts_per_tok=8,
            num_hidden_layers=48,
            num_attention_heads=32,
            num_key_value_heads=4,
            tie_word_embeddings=False,
            **_QWEN3,
        ),
        3.3e9,
        80,
    ),
}
"""For each run file the architecture by the model's published `config.json`, the parameters that a token goes through, and the
card's memory in GB."""


def planned(name: str) -> dict[str, Any]:
    """Return what a run file needs, in GiB."""
    architecture, active, card = ARCHITECTURES[name]
    config = _as_on_a_gpu(load_config(RUNS / name, ["--tasks.train", str(RUNS), "--model.device", "cpu"]))
    plan = make_plan(
        config, architecture, config.rollout.context_tokens, rollouts_at_once(config, tasks=_TASKS, held_out=_HELD_OUT)
    )
    sampling = plan.sampling - plan.process
    return {
        "card_gb": card,
        "largest_pass": asdict(plan.largest),
        **{part: round(getattr(plan.update, part) / _GIB, 2) for part in ("weights", "gradients", "optimizer", "copies", "peak")},
        "activations": round(plan.update.activations / _GIB, 2),
        "rollouts": round(sampling / _GIB, 2),
        "most": round(max(plan.update.peak, sampling) / _GIB, 2),
        "share_of_card": round(max(plan.update.peak, sampling) / (card * _GIB), 3),
        "petaflop_a_step": round(_work(config, active) / 1e15, 1),
    }


def _as_on_a_gpu(config: RunConfig) -> RunConfig:
    """Return a run with what `auto` means on a GPU."""
    precision = "mixed" if config.model.precision == "auto" else config.model.precision
    model = config.model.model_copy(update={"precision": precision})
    optimizer = config.optimizer.model_copy(update={"gradient_checkpointing": True})
    return config.model_copy(update={"model": model, "optimizer": optimizer})


def _work(config: RunConfig, active: float) -> float:
    """Return the floating-point operations of a step whose rollouts are as long as they may become: two for each parameter and
    token to sample, as many to read again, and to compute again for the gradient, and twice as many for the gradient itself."""
    tokens = config.rollout.groups * config.rollout.group_size * config.rollout.context_tokens
    return 2.0 * active * tokens * (1 + 1 + 1 + 2)


def main() -> None:
    """Plan and print; exit with 1 where a run does not fit."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--write", type=Path, help="keep the figures in this file; what this code has planned is not planned again"
    )
    parser.add_argument("names", nargs="*", default=list(ARCHITECTURES))
    arguments = parser.parse_args()
    code = digest_of_code(path for pattern in _MEASURED for path in ROOT.glob(pattern))
    known: dict[str, Any] = json.loads(arguments.write.read_text("utf-8")) if arguments.write and arguments.write.exists() else {}
    for name in arguments.names:
        if known.get(name, {}).get("code") != code:
            known[name] = {**planned(name), "code": code}
            if arguments.write:
                arguments.write.write_text(json.dumps(known, indent=1) + "\n", "utf-8")
        print(name, known[name], flush=True)
    shares = {name: known[name]["share_of_card"] for name in arguments.names}
    emit("example_plans", {"shares": shares, "passed": max(shares.values()) < 1.0})
    raise SystemExit(max(shares.values()) >= 1.0)


if __name__ == "__main__":
    main()
