"""Checkpoints of an arm: what they were made of, and the card that goes with them."""
