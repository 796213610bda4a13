"""The stages around RL: fine-tuning on demonstrations before it, and evaluation of what a run has."""
