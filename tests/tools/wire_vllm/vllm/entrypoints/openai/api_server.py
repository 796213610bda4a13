"""Serves a model as vLLM's own program does, over our engine (`wire_servers`).

The variable WIRE_VLLM names what is wrong with it: `broken` ends with an error, `silent` never serves, `orphan` starts a process
that it does not end.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import threading
from pathlib import Path

import torch

from composer_replication.config import ModelConfig
from composer_replication.loss.forward.models import load_policy

sys.path.insert(0, str(Path(__file__).resolve().parents[4]))
from wire_servers import Backend, WireServer


def main() -> None:
    fault = os.environ.get("WIRE_VLLM", "")
    if fault == "broken":
        print(
            "ValueError: \x1b[31mno device was found",
            "    raise RuntimeError(",
            "RuntimeError: Engine core initialization failed.",
            sep="\n",
        )
        raise SystemExit("the end")
    if fault == "orphan":
        subprocess.Popen(["sleep", "600"], start_new_session=True)
    parser = argparse.ArgumentParser()
    parser.add_argument("--model")
    parser.add_argument("--port", type=int)
    parser.add_argument("--served-model-name")
    given, _ = parser.parse_known_args()
    print("started with", *sys.argv[1:], flush=True)
    print("in the group of", os.environ.get("MASTER_ADDR"), flush=True)
    if fault == "silent":
        threading.Event().wait()
    torch.set_num_threads(1)
    model, tokenizer = load_policy(ModelConfig(path=given.model, device="cpu"))
    backend = Backend(model, tokenizer, key=os.environ.get("VLLM_API_KEY", ""), name=given.served_model_name)
    with WireServer("vllm", backend, port=given.port):
        threading.Event().wait()


if __name__ == "__main__":
    main()
