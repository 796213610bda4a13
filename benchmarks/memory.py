"""Peak memory of `compose_loss` with all of a trajectory's tokens in the loss, as the batch grows, beside whole logits.

Every measurement is a fresh process. The model is all vocabulary (151,936) and next to no layers, so that what grows is the loss.
`--write docs/figures/memory.json` and then `make figures` draw what was measured.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

import torch
from measuring import Peak, emit
from torch.nn.functional import cross_entropy
from transformers import Qwen3Config, Qwen3ForCausalLM

from composer_replication.loss import compose_loss

VOCABULARY, HIDDEN, COLUMNS = 151_936, 64, 1_024
TOKENS = tuple(1_024 << i for i in range(7))
PLAIN_BYTES = 17
"""Of memory per token and vocabulary entry that whole logits take at least, forward and backward."""


def new_model() -> Qwen3ForCausalLM:
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=HIDDEN,
        intermediate_size=HIDDEN,
        num_hidden_layers=1,
        num_attention_heads=1,
        num_key_value_heads=1,
        head_dim=64,
        max_position_embeddings=COLUMNS,
        tie_word_embeddings=True,
    )
    return Qwen3ForCausalLM(config).eval()


def measure(variant: str, tokens: int) -> None:
    """In a fresh process: print one line of JSON."""
    torch.set_num_threads(2)
    model = new_model()
    ids = torch.randint(VOCABULARY, (tokens // COLUMNS, COLUMNS))
    batch = {"input_ids": ids, "response_mask": torch.ones_like(ids), "advantages": torch.ones(len(ids))}
    compose_loss(model, {key: value[:1, :64] if value.dim() == 2 else value[:1] for key, value in batch.items()}).total.backward()
    with Peak() as peak:
        if variant == "ours":
            loss = compose_loss(model, batch).total
        else:
            logits = model(input_ids=ids).logits[:, :-1]
            loss = cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
        loss.backward()
    print(json.dumps({"peak_mb": round(peak.megabytes)}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--one", nargs=2, metavar=("VARIANT", "TOKENS"), help="measure one in this process")
    parser.add_argument("--write", type=Path, help="keep the figures in this file")
    options = parser.parse_args()
    if options.one:
        measure(options.one[0], int(options.one[1]))
        return
    found: dict[str, dict[int, int]] = {"ours": {}, "whole logits": {}}
    room = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for tokens in TOKENS:
        for variant, peaks in found.items():
            if variant != "ours" and tokens * VOCABULARY * PLAIN_BYTES > room:
                print(f"{tokens:6d} tokens  {variant:12s} not run: {room / 2**30:.0f} GiB are free", flush=True)
                continue
            command = [sys.executable, __file__, "--one", variant, str(tokens)]
            done = subprocess.run(command, env={**os.environ, "OMP_NUM_THREADS": "2"}, capture_output=True, text=True, check=True)
            peaks[tokens] = json.loads(done.stdout.splitlines()[-1])["peak_mb"]
            print(f"{tokens:6d} tokens  {variant:12s} {peaks[tokens]:6d} MB", flush=True)
    figures = {"vocabulary": VOCABULARY, "hidden": HIDDEN, "peak_mb": found}
    if options.write:
        options.write.write_text(json.dumps(figures, indent=1) + "\n", "utf-8")
    emit("memory", figures)


if __name__ == "__main__":
    main()
