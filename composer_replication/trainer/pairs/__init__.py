"""Preference pairs to train on: from teachers on the run's own traces, and from a file."""
