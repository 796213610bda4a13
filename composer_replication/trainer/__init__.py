"""Training: the learner takes one optimizer step, the loop is the recipe, a checkpoint is everything the next step depends on."""
