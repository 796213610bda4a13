"""Sets of tasks: one build a repository, side by side in one folder."""
