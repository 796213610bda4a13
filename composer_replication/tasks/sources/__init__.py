"""Where a task's repository comes from, how it is laid out, and what it needs."""
