"""Checks that a grader runs and the agent never sees."""
