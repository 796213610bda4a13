"""Text to learn from before fine-tuning and RL: read, chosen, and cut into passages of tokens."""
