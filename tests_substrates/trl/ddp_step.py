"""One optimizer step of the fixed case on one of several processes; the first writes the gradient that all of them have."""

from __future__ import annotations

import os
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "shared")]

import fixed  # noqa: E402 - found by the path above
import one_gradient  # noqa: E402
import torch  # noqa: E402

torch.set_num_threads(1)
out, ga = Path(sys.argv[1]), int(sys.argv[2])
rank = int(os.environ["RANK"])
config = {"ddp_backend": "gloo", "per_device_train_batch_size": 2 // ga}
trainer, look = fixed.make_trainer(one_gradient.case(), out / str(rank), ga=ga, config=config)
trainer.train()
if rank == 0:
    torch.save({"gradient": look.found, "logs": look.logs}, out / "found.pt")
