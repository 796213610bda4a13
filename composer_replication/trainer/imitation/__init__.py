"""Supervised fine-tuning on demonstrations: the stage before RL, in the same loop."""
