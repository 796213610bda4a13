"""Prove that a task can be solved, fails without its feature, and leaks nothing."""
