"""The fixed case on one of several processes: one optimizer step, of which the first writes the gradient that all of them have;
or, asked for `taid`, three steps, after which each writes its clock."""

from __future__ import annotations

import os
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "shared")]

import fixed  # noqa: E402 - found by the path above
import one_gradient  # noqa: E402
import torch  # noqa: E402

from composer_replication.config import HintConfig  # noqa: E402

torch.set_num_threads(1)
out, ga, taid = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:] == ["taid"]
rank = int(os.environ["RANK"])
config = {"ddp_backend": "gloo", "per_device_train_batch_size": 2 // ga, "max_steps": 3 if taid else 1}
loss = one_gradient.LOSS
channels = loss.model_copy(update={"hint": HintConfig(weight=0.7, form="taid")}) if taid else loss
trainer, look = fixed.make_trainer(one_gradient.case(), out / str(rank), ga=ga, channels=channels, config=config)
trainer.train()
if taid:
    torch.save({"clock": trainer.taid.state_dict(), **trainer.channel_metrics}, out / f"clock_{rank}.pt")
elif rank == 0:
    torch.save({"gradient": look.found, "logs": look.logs}, out / "found.pt")
trainer.accelerator.end_training()
sys.stdout.flush()
os._exit(0)  # at the interpreter's end gloo's threads may abort the process: "terminate called without an active exception"
