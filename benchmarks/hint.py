"""What the hint channel costs on one long trajectory: a step of policy gradient alone, and with each kind of self-teacher.

One trajectory of 4,096 tokens whose error turns make 5 % of it; a hint stands before each. Every measurement is a fresh process,
and the variants take turns. Memory is what a step takes at most above the model that is trained; a self-teacher's copy counts.
`--untied --vocabulary 151936` is the head of a large model, whose gradient must not exist once more for the hints. `plain` is the
same loss the obvious way: whole logits, and a second forward pass over a whole sequence for every hinted turn.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import time
from pathlib import Path

import torch
from measuring import Peak, emit
from torch import Tensor
from torch.nn.functional import log_softmax
from transformers import Qwen3Config, Qwen3ForCausalLM

from composer_replication.distillation import generalized_jsd_per_token, make_self_teacher
from composer_replication.loss import compose_loss
from composer_replication.loss.batch import collate
from composer_replication.loss.batch_keys import Batch
from composer_replication.types import HintedTurn, StopReason, Trajectory, Turn

TOKENS, PROMPT, ACTION, REPLY, HINT, ERROR_TURNS = 4_096, 496, 50, 100, 48, 4
VARIANTS = ("policy gradient", "live", "frozen", "ema", "plain")


def new_model(hidden: int, layers: int, vocabulary: int, *, tied: bool) -> Qwen3ForCausalLM:
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=vocabulary,
        hidden_size=hidden,
        intermediate_size=4 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=hidden // 64,
        num_key_value_heads=max(1, hidden // 256),
        head_dim=64,
        max_position_embeddings=2 * TOKENS,
        tie_word_embeddings=tied,
    )
    return Qwen3ForCausalLM(config).eval()


def new_batch(vocabulary: int) -> Batch:
    rng = random.Random(0)

    def ids(count: int) -> tuple[int, ...]:
        return tuple(rng.randrange(vocabulary) for _ in range(count))

    count = (TOKENS - PROMPT) // (ACTION + REPLY)
    turns = tuple(
        Turn(action_ids=ids(ACTION), logprobs=(-8.0,) * ACTION, text="", observation_ids=ids(REPLY)) for _ in range(count)
    )
    one = Trajectory(
        trajectory_id="one",
        task_id="task",
        policy_version=0,
        messages=(),
        tools=(),
        prompt_ids=ids(PROMPT),
        turns=turns,
        stop_reason=StopReason.SUBMITTED,
        temperature=1.0,
        reward=0.0,
    )
    hinted = []
    for number in range(count // (2 * ERROR_TURNS), count, count // ERROR_TURNS):
        context = one.context_ids(number) + ids(HINT)
        hinted.append(
            HintedTurn(
                trajectory_id="one",
                turn=number,
                student_start=one.action_start(number),
                teacher_ids=context + turns[number].action_ids,
                teacher_start=len(context),
                action_ids=turns[number].action_ids,
            )
        )
    return collate([one], [1.0], hinted, pad_id=0)


def plain(model: Qwen3ForCausalLM, batch: Batch) -> Tensor:
    """The same loss without anything saved."""
    ids = batch["input_ids"]
    logits = model(input_ids=ids, attention_mask=batch["attention_mask"]).logits
    logprobs = log_softmax(logits[:, :-1], -1).gather(-1, ids[:, 1:, None]).squeeze(-1)
    ratio = (logprobs - batch["old_logprobs"][:, 1:].nan_to_num()).exp()
    advantage = batch["advantages"].reshape(len(ids), -1)[:, -(ids.shape[1] - 1) :]
    surrogate = -torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.28) * advantage)
    policy = (batch["rlvr_weights"][:, 1:] * surrogate).sum() / batch["rlvr_denominator"]
    with torch.no_grad():
        taught = model(input_ids=batch["ctx_teacher_input_ids"], attention_mask=batch["ctx_teacher_attention_mask"]).logits
    turn, k = (batch["sdpo_loss_mask"] > 0).nonzero(as_tuple=True)
    student_at, teacher_at = batch["student_response_idx"][turn, k], batch["teacher_response_idx"][turn, k]
    rows = logits[batch["student_row"][turn], student_at - 1]
    divergence = generalized_jsd_per_token(rows, taught[turn, teacher_at - 1], beta=0.0)
    return policy + (batch["sdpo_loss_mask"][turn, k] * divergence).sum() / batch["hint_denominator"]


def measure(variant: str, hidden: int, layers: int, vocabulary: int, *, tied: bool) -> None:
    """In a fresh process: one step to warm up on a short batch, one that counts; print one line of JSON."""
    torch.set_num_threads(2)
    model, batch = new_model(hidden, layers, vocabulary, tied=tied), new_batch(vocabulary)
    model(input_ids=batch["input_ids"][:, :256]).logits.sum().backward()
    with Peak() as peak:
        found = _step(variant, model, batch)
    print(json.dumps({**found, "peak_mb": peak.megabytes}))


def _step(variant: str, model: Qwen3ForCausalLM, batch: Batch) -> dict[str, float]:
    """Make the self-teacher, then one step, whose time is taken."""
    teacher = make_self_teacher(variant, model, rate=0.05) if variant in ("live", "frozen", "ema") else None

    def step() -> Tensor:
        if variant == "plain":
            return plain(model, batch)
        return compose_loss(model, batch, alpha_sdpo=0.0 if teacher is None else 1.0, self_teacher=teacher).total

    cpu, wall = time.process_time(), time.perf_counter()
    value = step()
    value.backward()
    return {"cpu_s": time.process_time() - cpu, "wall_s": time.perf_counter() - wall, "loss": value.item()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--vocabulary", type=int, default=32_768)
    parser.add_argument("--untied", action="store_true", help="the head has a weight of its own")
    parser.add_argument("--write", type=Path, help="write the figures to this file")
    parser.add_argument("--one", choices=VARIANTS, help="measure one variant in this process")
    options = parser.parse_args()
    size = {"hidden": options.hidden, "layers": options.layers, "vocabulary": options.vocabulary}
    if options.one:
        measure(options.one, **size, tied=not options.untied)
        return
    words = [word for name, value in size.items() for word in (f"--{name}", str(value))] + ["--untied"] * options.untied
    runs: dict[str, list[dict[str, float]]] = {variant: [] for variant in VARIANTS}
    for _ in range(options.repeats):
        for variant in VARIANTS:
            done = subprocess.run(
                [sys.executable, __file__, "--one", variant, *words],
                env={**os.environ, "OMP_NUM_THREADS": "2"},
                capture_output=True,
                text=True,
                check=True,
            )
            runs[variant].append(json.loads(done.stdout.splitlines()[-1]))
    figures = {"tokens": TOKENS, **size, "tied": not options.untied, "repeats": options.repeats, "variants": _figures(runs)}
    emit("hint", figures, options.write)


def _figures(runs: dict[str, list[dict[str, float]]]) -> dict[str, dict[str, float]]:
    """Medians of every variant and its ratio to the step without hints, printed as they are returned."""
    medians = {v: {key: statistics.median(run[key] for run in found) for key in found[0]} for v, found in runs.items()}
    alone = medians["policy gradient"]
    for variant, figures in medians.items():
        for key in ("cpu_s", "wall_s", "peak_mb"):
            figures[f"{key}_over_alone"] = figures[key] / alone[key]
        told = f"{figures['cpu_s']:7.1f} CPU-s {figures['wall_s']:7.1f} s {figures['peak_mb']:7.0f} MB"
        ratios = f"{figures['cpu_s_over_alone']:.2f} CPU {figures['peak_mb_over_alone']:.2f} memory"
        print(f"{variant:16s} {told}   over the policy gradient alone: {ratios}   loss {figures['loss']:.6f}", flush=True)
    return {v: {key: round(value, 4) for key, value in figures.items()} for v, figures in medians.items()}


if __name__ == "__main__":
    main()
