"""Sampled tokens per second of multi-turn rollouts, one thread: the engine in the trainer's process against vLLM on the same CPU.

Same tiny model in float32, same prompts, same number of sampled tokens. `python benchmarks/serving.py --vllm PYTHON` names an
interpreter that has vLLM; CPU time is that of this process and of all of vLLM's.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

import torch
from bench_rollout import NEVER, OBSERVATION, PROMPT, ROLLOUTS, SAMPLED, TURNS, conversation, tiny_model
from measuring import cpu_seconds, emit, interleave, ratio

from composer_replication.loss.forward.models import save_policy
from composer_replication.rollouts.protocol import Engine, SampleRequest
from composer_replication.rollouts.serving import ServingEngine, SharedFolder, open_server
from composer_replication.rollouts.transformers_engine import TransformersEngine
from composer_replication.tokens import byte_level_tokenizer

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "tools"))
from served_policy import Policy
from vllm_process import WHOLE_PROMPTS, vllm

REPEATS = 3
TOKENS = ROLLOUTS * TURNS * SAMPLED


def roll_out(engine: Engine, seed: int) -> None:
    """All turns of all rollouts."""
    prompts, replies = conversation()
    names, new = [f"{seed}/{row}" for row in range(ROLLOUTS)], prompts
    for turn in range(TURNS):
        requests = [
            SampleRequest(session=name, new_ids=tuple(ids), max_new_tokens=SAMPLED, seed=seed + turn * ROLLOUTS + row)
            for row, (name, ids) in enumerate(zip(names, new.tolist(), strict=True))
        ]
        samples = engine.sample(requests, temperature=1.0)
        if any(len(sample.ids) != SAMPLED for sample in samples):
            raise RuntimeError("a turn was cut short: the comparison would be unequal")
        new = replies[turn]
    engine.close(names)


def main(arguments: list[str]) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--vllm", required=True, metavar="PYTHON")
    given = parser.parse_args(arguments)
    torch.set_num_threads(1)
    model, tokenizer = tiny_model(), byte_level_tokenizer()
    own = TransformersEngine(model, tokenizer, stop_ids=[NEVER])  # type: ignore[arg-type]  # their annotations do not agree
    with tempfile.TemporaryDirectory(prefix="composer-serving-") as name:
        work = Path(name)
        save_policy(model, tokenizer, work / "policy")
        with vllm(given.vllm, work / "policy", work, *WHOLE_PROMPTS) as running:
            policy = Policy(model, tokenizer)
            served = ServingEngine(
                open_server("vllm", running.url),
                stop_ids=(),
                probe_ids=range(1, 40),
                policy=policy,
                transfer=SharedFolder(work / "weights"),
            )
            served.check()
            load_s, load_cpu_s = -time.perf_counter(), -cpu_seconds()
            served.push()
            load_s, load_cpu_s = load_s + time.perf_counter(), load_cpu_s + cpu_seconds()
            seeds = iter(range(0, 1_000_000, 1000))
            runs = {"transformers": lambda: roll_out(own, next(seeds)), "vllm": lambda: roll_out(served, next(seeds))}
            samples = interleave(runs, REPEATS)
            served.end()
    figures = {}
    for engine, measured in samples.items():
        figures[engine] = measured.figures()
        figures[engine]["tokens_per_s"] = round(1e3 * TOKENS / figures[engine]["wall_ms_p50"], 1)
        figures[engine]["tokens_per_cpu_s"] = round(1e3 * TOKENS / figures[engine]["cpu_ms_mean"], 1)
        print(f"{engine:13s} {figures[engine]}")
    times = ratio(samples, "vllm", "transformers")
    print(f"vLLM takes {times['wall']} times as long and {times['cpu']} times the CPU time of the engine in this process")
    shape = {"rollouts": ROLLOUTS, "turns": TURNS, "prompt": PROMPT, "observation": OBSERVATION, "sampled_per_turn": SAMPLED}
    load = {"load_wall_s": round(load_s, 2), "load_cpu_s": round(load_cpu_s, 2), "parameters": model.num_parameters()}
    emit("serving", {**figures, "vllm_over_transformers": times, **load, **shape})


if __name__ == "__main__":
    main(sys.argv[1:])
