"""The memory that `composer train --dry-run` says an update needs, beside what it takes: the peak of a fresh process's memory,
above what it had before the policy was made.

Each setting is planned in one process and done by whole models in another, whose malloc gives freed memory back: by default
glibc keeps tensors of up to 32 MB for later ones, and `kept_mb` is what the peak grows by with it. Shapes are those of small
language models, with random weights. Figures are kept in `--write` with a digest of the code; a setting that this code has been
measured on is not measured again. The last line is JSON.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeAlias

from measuring import ROOT, Peak, digest_of_code, emit

_MEASURED = tuple(
    f"composer_replication/{room}/**/*.py" for room in ("trainer/planning", "trainer/learning", "loss", "kernels", "distillation")
)
"""The code that the figures are of."""
AIM = 0.1
"""Relative distance of a plan from the truth."""
SHAPES: dict[str, dict[str, Any]] = {
    "0.1B": {"hidden_size": 512, "intermediate_size": 1536, "num_hidden_layers": 12, "vocab_size": 50_000},
    "0.5B": {"hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24, "vocab_size": 151_936},
    "1.5B": {"hidden_size": 1536, "intermediate_size": 8960, "num_hidden_layers": 28, "vocab_size": 151_936},
}
GIVE_BACK = {"MALLOC_MMAP_THRESHOLD_": "131072"}
"""The environment in which glibc's malloc gives freed tensors back."""
Setting: TypeAlias = tuple[dict[str, Any], int, dict[str, Any]]
"""Shape of a model, tokens of a row, and sections of a run file."""
_LORA = {"lora": {"rank": 16}}
_CHECKPOINTING = {"gradient_checkpointing": True}
SETTINGS: dict[str, tuple[str, int, dict[str, Any]]] = {
    "0.1B": ("0.1B", 1024, {}),
    "0.1B, 4 rows": ("0.1B", 512, {"optimizer": {"micro_batch_tokens": 2048}}),
    "0.1B, no hints": ("0.1B", 1024, {"loss": {"hint": {"weight": 0.0}}}),
    "0.1B, moving average": ("0.1B", 1024, {"loss": {"hint": {"self_teacher": "ema"}}}),
    "0.1B, eager attention": ("0.1B", 1024, {"model": {"attention": "eager"}}),
    "0.1B, checkpointing": ("0.1B", 2048, {"optimizer": _CHECKPOINTING}),
    "0.1B, mixed": ("0.1B", 1024, {"model": {"precision": "mixed"}}),
    "0.1B, bfloat16": ("0.1B", 1024, {"model": {"precision": "bfloat16"}}),
    "0.1B, offload": ("0.1B", 1024, {"optimizer": {"offload": True}}),
    "0.1B, LoRA": ("0.1B", 1024, {"model": _LORA}),
    "0.1B, Muon": ("0.1B", 1024, {"optimizer": {"type": "muon"}}),
    "0.1B, rows of any length": ("0.1B", 768, {"optimizer": {"micro_batch_tokens": 1024}, "loss": {"hint": {"weight": 0.0}}}),
    "0.1B, siblings": ("0.1B", 1024, {"optimizer": {"micro_batch_tokens": 1536}}),
    "0.5B, checkpointing": ("0.5B", 1024, {"optimizer": _CHECKPOINTING}),
    "0.5B, LoRA": ("0.5B", 1024, {"model": _LORA, "optimizer": _CHECKPOINTING}),
    "1.5B, LoRA": ("1.5B", 1024, {"model": {**_LORA, "precision": "bfloat16"}, "optimizer": _CHECKPOINTING}),
}


