"""TRL as a substrate: a run file trained by its GRPOTrainer, with our rollouts and all three channels."""
