"""The actor mesh on Monarch."""
