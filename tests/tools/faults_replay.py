"""1,000 states replayed through three real servers behind a failing proxy, killed ten times: nothing lost, the books agree.

Two of the servers are `transformers serve` over tiny models with random weights, one is `composer_replication.embedded.serve`.
Usage: `python tests/tools/faults_replay.py [STATES [KILLS]]`. Ends with one line of JSON; any disagreement is an AssertionError.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
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

from composer_replication.embedded.policy import tiny_model, tiny_tokenizer
from composer_replication.embedded.teachers import served
from composer_replication.trainer.models import save_policy

STATES, KILLS, TIMEOUT_S = 1000, 10, 60.0
START_S = 300.0


@contextlib.contextmanager
def transformers_serve(folder: Path, home: Path) -> Iterator[Upstream]:
    """`transformers serve` over a folder, in a process of its own."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    (home / "hub").mkdir(parents=True, exist_ok=True)
    command = [shutil.which("transformers", path=str(Path(sys.executable).parent)), "serve", str(folder), "--device", "cpu"]
    command += ["--host", "127.0.0.1", "--port", str(port)]
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "HF_HOME": str(home), "OMP_NUM_THREADS": "1"}
    with (home / f"{port}.log").open("w") as log:
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
        try:
            wait_for(f"http://127.0.0.1:{port}/health", process, home / f"{port}.log")
            yield Upstream(f"http://127.0.0.1:{port}", str(folder))
        finally:
            process.terminate()
            process.wait()


def wait_for(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    until = time.monotonic() + START_S
    while time.monotonic() < until and process.poll() is None:
        with contextlib.suppress(urllib.error.URLError, ConnectionError), urllib.request.urlopen(url, timeout=5):
            return
        time.sleep(0.5)
    raise SystemExit(f"transformers serve did not start:\n{log.read_text()[-3000:]}")


def main(arguments: list[str]) -> int:
    count, kills = (int(a) for a in (*arguments, STATES, KILLS)[:2]) if len(arguments) != 1 else (int(arguments[0]), KILLS)
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="composer-faults-") as name, contextlib.ExitStack() as stack:
        work = Path(name)
        tokenizer = tiny_tokenizer()
        for seed, folder in enumerate(("first", "second", "embedded")):
            save_policy(tiny_model(tokenizer, seed), tokenizer, work / folder)
        (embedded,) = stack.enter_context(served({"embedded": work / "embedded"}))
        upstreams = {
            "first": stack.enter_context(transformers_serve(work / "first", work / "home")),
            "second": stack.enter_context(transformers_serve(work / "second", work / "home")),
            "embedded": Upstream(embedded.base_url.removesuffix("/v1"), "embedded"),
        }
        print(f"three servers are up after {time.monotonic() - start:.0f} s", flush=True)
        (work / "replay").mkdir()
        figures = replay_under_faults(work / "replay", upstreams, count=count, kills=kills, timeout_s=TIMEOUT_S)
    print(
        json.dumps({"faults_replay": "ok", "states": count, "teachers": 3, **figures, "wall_s": round(time.monotonic() - start)})
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
