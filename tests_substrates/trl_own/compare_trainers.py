"""Run TRL's own GRPO tests twice, with its trainer and with ours, and compare the two test by test; the last line is JSON.

usage: TRL_SRC=<checkout of TRL> python tests_substrates/trl_own/compare_trainers.py [--write docs/figures/trl_own_tests.json]

The checkout gives the tests; the trainer that is tested is the installed TRL's. Models, tokenizers and data sets of the hub are
replaced by tiny ones made here, the same for both runs. Nothing is downloaded.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path

from outcomes import Outcome, Refusal, compare, figures, read_outcomes, table

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
FILES = (
    "tests/test_grpo_trainer.py",
    "tests/experimental/test_gmpo_trainer.py",
    "tests/experimental/test_gspo_token_trainer.py",
    "tests/experimental/test_grpo_with_replay_buffer_trainer.py",
)
"""The tests of the trainer, and those of TRL's trainers that subclass it."""
TESTS_RAN = (0, 1, 2)
"""The exit codes of pytest after all passed, after some failed, and after a file could not be imported."""
KEEP_MEMORY = {"MALLOC_MMAP_THRESHOLD_": str(2**30), "MALLOC_TRIM_THRESHOLD_": str(2**32), "MALLOC_TOP_PAD_": str(2**28)}
"""Options of glibc under which a process keeps freed memory: asking for it anew takes a quarter of the time."""
REFUSALS: tuple[Refusal, ...] = ()


def checkout() -> Path:
    """Return the checkout that TRL_SRC names, or exit with how to make one."""
    named = os.environ.get("TRL_SRC")
    if named and (Path(named) / FILES[0]).is_file():
        return Path(named).resolve()
    tag = f"v{version('trl')}"
    clone = f"git clone --depth 1 --branch {tag} https://github.com/huggingface/trl trl-src"
    sys.exit(f"TRL_SRC={named or ''} has no {FILES[0]}: {clone}, then make trl-own-tests TRL_SRC=trl-src")


def run_tests(source: Path, trainer: str, work: Path) -> dict[str, Outcome]:
    """Run the tests of the checkout in a fresh process with the trainer `theirs` or `ours`."""
    outcomes = work / f"{trainer}.jsonl"
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(HERE)]),
        "COMPOSER_TRL_TRAINER": trainer,
        "COMPOSER_TRL_OUTCOMES": str(outcomes),
        "HF_HOME": str(work / "hub-home"),
        "HF_HUB_OFFLINE": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "TRL_EXPERIMENTAL_SILENCE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "CUDA_VISIBLE_DEVICES": "",
        "OMP_NUM_THREADS": "1",
        **KEEP_MEMORY,
    }
    files = [file for file in FILES if (source / file).is_file()]
    options = ("-p", "own_trainer_plugin", "-p", "no:cacheprovider", "--continue-on-collection-errors", "--tb=short", "-q")
    # -P: TRL is the installed one, not the checkout's
    argv = (sys.executable, "-P", "-m", "pytest", *options, "--basetemp", str(work / f"tmp-{trainer}"), *files)
    with (work / f"{trainer}.log").open("w+", encoding="utf-8") as log:
        status = subprocess.run(argv, cwd=source, env=environment, stdout=log, stderr=subprocess.STDOUT, check=False).returncode
        log.seek(0)
        if status not in TESTS_RAN or not outcomes.is_file():
            raise SystemExit(f"{log.read()}\npytest did not run the tests with {trainer}: it ended with {status}")
    return read_outcomes(outcomes)


def make_hub(work: Path) -> None:
    """Make the models in a process of their own, so that this one imports no TRL."""
    code = "import sys, pathlib, local_models; local_models.make_hub(pathlib.Path(sys.argv[1]))"
    subprocess.run([sys.executable, "-c", code, str(work / "hub-home" / "hub")], cwd=HERE, check=True)


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--write", type=Path, help="also write the figures to this file")
    write = parser.parse_args().write
    source = checkout()
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        make_hub(work)
        print(f"TRL's GRPO tests run with its trainer and with ours, both at once; logs are in {work}", flush=True)
        with ThreadPoolExecutor() as pool:
            theirs, ours = pool.map(lambda trainer: run_tests(source, trainer, work), ("theirs", "ours"))
        found = compare(theirs, ours, REFUSALS)
    print(table(found))
    packages = {name: version(name) for name in ("trl", "transformers", "torch", "accelerate", "peft")}
    result = {"tests": "trl-own", **figures(found), "checkout": (source / "VERSION").read_text("utf-8").strip(), **packages}
    if write is not None:
        write.write_text(json.dumps(result, indent=1, sort_keys=True) + "\n", "utf-8")
    print(json.dumps(result), flush=True)
    sys.exit(0 if found.passed else 1)


if __name__ == "__main__":
    main()
