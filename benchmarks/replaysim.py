"""Normalising preference pairs: the backends beside data-juicer's stock executor on the recipe as the user guide has it.

All figures are CPU seconds of the whole process tree, with the wall time beside them. The stock executor's time grows faster
than the number of pairs: by default it is measured on 1,000 and 5,000 pairs, with `--whole` on all of them too.

    usage: python benchmarks/replaysim.py [--records N] [--stock N ...] [--whole]
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.parquet
import yaml
from measuring import cpu_seconds, emit

from composer_replication.config import BackendName
from composer_replication.replaysim import DJNormalizer, NormalizeReport
from composer_replication.replaysim.recipe import DEFAULT_RECIPE

BACKENDS: tuple[BackendName, ...] = ("builtin", "data_juicer", "executor", "ray")
IN_PROCESS = BACKENDS[:2]
BUDGET_CPU_S = 10.0
AGREED_ON, REPEATS = 400, 20
SUBREAPER = 36
TEXT = "read the failing test before you edit the login handler and then run all of it again to see what naïve 漢字 возврат is"
WORDS = TEXT.split()
NOISE = ("}}]); }}]); }}]); x y", "2026-01-01 00:00:00", "ok", "a_single_very_long_word", "😀 😀 😀 😀 words here")
STOCK = """
import sys
from data_juicer.config import init_configs
from data_juicer.core.executor.default_executor import DefaultExecutor
DefaultExecutor(init_configs(["--config", sys.argv[1]])).run()
"""


def pairs_of(count: int, seed: int = 0) -> list[dict[str, Any]]:
    """Prose and tool calls; one rejected side in twenty is a single letter, one chosen side in ten is an earlier one again."""
    rng = random.Random(seed)
    pairs: list[dict[str, Any]] = []
    for number in range(count):
        again = pairs and rng.random() < 0.1
        chosen = pairs[rng.randrange(len(pairs))]["chosen"].upper() if again else action(rng, number)
        rejected = "x" if rng.random() < 0.05 else action(rng, count + number)
        messages = [{"role": "user", "content": f"task {number}"}]
        pair = {"state_id": f"s{number}", "state_messages": messages, "chosen": chosen, "rejected": rejected}
        pairs.append(pair | {"n_teachers_agreeing": 2})
    return pairs


def action(rng: random.Random, number: int) -> str:
    kind = rng.random()
    if kind < 0.02:
        return rng.choice(NOISE)
    text = " ".join(rng.choice(WORDS) for _ in range(rng.randrange(6, 30)))
    named = f"{text} {''.join(chr(97 + int(digit)) for digit in str(number))}"
    if kind < 0.5:
        return json.dumps({"name": "edit_file", "arguments": {"path": f"src/{named[-4:]}.py", "new": named}}, ensure_ascii=False)
    return named


class Spent:
    """CPU and wall seconds of a block, with the processes it left behind."""

    def __enter__(self) -> Spent:
        self._cpu, self._wall = cpu_seconds(), time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        self.wall_s = time.perf_counter() - self._wall
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG) != (0, 0):
                pass
        self.cpu_s = cpu_seconds() - self._cpu

    def figures(self, repeats: int = 1) -> dict[str, float]:
        return {"cpu_s": round(self.cpu_s / repeats, 3), "wall_s": round(self.wall_s / repeats, 3)}


def report_of(normalizer: DJNormalizer, pairs: Sequence[dict[str, Any]]) -> NormalizeReport:
    normalizer.normalize(pairs)
    assert normalizer.report is not None
    return normalizer.report


def agreement(normalizers: dict[BackendName, DJNormalizer]) -> dict[str, Any]:
    """The four on pairs of every kind, and on pairs none of which pass."""
    mixed = pairs_of(AGREED_ON, seed=1)
    hopeless = [pair | {"rejected": "x"} for pair in mixed[:20]]
    found: dict[str, Any] = {"pairs": len(mixed) + len(hopeless), "kept": 0}
    for given in (mixed, hopeless):
        reports = {name: report_of(normalizer, given) for name, normalizer in normalizers.items()}
        different = [name for name, report in reports.items() if report != reports["builtin"]]
        if different:
            raise SystemExit(f"NOT THE SAME ROWS as builtin: {', '.join(different)}")
        found["kept"] += reports["builtin"].kept
    return found


def stock(pairs: Sequence[dict[str, Any]], report: NormalizeReport) -> dict[str, Any]:
    """data-juicer's executor on the recipe as it is written, and how many bad pairs it lets through."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        given, out = folder / "in.jsonl", folder / "out.parquet"
        rows = ({"row": row, "chosen": pair["chosen"], "rejected": pair["rejected"]} for row, pair in enumerate(pairs))
        given.write_text("".join(json.dumps(row) + "\n" for row in rows))
        recipe = yaml.safe_load(DEFAULT_RECIPE.read_text("utf-8"))
        recipe |= {"project_name": "stock", "dataset_path": str(given), "export_path": str(out), "np": 1}
        recipe |= {"work_dir": str(folder / "work"), "text_keys": "chosen", "use_cache": False}
        path = folder / "recipe.yaml"
        path.write_text(yaml.safe_dump(recipe, sort_keys=False))
        with Spent() as spent:
            command = [sys.executable, "-c", STOCK, str(path)]
            done = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | {"HF_HUB_OFFLINE": "1"})
        if done.returncode != 0:
            raise SystemExit(f"the stock executor failed:\n{done.stderr[-4000:]}")
        left = pyarrow.parquet.read_table(out, columns=["row"])["row"].to_pylist()
    by_rejected = {title for title in report.dropped if title.endswith("/rejected")}
    passed = sum(report.dropped_by[row] in by_rejected for row in left)
    return {"pairs": len(pairs), "kept": len(left), "kept_with_bad_rejected": passed, "right": report.kept, **spent.figures()}


