"""The process of one check: `python -m gpu_checks.child MODULE:FUNCTION DEVICE FOLDER`."""

from __future__ import annotations

import importlib
import json
import resource
import sys
from pathlib import Path
from typing import Any

import torch

from gpu_checks.found import CheckFunction, SkippedError
from gpu_checks.runner import RESULT


def main(function: str, device_name: str, folder: Path) -> None:
    """Run a check and write how it ended; what it raises ends the process."""
    device = torch.device(device_name)
    torch.manual_seed(0)
    module, _, name = function.partition(":")
    check: CheckFunction = getattr(importlib.import_module(module), name)
    try:
        found = check(device, folder)
    except SkippedError as why:
        result: dict[str, Any] = {"state": "skipped", "reason": str(why)}
    else:
        state = "failed" if found.wrong else "passed"
        result = {"state": state, "reason": "; ".join(found.wrong), "figures": found.figures, "limits": found.limits}
        result["peak_mb"] = round(_peak_mb(device))
    (folder / RESULT).write_text(json.dumps(result), "utf-8")


def _peak_mb(device: torch.device) -> float:
    if device.type == "cuda":
        return torch.cuda.memory_reserved(device) / 2**20  # it only grows, and nothing resets it
    return max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)) / 2**10


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
