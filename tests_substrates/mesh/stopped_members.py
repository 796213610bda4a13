"""A trainer and a generator that are stopped while they work."""

from __future__ import annotations

import os

from stopping import stop_once

from composer_replication.recipes.mesh.generator import Generator
from composer_replication.recipes.mesh.trainer import Trainer


class StoppedTrainer(Trainer):
    def __init__(self, port, config, arm, run):
        super().__init__(port, config, arm, run)
        (run / "trainer.pid").write_text(str(os.getpid()))

    def step(self, step, groups):
        if step == 2:
            stop_once(self.context.run_dir.path, "stepping")
        return super().step(step, groups)


class StoppedGenerator(Generator):
    async def _load(self, ticket):
        run = self.config.out / self.config.name
        if ticket.version >= 1:
            stop_once(run, "loading")
        if ticket.version >= 4:
            stop_once(run, "sending", int((run / "trainer.pid").read_text()))
        await super()._load(ticket)
