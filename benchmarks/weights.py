"""Bytes, time and bits of weights on their way from a trainer to a generator.

`python benchmarks/weights.py [--steps N] [--write FILE]`: a Qwen3 of 23 million parameters is trained with AdamW on a language
modelling loss, on the text of this repository; after a warm-up each further step, with learning rate 1e-6 or 1e-5, is published
and pulled: from the float32 masters, in bfloat16, float16 and float32. Every version that arrives is compared bit by bit with
what was sent, and one object of each is damaged on the way. Ends with one line of JSON.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from statistics import fmean, median
from tempfile import TemporaryDirectory
from typing import Any

import torch
from measuring import emit
from torch import Tensor
from transformers import Qwen3Config, Qwen3ForCausalLM

from composer_replication.diloco import open_store
from composer_replication.weights import WeightPublisher, WeightPuller

ROOT = Path(__file__).resolve().parent.parent
RATES, TYPES = (1e-6, 1e-5), (torch.bfloat16, torch.float16, torch.float32)
WARM_UP, WARM_RATE = 40, 3e-4
ROWS, LENGTH, VOCABULARY = 4, 128, 8192
MOST_OF_A_COPY = {1e-6: 0.05, 1e-5: 0.2}
"""Of a bfloat16 model, in bytes."""


class Damaging:
    """A store that damages the first object that is read of each version."""

    def __init__(self, store: Any) -> None:
        self.store, self.seen = store, set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)

    def get(self, key: str) -> bytes | None:
        data = self.store.get(key)
        version = key.split("/")[1]
        if data and key.startswith("objects") and version not in self.seen:
            self.seen.add(version)
            return data[: len(data) // 2] + bytes([data[len(data) // 2] ^ 1]) + data[len(data) // 2 + 1 :]
        return data


class Training:
    """A model, its optimizer, and the text that it learns."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        shape = {"hidden_size": 512, "intermediate_size": 1536, "num_hidden_layers": 6, "head_dim": 64}
        heads = {"num_attention_heads": 8, "num_key_value_heads": 4, "tie_word_embeddings": True}
        self.model = Qwen3ForCausalLM(Qwen3Config(vocab_size=VOCABULARY, max_position_embeddings=LENGTH, **shape, **heads))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=WARM_RATE)
        text = b"\n".join(path.read_bytes() for path in sorted((ROOT / "composer_replication").rglob("*.py")))
        pairs = torch.frombuffer(bytearray(text[: len(text) // 2 * 2]), dtype=torch.uint8).view(-1, 2).long()
        self.tokens = (pairs[:, 0] * 256 + pairs[:, 1]) % VOCABULARY
        self.random = torch.Generator().manual_seed(1)

    def step(self, rate: float) -> float:
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        starts = torch.randint(0, len(self.tokens) - LENGTH, (ROWS,), generator=self.random).tolist()
        batch = torch.stack([self.tokens[start : start + LENGTH] for start in starts])
        loss = self.model(input_ids=batch, labels=batch).loss
        self.optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        return loss.item()

    def state(self, dtype: torch.dtype) -> dict[str, Tensor]:
        """As the generator would be given it; the tied head stays tied."""
        state = self.model.state_dict()
        made = {name: tensor.to(dtype, copy=True) for name, tensor in state.items() if name != "lm_head.weight"}
        return made | {"lm_head.weight": made["model.embed_tokens.weight"]}


class Way:
    """One publisher and one puller, for one type."""

    def __init__(self, folder: Path, dtype: torch.dtype) -> None:
        store = open_store(folder / str(dtype))
        self.dtype = dtype
        self.publisher = WeightPublisher(store, shard_bytes=16 * 2**20, threads=1)
        self.puller = WeightPuller(Damaging(store), threads=1)

    def send(self, state: dict[str, Tensor]) -> dict[str, float]:
        before = self.puller.held.state if self.puller.held is not None else state
        changed = sum(int((before[name] != state[name]).sum()) for name in state if name != "lm_head.weight")
        made = self.publisher.publish(state)
        start = time.perf_counter()
        found = self.puller.pull()
        width = torch.int16 if self.dtype.itemsize == 2 else torch.int32
        same = all(torch.equal(found.state[name].view(width), state[name].view(width)) for name in state)
        return {
            "changed": changed / (made.bytes_full / self.dtype.itemsize),
            "share": made.bytes_up / made.bytes_full,
            "bytes_full": made.bytes_full,
            "publish_s": made.seconds,
            "pull_s": time.perf_counter() - start,
            "apply_s": found.apply_seconds,
            "refetched": found.refetched,
            "whole": found.full,
            "identical": same and found.version == made.version and found.state.keys() == state.keys(),
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=5, help="steps at each learning rate")
    parser.add_argument("--write", type=Path, help="write the figures there as well")
    options = parser.parse_args()
    torch.set_num_threads(1)
    training, rows = Training(), []
    losses = [training.step(WARM_RATE) for _ in range(WARM_UP)]
    print(f"{sum(value.numel() for value in training.model.parameters()):,} parameters, loss {losses[0]:.2f} -> {losses[-1]:.2f}")
    heads = ("changed", "of a copy", "smaller", "publish s", "pull s", "apply s")
    print(f"{'rate':>6} {'type':9} {' '.join(f'{head:>9}' for head in heads)} same bits")
    with TemporaryDirectory() as folder:
        ways = [Way(Path(folder), dtype) for dtype in TYPES]
        first = [way.send(training.state(way.dtype)) for way in ways]
        for rate in RATES:
            sent: dict[torch.dtype, list[dict[str, float]]] = {dtype: [] for dtype in TYPES}
            for _ in range(options.steps):
                training.step(rate)
                for way in ways:
                    sent[way.dtype].append(way.send(training.state(way.dtype)))
            for dtype, found in sent.items():
                rows.append(row(rate, dtype, found))
                print_row(rows[-1])
    identical = all(one["identical"] for one in rows) and all(one["identical"] for one in first)
    refetched = sum(one["refetched"] for one in rows)
    small = {one["rate"]: one["share"] for one in rows if one["type"] == "bfloat16"}
    passed = identical and refetched >= len(rows) * options.steps and all(small[rate] <= MOST_OF_A_COPY[rate] for rate in RATES)
    if options.write:
        options.write.write_text(json.dumps({"rows": rows}, indent=1) + "\n")
    shares = {f"bf16_share_{rate:g}": small[rate] for rate in RATES}
    emit("weights", {**shares, "identical": identical, "damaged_and_refetched": refetched, "passed": passed})
    raise SystemExit(0 if passed else 1)


def row(rate: float, dtype: torch.dtype, found: list[dict[str, float]]) -> dict[str, Any]:
    """Means over the steps; medians of times."""
    return {
        "rate": rate,
        "type": str(dtype).removeprefix("torch."),
        **{key: round(fmean(one[key] for one in found), 5) for key in ("changed", "share")},
        **{key: round(median(one[key] for one in found), 3) for key in ("publish_s", "pull_s", "apply_s")},
        "refetched": sum(one["refetched"] for one in found),
        "whole": sum(one["whole"] for one in found),
        "identical": all(one["identical"] for one in found),
    }


def print_row(row: dict[str, Any]) -> None:
    shares = f"{row['changed']:9.2%} {row['share']:9.2%} {1 / row['share']:8.1f}x"
    times = " ".join(f"{row[key]:9.2f}" for key in ("publish_s", "pull_s", "apply_s"))
    print(f"{row['rate']:6g} {row['type']:9} {shares} {times} {row['identical']}", flush=True)


if __name__ == "__main__":
    main()
