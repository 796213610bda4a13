"""The trainer of a mesh, with its gradient shown. The processes of actors import this module too."""

from __future__ import annotations

from one_gradient import gradient_of

from composer_replication.recipes.mesh.trainer import Trainer


class WatchedTrainer(Trainer):
    def gradient_of_update(self, batch):
        self.learner.policy.zero_grad()
        self.learner.optimizer.zero_grad = lambda: None
        self.learner.update(batch)
        return gradient_of(self.learner.policy)
