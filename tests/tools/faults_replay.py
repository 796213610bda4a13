"""1,000 states replayed through three real servers behind a failing proxy, killed ten times: nothing lost, the books agree.

Two of the servers are `transformers serve` over tiny models with random weights; the third is vLLM, by an interpreter that has
it, or `composer_replication.quickstart.serve`.
Usage: `python tests/tools/faults_replay.py [STATES [KILLS]] [--vllm PYTHON]`. Ends with one line of JSON; any disagreement is an
AssertionError.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from faults import Upstream, replay_under_faults  # beside this file

from composer_replication.loss.forward.models import save_policy
from composer_replication.quickstart.policy import tiny_model, tiny_tokenizer
from composer_replication.quickstart.teachers import served

STATES, KILLS, TIMEOUT_S = 1000, 10, 60.0
START_S = 300.0


def transformers_serve(folder: Path) -> list[str]:
    """The command that serves a folder with transformers."""
    program = shutil.which("transformers", path=str(Path(sys.executable).parent))
    assert program is not None, "transformers[serving] is not installed"
    return [program, "serve", str(folder), "--device", "cpu"]


def vllm_serve(python: Path, folder: Path) -> list[str]:
    """The command that serves a folder with vLLM on a CPU. Its console script looks for a distribution of another name."""
    options = ["--enforce-eager", "--dtype", "float32", "--enable-auto-tool-choice"]
    module = ["-m", "vllm.entrypoints.openai.api_server", "--model", str(folder)]
    return [str(python), *module, *options, "--tool-call-parser", "hermes"]


@contextlib.contextmanager
def serving(command: list[str], model: str, home: Path) -> Iterator[Upstream]:
    """A server in a process group of its own."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    (home / "hub").mkdir(parents=True, exist_ok=True)
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "HF_HOME": str(home), "OMP_NUM_THREADS": "1"}
    environment |= {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
    with (home / f"{port}.log").open("w") as log:
        process = subprocess.Popen(
            [*command, "--host", "127.0.0.1", "--port", str(port)],
            env=environment,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        try:
            wait_for(f"http://127.0.0.1:{port}/health", process, home / f"{port}.log")
            yield Upstream(f"http://127.0.0.1:{port}", model)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
            process.wait()


def wait_for(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    until = time.monotonic() + START_S
    while time.monotonic() < until and process.poll() is None:
        with contextlib.suppress(urllib.error.URLError, ConnectionError), urllib.request.urlopen(url, timeout=5):
            return
        time.sleep(0.5)
    raise SystemExit(f"{url} does not answer:\n{log.read_text()[-3000:]}")


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("states", nargs="?", type=int, default=STATES)
    parser.add_argument("kills", nargs="?", type=int, default=KILLS)
    parser.add_argument("--vllm", type=Path, metavar="PYTHON")
    given = parser.parse_args(arguments)
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="composer-faults-") as name, contextlib.ExitStack() as stack:
        work = Path(name)
        tokenizer = tiny_tokenizer()
        for seed, folder in enumerate(("first", "second", "third")):
            save_policy(tiny_model(tokenizer, seed), tokenizer, work / folder)
        upstreams = {
            name: stack.enter_context(serving(transformers_serve(work / name), str(work / name), work / "home"))
            for name in ("first", "second")
        }
        if given.vllm is None:
            (embedded,) = stack.enter_context(served({"third": work / "third"}))
            upstreams["third"] = Upstream(embedded.base_url.removesuffix("/v1"), "third")
        else:
            command = vllm_serve(given.vllm, work / "third")
            upstreams["third"] = stack.enter_context(serving(command, str(work / "third"), work / "home"))
        print(f"three servers are up after {time.monotonic() - start:.0f} s", flush=True)
        (work / "replay").mkdir()
        figures = replay_under_faults(work / "replay", upstreams, count=given.states, kills=given.kills, timeout_s=TIMEOUT_S)
    engines = ["transformers", "transformers", "vllm" if given.vllm else "embedded"]
    wall_s = round(time.monotonic() - start)
    print(json.dumps({"faults_replay": "ok", "states": given.states, "engines": engines, **figures, "wall_s": wall_s}))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