def timed(run: Callable[[], object], repeats: int = 1) -> dict[str, float]:
    with Spent() as spent:
        for _ in range(repeats):
            run()
    return spent.figures(repeats)


def side_by_side(
    sizes: Sequence[int], pairs: Sequence[dict[str, Any]], normalizers: dict[BackendName, DJNormalizer]
) -> list[dict[str, Any]]:
    """The stock executor and the backends in process on the first pairs, for every size."""
    found = []
    for size in sizes:
        given = pairs[:size]
        repeats = REPEATS if size < 10_000 else 1
        ours = {name: timed(partial(normalizers[name].normalize, given), repeats) for name in IN_PROCESS}
        figures = stock(given, report_of(normalizers["builtin"], given))
        figures["times_more_cpu_than"] = {name: round(figures["cpu_s"] / max(ours[name]["cpu_s"], 1e-3)) for name in IN_PROCESS}
        print(f"stock executor, {size:,} pairs: {figures}", flush=True)
        print(f"  it kept {figures['kept_with_bad_rejected']} pairs whose rejected side the recipe forbids", flush=True)
        found.append(figures | {"beside": ours})
    return found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--records", type=int, default=100_000)
    parser.add_argument("--stock", type=int, nargs="*", default=[1_000, 5_000])
    parser.add_argument("--whole", action="store_true", help="measure the stock executor on all records too")
    asked = parser.parse_args()
    ctypes.CDLL(None).prctl(SUBREAPER, 1)  # what a backend leaves behind is this process's to count
    normalizers: dict[BackendName, DJNormalizer] = {"builtin": DJNormalizer()}
    with Spent() as importing:
        normalizers["data_juicer"] = DJNormalizer(backend="data_juicer")
    normalizers |= {name: DJNormalizer(backend=name) for name in BACKENDS[2:]}
    agreed = agreement(normalizers)
    print(f"the four backends agree on {agreed['pairs']} pairs, row for row; they keep {agreed['kept']}", flush=True)
    pairs = pairs_of(asked.records)
    figures = {name: timed(partial(normalizers[name].normalize, pairs)) for name in IN_PROCESS}
    report = report_of(normalizers["builtin"], pairs)
    if report != normalizers["data_juicer"].report:
        raise SystemExit("NOT THE SAME ROWS: builtin and data_juicer")
    for name in IN_PROCESS:
        print(f"{name}, {asked.records:,} pairs: {figures[name]}", flush=True)
    print(f"kept {report.kept:,}; dropped {dict(report.dropped)}", flush=True)
    out_of_process = {name: timed(partial(normalizers[name].normalize, pairs[:1_000])) for name in BACKENDS[2:]}
    for name, spent in out_of_process.items():
        print(f"{name}, 1,000 pairs: {spent}", flush=True)
    sizes = [*asked.stock, *([asked.records] if asked.whole else [])]
    beside = side_by_side(sizes, pairs, normalizers)
    emit(
        "replaysim",
        {
            "records": asked.records,
            "kept": report.kept,
            "in_process": figures,
            "within_10_cpu_s": all(spent["cpu_s"] <= BUDGET_CPU_S for spent in figures.values()),
            "import_data_juicer": importing.figures(),
            "agreement": agreed,
            "thousand": out_of_process,
            "stock": beside,
        },
    )


if __name__ == "__main__":
    main()
