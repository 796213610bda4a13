"""One optimizer step: the learner, its optimizers, shards of weights and the frozen reference."""
