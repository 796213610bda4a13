"""Held-out calls of functions, the same for every language whose checks are calls: values, variations, evidence and books."""
