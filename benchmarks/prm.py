"""Does a process reward model read the context? Synthetic traces with planted faults (planted_faults.py), tasks held out.

The model is a Qwen3 of 0.4 million parameters made here, trained by `prm.train_prm`, as `composer prm train` does. Beside it
stand the majority's answer and a logistic regression on what needs no reading: the last tokens as a bag, turn, position, length.

`--write docs/figures/prm.json`, which `make bench-prm` does, keeps curves and numbers; `make figures` draws them.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from measuring import cpu_seconds, emit
from planted_faults import Planted, texts, traces
from torch import Tensor, nn
from transformers import PreTrainedTokenizerFast, Qwen3Config

from composer_replication.observe import Terminal
from composer_replication.prm import (
    Example,
    Judged,
    PrmOptions,
    encode,
    held_out_tasks,
    make_prm,
    train_prm,
)
from composer_replication.prm.evaluate import judge, thinned
from composer_replication.prm.metrics import auroc, bootstrap_interval, calibration, roc
from composer_replication.tokens import ChatRenderer, byte_level_tokenizer

PIECES = r" ?[A-Za-z_]+|[0-9]| *[^A-Za-z_0-9\n]+|\n"
"""Of the tokenizer: a word, a digit, a run of punctuation."""
LAST = 32
"""Tokens in the baseline's bag: a whole call."""


def config_of(tokenizer: PreTrainedTokenizerFast) -> Qwen3Config:
    """A small Qwen3."""
    return Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=96,
        intermediate_size=288,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=4,
        head_dim=24,
        max_position_embeddings=1024,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
    )


def without_reading(train: Sequence[Example], test: Sequence[Example], vocabulary: int) -> list[float]:
    """Probabilities of the test's steps by a logistic regression on the last tokens as a bag, turn, position and length."""

    def features(examples: Sequence[Example]) -> Tensor:
        rows = []
        for example in examples:
            before = 0
            for step in example.steps:
                bag = torch.bincount(torch.tensor(example.input_ids[: step.end + 1][-LAST:]), minlength=vocabulary).float()
                place = torch.tensor([step.turn / 8, step.end / 256, (step.end - before) / 64])
                rows.append(torch.cat([bag, place]))
                before = step.end
        return torch.stack(rows)

    x, y = features(train), torch.tensor([step.label for e in train for step in e.steps])
    torch.manual_seed(0)
    model = nn.Linear(x.shape[1], 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.03, weight_decay=0.01)
    for _ in range(300):
        optimizer.zero_grad()
        nn.functional.binary_cross_entropy_with_logits(model(x).squeeze(1), y).backward()
        optimizer.step()
    with torch.no_grad():
        return [float(p) for p in model(features(test)).squeeze(1).sigmoid()]


def measured(judged: Sequence[Judged], scores: Sequence[float]) -> dict[str, Any]:
    """AUROC with its interval over tasks, and accuracy."""
    labels = [one.label for one in judged]
    low, high = bootstrap_interval(labels, scores, [one.task_id for one in judged])
    right = sum((label >= 0.5) == (score >= 0.5) for label, score in zip(labels, scores, strict=True))
    values = {"auroc": auroc(labels, scores), "low": low, "high": high, "accuracy": right / len(labels)}
    return {name: round(value, 4) for name, value in values.items()}


def by_fault(judged: Sequence[Judged], planted: Mapping[str, Planted]) -> dict[str, float]:
    """AUROC of each kind of fault against the good steps."""
    kinds: defaultdict[str, list[Judged]] = defaultdict(list)
    for one in judged:
        kinds[planted[one.trajectory_id].faults[one.turn]].append(one)
    good = kinds.pop("")
    return {
        kind: round(auroc([one.label for one in (*good, *found)], [one.probability for one in (*good, *found)]), 4)
        for kind, found in sorted(kinds.items())
    }


def main() -> None:
    """Generate, train, measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, default=1500)
    parser.add_argument("--siblings", type=int, default=4)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--learning-rate", type=float, default=2e-3)
    parser.add_argument("--write", type=Path, help="JSON file for curves and numbers")
    args = parser.parse_args()

    tokenizer = byte_level_tokenizer(texts(), vocab_size=512, pattern=PIECES)
    renderer = ChatRenderer(tokenizer)
    planted = {p.trajectory.trajectory_id: p for p in traces(renderer, range(args.tasks), args.siblings)}
    examples = [e for p in planted.values() for e in encode(p.trajectory, renderer, p.labels)]
    options = PrmOptions(
        epochs=args.epochs,
        batch_size=16,
        learning_rate=args.learning_rate,
        tokens_at_once=4096,
        save_every=1000,
        max_tokens=1024,
    )
    model = make_prm(config_of(tokenizer))
    began = cpu_seconds()
    with tempfile.TemporaryDirectory() as folder:
        summary = train_prm(model, tokenizer, examples, Path(folder) / "prm", options, terminal=Terminal())
    spent = cpu_seconds() - began

    held_out = held_out_tasks([e.task_id for e in examples], options.held_out, seed=options.seed)
    train, test = [e for e in examples if e.task_id not in held_out], [e for e in examples if e.task_id in held_out]
    judged = judge(model, test, pad_id=int(tokenizer.pad_token_id))
    labels, scores = [one.label for one in judged], [one.probability for one in judged]
    majority = Counter(step.label for e in train for step in e.steps).most_common(1)[0][0]
    bag = without_reading(train, test, len(tokenizer))
    figures = {
        "prm": measured(judged, scores),
        "majority": measured(judged, [float(majority or 0.0)] * len(judged)),
        "last_tokens_position_length": measured(judged, bag),
        "prm_by_fault": by_fault(judged, planted),
        "ece": round(summary["prm/held_out/ece"], 4),
        "held_out_tasks": len(held_out),
        "held_out_steps": len(judged),
        "train_steps": summary["steps"],
        "parameters": sum(p.numel() for p in model.parameters()),
    }
    if args.write is not None:
        bins = [(round(b.probability, 4), round(b.label, 4)) for b in calibration(labels, scores)]
        curves = {"PRM": thinned(roc(labels, scores)), "last tokens, position, length": thinned(roc(labels, bag))}
        rounded = {name: [(round(x, 4), round(y, 4)) for x, y in points] for name, points in curves.items()}
        args.write.write_text(json.dumps({**figures, "roc": rounded, "calibration": bins}, indent=1) + "\n", "utf-8")
    emit("prm", {**figures, "training_cpu_s": round(spent, 1)})


if __name__ == "__main__":
    main()
