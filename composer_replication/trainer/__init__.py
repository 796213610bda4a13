"""Training: the learner learns from a batch of rollouts, the loop is the recipe, a checkpoint is everything the next step depends
on."""
