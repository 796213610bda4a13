"""One of two ranks: `rank.py POLICY FOLDER` writes the gradient that both found, for a self-teacher of each kind."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent.parent / "shared")]
os.environ["VERL_PLATFORM"] = "cpu"


def main(policy: Path, folder: Path) -> None:
    import one_gradient

    from composer_replication.config import HintConfig, ModelConfig, RunConfig, TasksConfig
    from composer_replication.distillation import LiveTeacher
    from composer_replication.loss import compose_loss
    from composer_replication.recipes.verl.plan import PLAN, ArmPlan

    rank = int(os.environ["RANK"])
    for kind in ("frozen", "live"):
        hint = one_gradient.LOSS.hint.model_copy(update={"self_teacher": kind})
        assert isinstance(hint, HintConfig)
        loss = one_gradient.LOSS.model_copy(update={"hint": hint})
        config = RunConfig(model=ModelConfig(path=str(policy)), tasks=TasksConfig(train=folder), loss=loss)
        plan = ArmPlan("main", config, 512, folder / f"{kind}-{rank}")
        plan.write()
        os.environ[PLAN] = str(plan.path)
        import engines

        if not dist.is_initialized():
            import verl  # noqa: F401  loads the plugin

            dist.init_process_group("gloo")
        case = one_gradient.case()
        data = engines.batch_of(case, 1, rows=slice(2 * rank, 2 * rank + 2))
        found, _ = engines.step(engines.engine(policy), data)
        if rank == 0:
            torch.save(found, folder / f"{kind}.pt")
            if kind == "live":
                case.model.zero_grad()
                compose_loss(case.model, case.batch, one_gradient.LOSS, self_teacher=LiveTeacher()).total.backward()
                torch.save(one_gradient.gradient_of(case.model), folder / "live-expected.pt")
    dist.destroy_process_group()


main(Path(sys.argv[1]), Path(sys.argv[2]))
