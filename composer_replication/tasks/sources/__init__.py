"""A task's repository: its origin, layout and requirements."""
