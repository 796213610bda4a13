"""A step on a batch of rollouts: the learner, its optimizers, shards of weights and the frozen reference."""
