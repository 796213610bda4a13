"""Five training steps of the three-channel loss on one real chat batch: does everything connect, and are all gradients finite?

    python examples/qwen_05b_quickstart/run.py [--model NAME_OR_PATH] [--steps 5] [--lr 1e-5]

It memorises a single batch. That checks the wiring and claims nothing about generalisation. Exit status 0 on PASS, 1 on FAIL.
"""

from __future__ import annotations

import argparse
import random
import sys

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from composer_replication import build_batch, compose_loss


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="Qwen/Qwen2.5-0.5B-Instruct", help="Hugging Face name or local path")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--lr", type=float, default=1e-5)
    args = parser.parse_args(argv)
    random.seed(42)
    torch.manual_seed(42)

    print(f"[quickstart] loading {args.model} (CPU, fp32) ...")
    tokenizer = AutoTokenizer.from_pretrained(args.model)
    model = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32)
    model.train()
    print(f"[quickstart] loaded: {sum(p.numel() for p in model.parameters()):,} parameters")
    print("[quickstart] building a chat-template batch; the pair's reference log-probs are the model's own ...")
    batch = build_batch(tokenizer, device="cpu", model=model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)

    print(f"[quickstart] running {args.steps} backward steps ...")
    totals: list[float] = []
    all_finite = True
    for step in range(args.steps):
        components = compose_loss(model, batch, alpha_sdpo=0.1, beta_replay=0.05, strict=True)
        optimizer.zero_grad()
        components.total.backward()
        finite = all(bool(torch.isfinite(p.grad).all()) for p in model.parameters() if p.grad is not None)
        all_finite = all_finite and finite
        optimizer.step()
        totals.append(components.total.item())
        print(
            f"  step {step}: total={totals[-1]:.4f} lm_ce={components.lm_ce.item():.4f} sdpo={components.sdpo_jsd.item():.4f} "
            f"dpo={components.trace_replay_dpo.item():.4f} finite={finite}"
        )

    passed = all_finite and totals[-1] < totals[0]
    print("=" * 56)
    print(f"Initial loss: {totals[0]:.4f} -> Final loss: {totals[-1]:.4f} -> Reduction: {1 - totals[-1] / totals[0]:.1%}")
    print(f"Verdict: {'PASS' if passed else 'FAIL'}")
    print("=" * 56)
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