def measure(setting: Setting, done: dict[str, int], device: str) -> None:
    """In a fresh process: print one line of JSON, the plan and its largest pass, or what such a pass takes (`done`)."""
    from transformers import Qwen3Config

    from composer_replication.config import RunConfig
    from composer_replication.trainer.planning.update_memory import PassSize, largest_passes, measure_update, plan_update

    shape, tokens, options = setting
    like = Qwen3Config(**shape, num_attention_heads=8, num_key_value_heads=2, head_dim=64, dtype="float32")
    model = {"path": "made", "device": device, "precision": "float32", **options.get("model", {})}
    rollout = {"context_tokens": tokens, "groups": 2, "group_size": 4}
    optimizer = {"micro_batch_tokens": tokens, **options.get("optimizer", {})}
    config = RunConfig.model_validate({**options, "model": model, "rollout": rollout, "optimizer": optimizer})
    if not done:
        plans = [(size, plan_update(config, like, size)) for size in largest_passes(config, tokens)]
        size, found = max(plans, key=lambda one: one[1].peak)
        print(json.dumps({"planned_mb": round(found.peak / 2**20), "largest": asdict(size)}))
        return
    small = Qwen3Config(vocab_size=64, hidden_size=64, intermediate_size=64, num_attention_heads=8, num_key_value_heads=8)
    measure_update(config, small, 1, PassSize(1, 64))  # loads all libraries, which a plan counts as those of the process
    gc.collect()
    with Peak() as peak:
        found = measure_update(config, like, like.num_hidden_layers, PassSize(**done))
    tensors = round(found.peak / 2**20)  # on a GPU torch's own maximum
    print(json.dumps({"peak_mb": round(peak.megabytes) if device == "cpu" else tensors, "tensors_mb": tensors}))


def in_fresh_process(setting: Setting, done: dict[str, int], device: str = "cpu", **env: str) -> dict[str, Any]:
    """Plan a setting, or do its largest pass (`done`)."""
    command = [sys.executable, __file__, "--measure", json.dumps(setting), json.dumps(done), device]
    ended = subprocess.run(command, env={**os.environ, **env}, capture_output=True, text=True, check=False)
    if ended.returncode:
        raise SystemExit(f"{setting}, {done or 'planned'}: {ended.stderr[-1000:]}")
    found: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return found


def beside_the_plan(setting: Setting, device: str = "cpu") -> dict[str, Any]:
    """Return the planned and the measured peak of a setting."""
    planned = in_fresh_process(setting, {}, device)
    found = planned | in_fresh_process(setting, planned["largest"], device, **GIVE_BACK)
    return {**found, "planned_of_peak": round(found["planned_mb"] / found["peak_mb"], 3)}


def main() -> None:
    """Measure and print; exit with 1 where a plan is off by more than the aim."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--measure", nargs=3, help=argparse.SUPPRESS)
    parser.add_argument("--write", type=Path, help="keep the figures of each setting in this file")
    parser.add_argument("settings", nargs="*", default=list(SETTINGS))
    arguments = parser.parse_args()
    if arguments.measure:
        setting, done, device = arguments.measure
        measure(json.loads(setting), json.loads(done), device)
        return
    written = arguments.write and arguments.write.exists()
    known: dict[str, Any] = json.loads(arguments.write.read_text("utf-8")) if written else {}
    code = digest_of_code(path for pattern in _MEASURED for path in ROOT.glob(pattern))
    for name in arguments.settings:
        if known.get(name, {}).get("code") != code:
            shape, tokens, options = SETTINGS[name]
            setting = (SHAPES[shape], tokens, options)
            found = beside_the_plan(setting)
            kept = in_fresh_process(setting, found["largest"])["peak_mb"] - found["peak_mb"]
            known[name] = {**found, "kept_mb": kept, "code": code}
            if arguments.write:
                arguments.write.write_text(json.dumps(known, indent=1) + "\n", "utf-8")
        print(name, known[name], flush=True)
    off = {name: known[name]["planned_of_peak"] for name in arguments.settings}
    worst = max(off, key=lambda name: abs(off[name] - 1.0))
    emit("plan", {"settings": len(off), "worst": worst, "planned_of_peak": off[worst], "passed": abs(off[worst] - 1.0) <= AIM})
    raise SystemExit(abs(off[worst] - 1.0) > AIM)


if __name__ == "__main__":
    main()
