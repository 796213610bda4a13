"""Compiled blocks beside plain ones: loss, gradient, readings of other lengths, and an update."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

import torch

from composer_replication.distillation import make_self_teacher
from composer_replication.loss import compose_loss
from composer_replication.loss.forward import evaluating, sequence_logprobs
from composer_replication.trainer.learning.learner import Learner
from gpu_checks import made
from gpu_checks.found import Found, SkippedError
from gpu_checks.precision import two_updates

_MOST = 1e-4


def check(device: torch.device, folder: Path) -> Found:
    """Compile for this device, from an empty cache."""
    compiler = next(filter(None, map(shutil.which, ("c++", "g++", "clang++", "cc", "gcc"))), None)
    if compiler is None:
        raise SkippedError("torch.compile needs a C compiler, and there is none on the path")
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(folder / "inductor")
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
    found, size = Found(), made.size_on(device)
    like = made.qwen3(size)
    plain, config = made.make(made.run_config(device), like), made.run_config(device, model={"compile": True})
    batch = made.batch_for(plain, size)
    compiled = made.make(config, like)
    gradients, values = [], []
    began = time.monotonic()
    for model in (plain, compiled):
        teacher = make_self_teacher("frozen", plain)
        total = compose_loss(model, batch, config.loss, self_teacher=teacher, strict=True).total
        values.append(float(total.detach()))
        gradients.append(made.gradient(model, total))
    found.note("seconds of the first passes, compilation included", time.monotonic() - began)
    found.holds("blocks are compiled", any((folder / "inductor").rglob("*.py")))
    found.at_most("loss", abs(values[1] / values[0] - 1.0), _MOST)
    found.at_most("gradient", made.relative_error(gradients[1], gradients[0]), _MOST)
    for tokens in (size.tokens // 2, size.tokens // 3):
        ids, wanted = batch["input_ids"][:, :tokens], batch["response_mask"][:, :tokens]
        scored = []
        for model in (plain, compiled):
            with evaluating(model):
                scored.append(sequence_logprobs(model, ids, None, wanted))
        found.at_most(f"log-probs of {tokens} tokens", float((scored[1] - scored[0]).abs().max()), _MOST)
    two_updates(found, "compiled", Learner(compiled, config), batch)
    return found
